//! Chains, without a kernel and with one.
#![expect(unsafe_code, reason = "memory is put into a ring's table")]

use std::os::fd::AsRawFd;
use std::path::Path;
use std::sync::Arc;

use blkmq::driver::Driver;
use blkmq::pages::{PageSource, Pages};
use blkmq::{Bio, Buffers, Client, Flags as BioFlags, Op, RequestQueue, Status, Submitter};

use super::super::registered::{self, pages_slot};
use super::super::{Config, File};
use super::*;

const NOTHING: Command = Command { file: -1, op: 0, bytes: [0; 16] };

fn chain() -> Chain {
    Chain { register: NOTHING, unregister: NOTHING, nr_answers: 0, moved: 0, registered: 0, unregistered: 0, tries: 0 }
}

const ORDERS: [[usize; LINKS]; 6] = [[0, 1, 2], [0, 2, 1], [1, 0, 2], [1, 2, 0], [2, 0, 1], [2, 1, 0]];

/// Red if a chain is over before its last answer, or if its answer depends on the order in which the links are
/// answered.
#[test]
fn a_chain_is_over_with_its_last_answer_in_any_order() {
    use Link::{Move, Register, Unregister};
    let cancelled = -libc::ECANCELED;
    for (answers, expected) in [
        ([(Register, 0), (Move, 4096), (Unregister, 0)], 4096),
        ([(Register, 0), (Move, -libc::ENOSPC), (Unregister, 0)], -libc::ENOSPC),
        ([(Register, -libc::EBUSY), (Move, cancelled), (Unregister, cancelled)], -libc::EIO),
        ([(Register, -libc::ENOMEM), (Move, cancelled), (Unregister, cancelled)], -libc::EAGAIN),
        ([(Register, -libc::EFAULT), (Move, cancelled), (Unregister, cancelled)], -libc::EAGAIN),
        ([(Register, cancelled), (Move, cancelled), (Unregister, cancelled)], -libc::EAGAIN),
        // The kernel had no memory for the whole chain, and has taken it in parts.
        ([(Register, -libc::EBADF), (Move, -libc::EFAULT), (Unregister, -libc::EBADF)], -libc::EIO),
    ] {
        for order in ORDERS {
            let mut chain = chain();
            for _ in 0..2 {
                let mut take = |index: usize| chain.answered(answers[index].0, answers[index].1);
                let expected = [Next::Wait, Next::Wait, Next::Over(expected)];
                assert_eq!(order.map(&mut take), expected, "{answers:?} in the order {order:?}");
            }
        }
    }
}

/// Red before a chain was over while the pages were in the table: the block device's request never ended then. Red also
/// if it never ends where they cannot be taken out.
#[test]
fn pages_that_are_still_in_the_table_are_taken_out_once_more() {
    use Link::{Move, Register, Unregister};
    for error in [libc::EFAULT, libc::ECANCELED, libc::EINVAL] {
        let answers = [(Register, 0), (Move, 4096), (Unregister, -error)];
        for order in ORDERS {
            let mut chain = chain();
            let mut take = |index: usize| chain.answered(answers[index].0, answers[index].1);
            assert_eq!(order.map(&mut take), [Next::Wait, Next::Wait, Next::TakeOut]);
            assert_eq!(chain.answered(Unregister, -error), Next::TakeOut);
            assert_eq!(chain.answered(Unregister, 0), Next::Over(4096));
            assert_eq!(chain.answered(Register, 0), Next::Wait, "the next chain");
            assert_eq!(chain.answered(Move, 512), Next::Wait);
            let tries = std::iter::repeat_with(|| chain.answered(Unregister, -error));
            assert_eq!(tries.take_while(|next| *next == Next::TakeOut).count(), usize::from(MOST_TRIES));
        }
    }
}

/// Red if an answer is taken for that of another link or tag.
#[test]
#[cfg_attr(miri, ignore = "the crate io-uring writes a command by a pointer to no bytes, which Miri refuses")]
fn each_entry_is_known_by_its_user_data() {
    let entries = chain().entries(opcode::Nop::new().build(), 0xffff);
    let data = entries.each_ref().map(Entry::get_user_data);
    assert_eq!(data.map(Link::of), [Link::Register, Link::Move, Link::Unregister]);
    assert_eq!(data.map(|data| data as u16), [0xffff; 3]);
    assert_eq!(Link::of(0xffff), Link::Move, "that of an entry in no chain");
}

/// Commands to a file that takes every command and does nothing, or to none.
#[derive(Debug)]
struct Pretender(Option<std::fs::File>);

