//! What is known of a machine: how far apart its CPUs are, level by level.

use blkmq_vcpu::cache::{Distances, Picoseconds};
use serde::Deserialize;

/// The machines that are known by name. Each text says where its numbers come from.
const KNOWN: [(&str, &str); 8] = [
    ("7950x", include_str!("profile/7950x.toml")),
    ("7773x", include_str!("profile/7773x.toml")),
    ("graviton3", include_str!("profile/graviton3.toml")),
    ("kunpeng-920", include_str!("profile/kunpeng-920.toml")),
    ("8375c-2s", include_str!("profile/8375c-2s.toml")),
    ("7742-2s", include_str!("profile/7742-2s.toml")),
    ("e5-2680v4-2s", include_str!("profile/e5-2680v4-2s.toml")),
    ("6700k", include_str!("profile/6700k.toml")),
];

/// The longest distance that is taken for one, in nanoseconds.
pub(crate) const LONGEST_NS: f64 = 100_000.0;

/// A machine.
///
/// Its CPUs are hardware threads, and numbered along its **levels**: with levels of 2, 16 and 32 CPUs, CPUs 0 and 1 are
/// a core, CPUs 0 to 15 a cluster, and all 32 the machine. Two CPUs are as far apart as the smallest level says that
/// both are in.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Profile {
    /// The machine's name, for people.
    pub cpu: String,
    /// Where the numbers come from.
    pub source: String,
    /// From the smallest to the whole machine.
    #[serde(default, rename = "level")]
    pub levels: Vec<Level>,
}

/// CPUs that are equally far apart, unless they are together in a smaller level.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Level {
    /// What it is called.
    pub name: String,
    /// How many CPUs one of its kind has.
    pub cpus: usize,
    /// How long a line takes from one of its CPUs to another, in nanoseconds. `None`: only bounds of that are known.
    pub ns: Option<f64>,
    /// A lower bound of that, in nanoseconds: CPUs that are near each other in the level.
    pub low: Option<f64>,
    /// An upper bound of that, in nanoseconds: CPUs that are far from each other in the level.
    pub high: Option<f64>,
}

impl Profile {
    /// The names that [`named`](Self::named) knows.
    pub fn names() -> impl Iterator<Item = &'static str> {
        KNOWN.into_iter().map(|(name, _)| name)
    }

    /// The machine of this name, if it is known.
    ///
    /// # Panics
    /// Never: a test reads all of them.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        let (_, text) = KNOWN.into_iter().find(|(known, _)| *known == name)?;
        Some(Self::parse(text).expect("a known profile is right"))
    }

    /// Reads a profile: TOML with `cpu`, `source`, and a `[[level]]` for each level.
    ///
    /// # Errors
    /// The text is not TOML, has other entries than a profile, or has no level or a wrong one.
    pub fn parse(text: &str) -> Result<Self, String> {
        let profile: Self = toml::from_str(text).map_err(|error| error.to_string().trim_end().to_owned())?;
        if profile.levels.is_empty() {
            return Err("no [[level]]: how far apart are the CPUs?".to_owned());
        }
        let mut within = 1;
        for level in &profile.levels {
            level.check(within).map_err(|what| format!("level {:?}: {what}", level.name))?;
            within = level.cpus;
        }
        Ok(profile)
    }

    /// How many CPUs the machine has.
    #[must_use]
    pub fn nr_cpus(&self) -> usize {
        self.levels.last().map_or(0, |level| level.cpus)
    }

    /// The distances of its CPUs. `None`: of some level only bounds are known.
    #[must_use]
    pub fn typical(&self) -> Option<Distances> {
        self.distances(|level| level.ns)
    }

    /// The distances of its CPUs as near and as far as they may be: they differ in the levels of which only bounds are
    /// known. `None`: the profile was not read from a text, and a level has neither.
    #[must_use]
    pub fn nearest_and_farthest(&self) -> Option<[Distances; 2]> {
        let nearest = self.distances(|level| level.ns.or(level.low))?;
        Some([nearest, self.distances(|level| level.ns.or(level.high))?])
    }

    fn distances(&self, ns: impl Fn(&Level) -> Option<f64>) -> Option<Distances> {
        let of_level = |level: &Level| Some((level.cpus, ns(level).and_then(picoseconds)?));
        let levels = self.levels.iter().map(of_level).collect::<Option<Vec<_>>>()?;
        let between = |high: usize, low: usize| {
            let smallest = levels.iter().find(|(cpus, _)| high / cpus == low / cpus);
            smallest.map_or(0, |(_, distance)| *distance)
        };
        Some(Distances::new(self.nr_cpus(), between))
    }
}

