# Every command a person needs. The work is in scripts/, so that each also runs without make.
export PATH := $(CURDIR)/target/tools/bin:$(HOME)/.cargo/bin:$(PATH)

.DEFAULT_GOAL := help
STEPS := lint deny doc stress torture loom examples interop long mutants release miri fuzz nvme guest ublk rbd neighbour
.PHONY: help build demo test deep soak speed measure storage lockings curves servers machines shares frontier images priorities cost tools fmt clean $(STEPS)

help: ## Lists these commands
	@sed -n 's/^\([a-z]*\):.*## /\1	/p' Makefile | expand -t 12
	@echo
	@echo "One step of the tests alone: make $(STEPS)" | fold -s -w 100

build: ## Builds the programs: target/release/blkmq, and blkmq-torture and blkmq-simulate beside it
	@scripts/tools rust cc
	BLKMQ_COMMIT=$$(scripts/commit) cargo build --release --locked -p blkmq-cli -p blkmq-torture -p blkmq-simulate

demo: ## Agreement with Linux's recorded decisions, a reader beside a flood of writes, the price of sharing; under a minute
	@scripts/demo

test: ## What every change passes
	@scripts/test

deep: ## What takes long: planted bugs, release builds, Miri, fuzzing, guests, Ceph
	@scripts/test deep

soak: ## The long forms for MINUTES (default 60), all or PARTS=torture alone; a record of it under docs/records/
	@scripts/soak

speed: ## Compares this tree by time with the pinned revision and the parent, or BASE; fails where it is slower
	@scripts/speed

measure: ## Rates and CPU time beside fio's, and what statistics cost; a record of it under docs/records/
	@scripts/measure

storage: ## Files and disks beside fio's io_uring engine, quiet and beside computing loops; a record of it under docs/records/
	@scripts/storage

lockings: ## What threads that share a scheduler cost each other, under each locking; a record of it under docs/records/
	@scripts/lockings

curves: ## How each scheduler under each locking scales with threads, and where requests wait; a record of it under docs/records/
	@scripts/curves

machines: ## vhost-user-blk servers beside each other: ours, qemu-storage-daemon; a record of it under docs/records/
	@scripts/vhost-user

servers: ## NBD servers beside each other: ours, nbdkit, qemu-storage-daemon; a record of it under docs/records/
	@scripts/servers

shares: ## How clients of a server share a disk by weight; a record of it under docs/records/
	@scripts/shares

frontier: ## A reader's latency against writers' rate, by depth of the device's queue; a record of it under docs/records/
	@scripts/frontier

images: ## Images of Ceph beside fio's rbd engine, on a cluster of one node; a record of it under docs/records/
	@scripts/images

priorities: ## What the priority of a guest's processes is worth behind vhost-user; a record of it under docs/records/
	@scripts/priority

cost: ## Instructions per request, counted by valgrind
	@scripts/cost

tools: ## Installs whatever the other commands would install when they first need it
	@scripts/tools

fmt: ## Formats the sources
	@scripts/tools rustfmt
	cargo fmt --all
	cargo fmt --manifest-path fuzz/Cargo.toml
	cargo fmt --manifest-path peers/blkio/Cargo.toml

clean: ## Removes everything that was built
	rm -rf target fuzz/target fuzz/corpus fuzz/artifacts

$(STEPS):
	@scripts/test $@