impl PageSource for Pretender {
    fn register(&self, _name: u32, _slot: u16) -> Command {
        Command { file: self.0.as_ref().map_or(-1, AsRawFd::as_raw_fd), ..NOTHING }
    }

    fn unregister(&self, name: u32, slot: u16) -> Command {
        self.register(name, slot)
    }
}

/// A source whose commands succeed.
fn willing() -> Arc<dyn PageSource> {
    Arc::new(Pretender(Some(std::fs::File::open("/dev/null").expect("every system has it"))))
}

const DEPTH: u16 = 4;
#[cfg(target_arch = "x86_64")]
const MOST: usize = 8192;

/// Memory at an address that fits into 32 bits, which takes the place of pages: the kernel wants the address of memory
/// where it wants the offset of pages.
#[cfg(target_arch = "x86_64")]
struct Memory(*mut u8, usize);

#[cfg(target_arch = "x86_64")]
impl Memory {
    fn new(len: usize) -> Self {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_32BIT;
        // SAFETY: the kernel chooses a place where nothing else is.
        let start = unsafe { libc::mmap(std::ptr::null_mut(), len, libc::PROT_READ | libc::PROT_WRITE, flags, -1, 0) };
        assert_ne!(start, libc::MAP_FAILED, "there is memory");
        Self(start.cast(), len)
    }

    fn bytes(&mut self) -> &mut [u8] {
        // SAFETY: the memory lives as long as this value. No request is in flight where this is called.
        unsafe { std::slice::from_raw_parts_mut(self.0, self.1) }
    }

    /// Puts the memory into the slots of all tags.
    fn register(&self, file: &File) {
        let piece = registered::Memory { start: self.0.addr(), len: self.1 };
        (0..DEPTH).for_each(|tag| file.engine(0).register(pages_slot(tag), Some(piece)));
    }

    /// Pages with these bytes of the memory.
    fn pages(&self, at: usize, len: usize) -> Buffers {
        let start = self.0.addr() + at;
        let mut pages = Pages::new(willing(), 0, u32::try_from(start + len).expect("it is near the start"));
        pages.split_off(start).expect("so many were named").into()
    }
}

#[cfg(target_arch = "x86_64")]
impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: what `new` has mapped; no request is in flight.
        let _ = unsafe { libc::munmap(self.0.cast(), self.1) };
    }
}

fn queue(folder: &Path, owned: bool) -> (Arc<File>, Submitter) {
    let config = Config { size: Some(1 << 20), depth: DEPTH, owned, ..Config::new(folder.join("file")) };
    let file = Arc::new(File::open(config).expect("it can be opened"));
    assert!((1..=512).contains(&file.limits().pages_align), "this kernel has tables for buffers");
    let q = RequestQueue::builder(file.clone()).scheduler("none").build().expect("the device makes sense");
    (file, q.submitter(&Client::new("test")).expect("there is room"))
}

/// Has all these operations done at once. Returns their statuses by their numbers.
fn run(submitter: &mut Submitter, bios: impl IntoIterator<Item = Bio>) -> Vec<Status> {
    let mut done = Vec::new();
    for (number, bio) in (0..).zip(bios) {
        submitter.submit(bio.with_user_data(number)).expect("there is room");
    }
    while submitter.nr_outstanding() > 0 {
        submitter.wait(1, None);
        done.extend(std::iter::from_fn(|| submitter.reap()).map(|done| (done.bio.user_data, done.status)));
    }
    done.sort_unstable_by_key(|done| done.0);
    done.into_iter().map(|done| done.1).collect()
}

/// Red if data goes elsewhere, if a ring has no room for chains of all tags at a time, if a tag is used again while its
/// slot is in use, or if a sync that follows a write is taken for a chain. Each of 64 writes takes three entries of a
/// ring for four requests.
#[test]
#[cfg(target_arch = "x86_64")]
#[cfg_attr(miri, ignore = "there is no io_uring")]
fn data_moves_by_a_slot_of_the_table() {
    for owned in [false, true] {
        let folder = tempfile::tempdir().expect("it can be made");
        let (file, mut submitter) = queue(folder.path(), owned);
        let mut memory = Memory::new(64 * MOST);
        memory.register(&file);
        let numbered = |at: usize| (at / MOST) as u8 ^ 0x5a;
        (0..memory.1).step_by(MOST).for_each(|at| memory.bytes()[at..at + MOST].fill(numbered(at)));
        let fua = BioFlags { fua: true, ..BioFlags::NONE };
        let sector = |at: usize| (at / 512) as u64;
        let ats = || (0..64 * MOST).step_by(MOST);
        let writes = ats().map(|at| Bio::write(sector(at), memory.pages(at, MOST)).with_flags(fua));
        assert!(run(&mut submitter, writes).iter().all(|status| status.is_ok()));
        memory.bytes().fill(0);
        // Each block to where the block lay that mirrors it.
        let last = 63 * MOST;
        let reads = ats().map(|at| Bio::read(sector(last - at), memory.pages(at, MOST)));
        assert!(run(&mut submitter, reads).iter().all(|status| status.is_ok()));
        for at in ats() {
            assert!(memory.bytes()[at..at + MOST].iter().all(|byte| *byte == numbered(last - at)), "block {at}");
        }
        drop((submitter, file));
    }
}

