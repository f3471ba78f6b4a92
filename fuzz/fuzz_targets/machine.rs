//! Any text is a machine's profile, a matrix of distances, or refused with what is wrong. Its distances are such that
//! the model can run with them.
#![no_main]

#[macro_use]
mod reach;

use blkmq_simulate::Machine;
use reach::Reached;

/// The longest distance, in picoseconds.
const LONGEST: u64 = 100_000_000;

fn check(machine: &Machine) {
    let nr_cpus = machine.nr_cpus();
    assert!((2..=256).contains(&nr_cpus));
    let nearest = machine.cores();
    let farthest = machine.farthest_cores().unwrap_or_else(|| nearest.clone());
    for cores in [&nearest, &farthest] {
        assert_eq!((cores.distances.nr_cpus(), cores.fill.len()), (nr_cpus, nr_cpus));
        assert_eq!(cores.distances.between(nr_cpus - 1, nr_cpus - 1), 0);
        assert!(cores.smt.is_none_or(|smt| smt.apart * 2 == nr_cpus));
    }
    for cpu in 1..nr_cpus {
        let [near, far] = [&nearest, &farthest].map(|cores| cores.distances.between(0, cpu));
        assert!(1 <= near && near <= far && far <= LONGEST, "{cpu}: {near} {far}");
        assert_eq!(nearest.distances.between(cpu, 0), near);
    }
}

fn run(text: &str, reached: &mut Reached) {
    for (name, kind) in [("a.toml", "profiles"), ("a.csv", "matrices")] {
        match Machine::parse(name, text) {
            Ok(machine) => {
                reached.add(kind, 1);
                reached.add("bounds", usize::from(machine.farthest_cores().is_some()));
                check(&machine);
            }
            Err(error) => {
                reached.add("refused", 1);
                assert!(!error.to_string().is_empty());
            }
        }
    }
}

target!("machine", run, [("profiles", 4), ("matrices", 2), ("bounds", 1), ("refused", 14)], &str);