impl Level {
    /// Whether it is right as a level around levels of `within` CPUs.
    fn check(&self, within: usize) -> Result<(), String> {
        let Self { cpus, ns, low, high, .. } = *self;
        if cpus <= within || cpus % within != 0 {
            return Err(if within == 1 {
                format!("{cpus} CPUs; a level has 2 or more")
            } else {
                format!("{cpus} CPUs; it has to hold two or more levels of {within} CPUs, each as a whole")
            });
        }
        if cpus > Distances::MOST_CPUS {
            return Err(format!("{cpus} CPUs; at most {} can be modelled", Distances::MOST_CPUS));
        }
        for (key, ns) in [("ns", ns), ("low", low), ("high", high)] {
            if let Some(ns) = ns.filter(|ns| picoseconds(*ns).is_none()) {
                return Err(format!("{key} = {ns} is no number of nanoseconds above 0 and up to {LONGEST_NS}"));
            }
        }
        match (low, ns, high) {
            (None, None, None) => Err("it needs ns, or low and high".to_owned()),
            (Some(low), _, None) => Err(format!("low = {low} without high")),
            (None, _, Some(high)) => Err(format!("high = {high} without low")),
            (Some(low), ns, Some(high)) if low > ns.unwrap_or(low) || ns.unwrap_or(low) > high => {
                Err("low, ns and high are not in rising order".to_owned())
            }
            _ => Ok(()),
        }
    }
}

/// A length of time in nanoseconds, if it can be a distance.
pub(crate) fn picoseconds(ns: f64) -> Option<Picoseconds> {
    let picoseconds = (ns * 1000.0).round();
    (ns <= LONGEST_NS && picoseconds >= 1.0).then_some(picoseconds as Picoseconds)
}

#[cfg(test)]
mod tests {
    use super::*;

    const TWO: &str = "cpu = 'C'\nsource = 'S'\n";

    fn level(rest: &str) -> String {
        format!("[[level]]\nname = 'l'\n{rest}\n")
    }

    /// Red if a profile that has a name cannot be read, says nothing of its source, or loses a number. These are the
    /// medians of published matrices; a change here is a change of every result on that machine.
    #[test]
    fn known_machines_are_as_far_apart_as_was_measured() {
        // The CPUs, and the distances from the first CPU to the last one of each level.
        let expected: [(&str, usize, &[u64]); 8] = [
            ("7950x", 32, &[5300, 15_700, 72_700]),
            ("7773x", 128, &[10_100, 26_100, 111_500, 117_200]),
            ("graviton3", 64, &[46_400]),
            ("kunpeng-920", 64, &[34_500, 35_700, 80_500]),
            ("8375c-2s", 128, &[8000, 51_300, 107_800]),
            ("7742-2s", 256, &[8000, 25_300, 190_700, 266_600]),
            ("e5-2680v4-2s", 56, &[8100, 45_400, 126_400]),
            ("6700k", 8, &[6930, 19_700]),
        ];
        assert!(Profile::names().eq(expected.map(|(name, _, _)| name)));
        for (name, nr_cpus, between) in expected {
            let profile = Profile::named(name).unwrap();
            let distances = profile.typical().unwrap();
            let found: Vec<u64> = profile.levels.iter().map(|level| distances.between(0, level.cpus - 1)).collect();
            assert_eq!((distances.nr_cpus(), &*found), (nr_cpus, between), "{name}");
            assert!(profile.source.contains("core-to-core-latency"), "{name}");
            assert!(profile.levels.iter().all(|level| level.low < level.high), "{name}");
        }
        assert_eq!(Profile::named("7950"), None);
    }