/// Red before a chain failed whose thread ends while the data moves: the kernel refuses then to go on with the chain.
/// The pages stayed in the table, so the block device's request never ended.
#[test]
#[cfg(target_arch = "x86_64")]
#[cfg_attr(miri, ignore = "there is no io_uring")]
fn a_chain_goes_on_where_its_thread_has_ended() {
    let folder = tempfile::tempdir().expect("it can be made");
    let (file, mut submitter) = queue(folder.path(), false);
    let memory = Memory::new(usize::from(DEPTH) * MOST);
    memory.register(&file);
    for _ in 0..300 {
        let bios = (0..usize::from(DEPTH))
            .map(|at| Bio::write(at as u64 * 16, memory.pages(at * MOST, MOST)))
            .collect::<Vec<_>>();
        let started = std::thread::spawn(move || {
            bios.into_iter().for_each(|bio| _ = submitter.submit(bio).expect("there is room"));
            submitter.flush_plug();
            submitter
        });
        submitter = started.join().expect("it does not panic");
        assert_eq!(run(&mut submitter, []), [Status::Ok; DEPTH as usize]);
    }
}

/// Red before the rings of a program that ends kept pages: a block device's request never ended if the kernel held the
/// program until it does.
#[test]
#[cfg(target_arch = "x86_64")]
#[cfg_attr(miri, ignore = "there is no io_uring")]
fn a_device_that_is_closed_has_no_pages() {
    let folder = tempfile::tempdir().expect("it can be made");
    let (file, mut submitter) = queue(folder.path(), false);
    let memory = Memory::new(MOST);
    memory.register(&file);
    let write = || Bio::write(0, memory.pages(0, MOST));
    assert_eq!(run(&mut submitter, [write()]), [Status::Ok]);
    file.close();
    assert_eq!(run(&mut submitter, [write(), Bio::flush()]), [Status::IoError, Status::Ok]);
}

/// Red if a request never ends whose pages the kernel does not give, or that finds none, or if it ends well.
#[test]
#[cfg_attr(miri, ignore = "there is no io_uring")]
fn a_request_without_its_pages_fails() {
    let folder = tempfile::tempdir().expect("it can be made");
    let (file, mut submitter) = queue(folder.path(), false);
    let nowhere: Arc<dyn PageSource> = Arc::new(Pretender(None));
    for source in [nowhere, willing()] {
        let bio = |number: u64| {
            let op = if number.is_multiple_of(2) { Op::Read } else { Op::Write };
            Bio::new(op, number * 8, 8, Pages::new(Arc::clone(&source), 0, 4096).into())
        };
        assert_eq!(run(&mut submitter, (0..20).map(bio)), [Status::IoError; 20]);
    }
    assert_eq!(run(&mut submitter, [Bio::flush()]), [Status::Ok], "other requests go on");
    drop(file);
}

/// Red if pages are offered where they cannot be used: by threads, by a file that ends within a sector, which takes
/// zeroes in memory behind its end, and beside a journal, which would not see the data.
#[test]
#[cfg_attr(miri, ignore = "there is no io_uring")]
fn pages_are_taken_only_where_they_can_be() {
    let folder = tempfile::tempdir().expect("it can be made");
    let align = |config: Config| File::open(config).expect("it can be opened").limits().pages_align;
    let plain = || Config { size: Some(1 << 20), ..Config::new(folder.path().join("whole")) };
    assert!(align(plain()) > 0);
    assert_eq!(align(Config { direct: false, ..plain() }), 1, "the page cache takes data anywhere");
    assert_eq!(align(Config { engine: super::super::Choice::Threads, ..plain() }), 0);
    let odd = folder.path().join("odd");
    std::fs::write(&odd, [0; 1000]).expect("it can be written");
    assert_eq!(align(Config::new(&odd)), 0);
}
