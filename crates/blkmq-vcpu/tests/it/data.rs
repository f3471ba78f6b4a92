//! Plain data that CPUs hand to each other: told line by line, charged by where each line was last, and no step.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails there and then, in its helpers too")]

use std::sync::Mutex as Plain;

use blkmq_vcpu::cache::{Access, Costs, Distances, Picoseconds};
use blkmq_vcpu::schedule::Uniform;
use blkmq_vcpu::sync::atomic::{AtomicU32, Ordering::Relaxed};
use blkmq_vcpu::sync::{Arc, Mutex};
use blkmq_vcpu::{
    Accessed, Cores, CpuId, Ended, Kernel, Named, Options, Place, Random, Tracked, changes, place_anew, place_at,
    place_bytes, reads, run, steps, thread, time, uninterrupted, work,
};

const DISTANCE: Picoseconds = 70_000;

/// An operation on a line with a name: CPU, name, instance, line, and what was done.
type Told = (CpuId, &'static str, u32, u32, Access);

/// What was told of a run, with the cost of each operation if CPUs have clocks of their own: how long it took the CPU,
/// and how many lines moved and came from memory.
fn told(nr_cores: Option<usize>, main: impl FnOnce() + Send + 'static) -> Vec<(Told, Option<[u64; 2]>)> {
    let told = Arc::new(Plain::new(Vec::new()));
    let on_access = {
        let told = told.clone();
        Box::new(move |Accessed { cpu, line, access, cost, .. }: Accessed| {
            let Some(line) = line else { return };
            let cost = cost.map(|cost| [cost.moved, cost.fetched].map(u64::from));
            told.lock().unwrap().push(((cpu, line.name, line.instance, line.line, access), cost));
        })
    };
    let cores = nr_cores.map(|nr_cpus| {
        let distances = Distances::new(nr_cpus, |_, _| DISTANCE);
        Cores { kernel: Kernel::FREE, ..Cores::new(distances) }
    });
    let options = Options { on_access: Some(on_access), cores, ..Options::default() };
    assert_eq!(run(Box::new(Uniform::new(Random::new(1), 1)), options, main), Ended::Finished);
    std::mem::take(&mut *told.lock().unwrap())
}

fn without_cost(main: impl FnOnce() + Send + 'static) -> Vec<Told> {
    told(None, main).into_iter().map(|(told, _)| told).collect()
}

/// 192 bytes: three lines.
#[derive(Debug)]
#[repr(align(64))]
struct Data([u64; 24]);

impl Data {
    fn placed() -> Arc<Self> {
        let data = Arc::new(Self([0; 24]));
        place_at("data", &*data);
        data
    }
}

/// Red if lines that a value does not touch are told, if one that it touches is not, or if an access is a step: the
/// torture rig would play other worlds whenever a place tells more.
#[test]
fn plain_data_is_told_line_by_line_and_is_no_step() {
    let told = without_cost(|| {
        let data = Data::placed();
        let before = steps();
        assert_eq!(*reads(&data.0[7]), 0);
        let _ = reads(&data.0[7..9]);
        let _ = reads(&*data);
        let _ = reads(&data.0[1..1]);
        let mut other = Box::new([0_u64; 4]);
        place_at("other", &*other);
        *changes(&mut other[3]) += 1;
        uninterrupted(|| _ = reads(&data.0[3]));
        assert_eq!((steps(), time::now()), (before, 0));
    });
    let read = |line| (0, "data", 0, line, Access::Load);
    let expected = [read(0), read(0), read(1), read(0), read(1), read(2), (0, "other", 0, 0, Access::Update)];
    assert_eq!(told, expected);
}

/// Red if a use of a tracked value or of an item in named memory is not told, if what an assertion looks at is, if
/// memory that has grown is not found, or if a value that was just made is taken for what lay there before.
#[test]
fn values_tell_what_is_done_to_them() {
    let told = without_cost(|| {
        let mut value = Box::new(Tracked::new([0_u64; 2]));
        place_at("old", &*value);
        place_anew("new", &*value);
        value[1] = 1;
        let mut list = Named::new("list", Vec::<Tracked<u64>>::new());
        list.push(1);
        list.reserve_exact(64);
        *list[0] += value[1];
        blkmq_vcpu::debug_assert_eq!(*list[0], 2, "assertions look at values too");
        assert_eq!(list.pop(), Some(2));
    });
    let of = |name, access| (0, name, 0, 0, access);
    let (load, update) = (Access::Load, Access::Update);
    let of_list = [of("list", update), of("new", load), of("list", update), of("list", load)];
    assert_eq!((told[0], &told[1..]), (of("new", update), &of_list[..]));
}

/// Red if the second access to a line costs a CPU anything, if a line that another CPU changed costs nothing, or if
/// lines that are read by all move.
#[test]
fn data_is_charged_by_the_lines_that_another_cpu_had() {
    let told = told(Some(2), || {
        let data = Data::placed();
        let mut mine = Box::new(Data([0; 24]));
        place_at("moves", &*mine);
        let took = |what: &mut dyn FnMut()| {
            let before = time::now();
            what();
            1000 * (time::now() - before)
        };
        let memory = Costs::default().memory;
        assert_eq!(took(&mut || _ = changes(&mut *mine)), 3 * memory);
        assert_eq!(took(&mut || _ = reads(&*data)), 3 * memory);
        assert_eq!(took(&mut || (0..100).for_each(|_| _ = reads(&*changes(&mut *mine)))), 0);
        let other = thread::spawn(move || {
            assert_eq!(took(&mut || _ = reads(&*data)), 3 * DISTANCE);
            assert_eq!(took(&mut || _ = changes(&mut mine.0[8..])), 2 * DISTANCE);
            assert_eq!(took(&mut || _ = changes(&mut *mine)), DISTANCE);
            (data, mine)
        });
        let (data, mut mine) = other.join().unwrap();
        assert_eq!(took(&mut || (0..100).for_each(|_| _ = reads(&*data))), 0);
        // What this CPU reads it then shares, and a change of that is posted.
        assert_eq!(took(&mut || _ = reads(&mine.0[0])), DISTANCE);
        assert!(took(&mut || _ = changes(&mut mine.0[0])) < DISTANCE);
        work(DISTANCE);
        assert_eq!(took(&mut || _ = changes(&mut mine.0[0])), 0);
    });
    let sum = |name| {
        let costs = told.iter().filter(|((_, of, ..), _)| *of == name).filter_map(|(_, cost)| *cost);
        costs.fold([0, 0], |sum, cost| [sum[0] + cost[0], sum[1] + cost[1]])
    };
    assert_eq!((sum("data"), sum("moves")), ([3, 3], [5, 3]));
}

/// Red if a CPU that has to wait for data goes on before CPUs whose clocks are earlier: they would find what it did too
/// early.
#[test]
fn a_cpu_that_waits_for_data_lets_the_others_go_first() {
    let told = told(Some(2), || {
        let (data, count) = (Data::placed(), Arc::new(AtomicU32::new(0)));
        place_at("count", &*count);
        let theirs = count.clone();
        let other = thread::spawn(move || _ = theirs.fetch_add(1, Relaxed));
        let _ = reads(&*data);
        count.fetch_add(1, Relaxed);
        other.join().unwrap();
    });
    let counts: Vec<CpuId> =
        told.iter().filter(|((_, name, ..), _)| *name == "count").map(|((cpu, ..), _)| *cpu).collect();
    assert_eq!(counts, [1, 0]);
}

/// Red if memory that has become larger keeps the lines that it had elsewhere, if memory that has moved does not, or if
/// either is taken for another place.
#[test]
fn memory_that_grows_is_on_new_lines_and_memory_that_moves_is_not() {
    let told = told(Some(1), || {
        let place = Place::new();
        let note = |values: &Vec<u64>| place_bytes("list", &place, values.as_ptr().addr(), values.capacity() * 8);
        let mut values = vec![0_u64; 8];
        note(&values);
        changes(&mut *values)[0] = 1;
        let moved = values.clone();
        note(&moved);
        let _ = reads(&*moved);
        values.reserve_exact(56);
        note(&values);
        let _ = (reads(&*values), reads(&*values));
        drop(place);
        let _ = reads(&*values);
    });
    let line = |access| (0, "list", 0, 0, access);
    let (read, hit, fetched) = (line(Access::Load), Some([0, 0]), Some([0, 1]));
    assert_eq!(told, [(line(Access::Update), fetched), (read, hit), (read, fetched), (read, hit)]);
}

/// Red if what a lock guards is not told when it is used, or if all of a large value is: its users tell what they touch
/// of it.
#[test]
fn a_small_value_in_a_lock_is_told_with_the_lock() {
    let told = without_cost(|| {
        let (small, large) = (Mutex::new([0_u64; 16]), Mutex::new([0_u64; 17]));
        place_at("small", &small);
        place_at("large", &large);
        let guard = small.lock().unwrap();
        assert_eq!(guard[0], 0);
        drop(guard);
        small.lock().unwrap()[0] = 1;
        large.lock().unwrap()[0] = 1;
    });
    let of = |name| told.iter().filter(move |(_, of, ..)| *of == name).map(|(.., access)| *access);
    // Each lock is taken and let go; a value of two lines lies on three where the lock stands before it.
    let count = |name, access| of(name).filter(|of| *of == access).count();
    assert_eq!([Access::Load, Access::Store].map(|access| count("large", access)), [0, 1]);
    assert_eq!(count("large", Access::Update), 1);
    assert!((2..=3).contains(&count("small", Access::Load)), "{told:?}");
    assert!((4..=5).contains(&count("small", Access::Update)), "{told:?}");
}