    /// Red if the levels of a CPU are found by anything but its number.
    #[test]
    fn two_cpus_are_as_far_apart_as_the_smallest_level_of_both() {
        let text = format!("{TWO}{}{}", level("cpus = 2\nns = 1.5"), level("cpus = 6\nns = 20"));
        let distances = Profile::parse(&text).unwrap().typical().unwrap();
        let from_3: Vec<u64> = (0..6).map(|cpu| distances.between(3, cpu)).collect();
        assert_eq!(from_3, [20_000, 20_000, 1500, 0, 20_000, 20_000]);
    }

    /// Red if bounds are taken for a distance, or if a level without bounds gets others than its distance.
    #[test]
    fn bounds_alone_give_a_band_and_no_line() {
        let text = format!("{TWO}{}{}", level("cpus = 2\nns = 8"), level("cpus = 4\nlow = 40\nhigh = 120"));
        let profile = Profile::parse(&text).unwrap();
        assert_eq!(profile.typical(), None);
        let pairs = |distances: &Distances| (distances.between(0, 1), distances.between(0, 2));
        let [nearest, farthest] = profile.nearest_and_farthest().unwrap();
        assert_eq!((pairs(&nearest), pairs(&farthest)), ((8000, 40_000), (8000, 120_000)));
        let known = Profile::parse(&text.replace("low", "ns = 50\nlow")).unwrap();
        assert_eq!(known.nearest_and_farthest().unwrap().map(|distances| distances.between(0, 2)), [50_000; 2]);
    }

    /// Red if anything wrong is read, or if the message does not say what is wrong.
    #[test]
    fn what_is_no_profile_is_refused_with_what_is_wrong() {
        let said = |text: &str| Profile::parse(text).unwrap_err();
        let levels = |levels: &[&str]| said(&levels.iter().fold(TWO.to_owned(), |text, rest| text + &level(rest)));
        assert_eq!(said(TWO), "no [[level]]: how far apart are the CPUs?");
        assert_eq!(levels(&["cpus = 1\nns = 5"]), "level \"l\": 1 CPUs; a level has 2 or more");
        let split = "CPUs; it has to hold two or more levels of 4 CPUs, each as a whole";
        for cpus in [2, 4, 6] {
            let found = levels(&["cpus = 4\nns = 5", &format!("cpus = {cpus}\nns = 9")]);
            assert_eq!(found, format!("level \"l\": {cpus} {split}"));
        }
        assert_eq!(levels(&["cpus = 512\nns = 5"]), "level \"l\": 512 CPUs; at most 256 can be modelled");
        for ns in ["0", "-1", "nan", "inf", "100001"] {
            let found = levels(&[&format!("cpus = 2\nns = {ns}")]);
            assert!(found.ends_with("is no number of nanoseconds above 0 and up to 100000"), "{ns}: {found}");
        }
        assert_eq!(levels(&["cpus = 2"]), "level \"l\": it needs ns, or low and high");
        assert_eq!(levels(&["cpus = 2\nlow = 5"]), "level \"l\": low = 5 without high");
        assert_eq!(levels(&["cpus = 2\nns = 7\nhigh = 5"]), "level \"l\": high = 5 without low");
        for wrong in ["low = 8\nns = 7\nhigh = 9", "low = 5\nns = 7\nhigh = 6", "low = 9\nhigh = 8"] {
            let found = levels(&[&format!("cpus = 2\n{wrong}")]);
            assert_eq!(found, "level \"l\": low, ns and high are not in rising order", "{wrong}");
        }
        for (text, part) in [
            (format!("{TWO}{}", level("cpus = 2\nns = 5\nspeed = 3")), "unknown field `speed`"),
            (format!("{TWO}{}", level("cpus = -2\nns = 5")), "line 5"),
            (format!("source = 'S'\n{}", level("cpus = 2\nns = 5")), "missing field `cpu`"),
            ("cpu = ".to_owned(), "line 1"),
        ] {
            assert!(said(&text).contains(part), "{text}: {}", said(&text));
        }
    }
}
