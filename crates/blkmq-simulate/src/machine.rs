//! A machine that is modelled: its CPUs in the order in which threads fill them.

use blkmq_vcpu::cache::{Costs, Distances};
use blkmq_vcpu::{Cores, Smt};

use crate::host::{self, Host};
use crate::matrix;
use crate::profile::Profile;

/// The level of CPUs that are threads of one core.
const CORE: &str = "core";

/// What private work takes while both threads of a core have some, in percent: together they do 1.2 times as much as
/// one alone.
pub(crate) const BOTH_PERCENT: u64 = 165;

/// A machine. Its CPUs are numbered in the order in which threads fill them: at first one thread on each core, core by
/// core along the levels, then the second thread of each core.
#[derive(Debug, Clone, PartialEq)]
pub struct Machine {
    cpu: String,
    distances: Distances,
    /// If only bounds of the distances are known: the greatest ones. `distances` are then the least.
    farthest: Option<Distances>,
    costs: Costs,
    smt: Option<Smt>,
}

impl Machine {
    /// The names that [`named`](Self::named) knows.
    pub fn names() -> impl Iterator<Item = &'static str> {
        Profile::names()
    }

    /// The machine of this name, if it is known.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        Some(Self::of(&Profile::named(name)?))
    }

    /// Reads the contents of the file called `name`: TOML is a profile, anything else a matrix.
    ///
    /// # Errors
    /// The text is neither.
    pub fn parse(name: &str, text: &str) -> Result<Self, String> {
        if name.ends_with(".toml") {
            return Ok(Self::of(&Profile::parse(text).map_err(|error| format!("no profile: {error}"))?));
        }
        // A matrix does not tell which CPUs are one core, so they are filled in its order.
        let distances = matrix::parse(text).map_err(|error| format!("no matrix: {error}"))?;
        let cpu = format!("matrix of {} CPUs", distances.nr_cpus());
        Ok(Self { cpu, distances, farthest: None, costs: Costs::default(), smt: None })
    }

    /// The machine of a profile.
    ///
    /// # Panics
    /// If a level has neither a distance nor bounds, as none has that was read from a text.
    #[must_use]
    pub fn of(profile: &Profile) -> Self {
        let along = profile.nearest_and_farthest().expect("each level has a distance or bounds");
        let a_core = profile.levels.first().filter(|level| level.name == CORE).map_or(1, |level| level.cpus);
        let cores = profile.nr_cpus() / a_core;
        let place = |cpu: usize| cpu % cores * a_core + cpu / cores;
        let [nearest, farthest] =
            along.map(|along| Distances::new(along.nr_cpus(), |high, low| along.between(place(high), place(low))));
        let smt = (a_core == 2).then_some(Smt { apart: cores, percent: BOTH_PERCENT });
        let farthest = profile.typical().is_none().then_some(farthest);
        Self { cpu: profile.cpu.clone(), distances: nearest, farthest, costs: Costs::default(), smt }
    }

    /// The name of the machine that this runs on.
    pub const HOST: &str = "two-core";

    /// The machine that this runs on, measured now.
    ///
    /// # Errors
    /// It cannot be measured.
    pub fn host() -> Result<Self, String> {
        let Host { distances, costs } = host::measure()?;
        let ns = |picoseconds: u64| format!("{:.1} ns", picoseconds as f64 / 1e3);
        let Costs { hit, update, store, fence, .. } = costs;
        let cpu = format!(
            "measured now: {} from CPU to CPU, load {}, store {}, update {}, fence {}",
            ns(distances.between(0, 1)),
            ns(hit),
            ns(store),
            ns(update),
            ns(fence)
        );
        // Whether the system's two CPUs are one core, it does not tell.
        Ok(Self { cpu, distances, farthest: None, costs, smt: None })
    }

    /// What it is, for people.
    #[must_use]
    pub fn cpu(&self) -> &str {
        &self.cpu
    }

    /// How many CPUs it has.
    #[must_use]
    pub fn nr_cpus(&self) -> usize {
        self.distances.nr_cpus()
    }

    /// What accesses cost apart from distances.
    #[must_use]
    pub const fn costs(&self) -> Costs {
        self.costs
    }

    /// Its CPUs, for a run. If only bounds of their distances are known, they are as near as they may be.
    #[must_use]
    pub fn cores(&self) -> Cores {
        self.cores_at(&self.distances)
    }

    /// If only bounds of the distances are known: its CPUs as far apart as they may be.
    #[must_use]
    pub fn farthest_cores(&self) -> Option<Cores> {
        self.farthest.as_ref().map(|distances| self.cores_at(distances))
    }

    fn cores_at(&self, distances: &Distances) -> Cores {
        Cores { costs: self.costs, smt: self.smt, ..Cores::new(distances.clone()) }
    }

    /// How far apart they are, as in [`cores`](Self::cores).
    #[must_use]
    pub const fn distances(&self) -> &Distances {
        &self.distances
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Red if two threads are put on one core while another core has none, or if the levels are lost.
    #[test]
    fn threads_fill_cores_before_they_share_one() {
        let machine = Machine::named("7950x").expect("it is known");
        let between = |from, to| machine.distances().between(from, to);
        assert_eq!([between(0, 1), between(0, 7), between(0, 8), between(0, 15)], [15_700, 15_700, 72_700, 72_700]);
        assert_eq!([between(0, 16), between(15, 31), between(0, 17)], [5300, 5300, 15_700]);
        assert_eq!(machine.cores().smt.map(|smt| smt.apart), Some(16));
        assert_eq!(Machine::named("graviton3").expect("it is known").cores().smt, None);
    }

    #[test]
    fn a_machine_is_read_from_a_profile_or_a_matrix() {
        let profile = "cpu = 'C'\nsource = 'S'\n[[level]]\nname = 'l'\ncpus = 2\nns = 5\n";
        let machine = Machine::parse("a.toml", profile).expect("it is right");
        assert_eq!((machine.cpu(), machine.nr_cpus(), machine.distances().between(0, 1)), ("C", 2, 5000));
        let machine = Machine::parse("a.csv", ",,\n5,,\n20,15,\n").expect("it is right");
        assert_eq!((machine.nr_cpus(), machine.distances().between(0, 2)), (3, 20_000));
    }

    /// Red if a machine whose distances are known by bounds is refused, or stands at one distance.
    #[test]
    fn a_machine_of_bounds_has_its_cpus_near_and_far() {
        let bounds = "cpu = 'C'\nsource = 'S'\n[[level]]\nname = 'l'\ncpus = 2\nlow = 5\nhigh = 7\n";
        let machine = Machine::parse("a.toml", bounds).expect("it is right");
        let far = machine.farthest_cores().expect("it has bounds").distances.between(0, 1);
        assert_eq!((machine.cores().distances.between(0, 1), far), (5000, 7000));
        assert!(Machine::named("7950x").expect("it is known").farthest_cores().is_none());
    }

    #[test]
    fn what_is_no_machine_is_refused_with_what_is_wrong() {
        let said = |name: &str, text: &str| Machine::parse(name, text).unwrap_err();
        assert!(said("a.toml", "5,,").starts_with("no profile: "));
        assert!(said("a.csv", "cpu = 'C'").starts_with("no matrix: 1 rows; "));
    }
}
