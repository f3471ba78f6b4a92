//! All integration tests of the crate in one program, a module for each subject.

mod agreement;
mod agreement_bfq;
mod agreement_kyber;
mod bench;
mod bench_alloc;
mod bench_options;
mod bench_pacing;
mod bench_partial;
mod compare;
#[path = "../../../blkmq-sched/tests/it/counting/mod.rs"]
mod counting;
mod disturbance;
mod fair;
mod flood;
mod input;
mod input_bfq;
mod job_files;
mod judge;
mod limiter;
#[path = "../../../blkmq-sched/tests/it/model/mod.rs"]
#[allow(dead_code, reason = "a trace needs a part of the model")]
mod model;
mod order;
mod order_kyber;
mod own_scheduler;
mod play;
mod ratio;
mod report;
mod whole;
mod written;
