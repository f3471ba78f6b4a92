//! The state of a queue's limiter, as the control socket shows it and as text.

use blkmq::sched::limiter::{Limiter, Target};
use blkmq::{LimiterInfo, Op, RequestQueue};
use serde::{Deserialize, Serialize};

use blkmq_program::render::{counted, short};

const SECTOR: u64 = 512;
/// Sectors of the requests for which a ceiling is reported: in requests a second, and in bytes a second.
const SMALL: u32 = 8;
const LARGE: u32 = 2048;

/// The state of a queue's limiter. A value is `None` until it is known.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct LimiterReport {
    /// What it does now.
    pub(crate) phase: String,
    /// The work that may be with the device. `None` while it is not bounded.
    pub(crate) bound_ns: Option<u64>,
    /// The predicted work that the device has.
    pub(crate) in_flight_ns: u64,
    /// Requests that wait in the scheduler while the limiter is not open.
    pub(crate) held_back: usize,
    /// Whether there is a target for reads. Without one the limiter looks at shares alone.
    pub(crate) has_target: bool,
    /// What reads may take in the device on average.
    pub(crate) target_ns: Option<u64>,
    /// Whether they do, in the last tenth of a second in which the device worked; `None` if there were no reads.
    pub(crate) target_met: Option<bool>,
    /// `None` until a ceiling was measured.
    pub(crate) ceilings: Option<Ceilings>,
    /// How many times it was.
    pub(crate) ceilings_measured: u64,
}

/// What the device does at most.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub(crate) struct Ceilings {
    pub(crate) read: Ceiling,
    pub(crate) write: Ceiling,
}

/// The same, of requests in one direction.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub(crate) struct Ceiling {
    /// Of 4 KiB each.
    pub(crate) requests_per_second: f64,
    /// By requests of 1 MiB.
    pub(crate) bytes_per_second: f64,
}

impl LimiterReport {
    /// The limiter of this queue. `None` if it has none.
    pub(crate) fn of(q: &RequestQueue) -> Option<Self> {
        let LimiterInfo { limiter, in_flight_ns, held_back, .. } = q.limiter()?;
        Some(Self::new(&limiter, in_flight_ns, held_back))
    }

    fn new(limiter: &Limiter, in_flight_ns: u64, held_back: usize) -> Self {
        Self {
            phase: limiter.phase().name().to_owned(),
            bound_ns: limiter.bound(),
            in_flight_ns,
            held_back,
            has_target: limiter.target() != Target::Off,
            target_ns: limiter.target_ns(),
            target_met: limiter.is_met(),
            ceilings: Ceilings::of(limiter),
            ceilings_measured: limiter.times_measured(),
        }
    }

    /// In two lines, or in one while no ceiling was measured.
    pub(crate) fn lines(&self) -> Vec<String> {
        let bound = self.bound_ns.map_or_else(String::new, |bound| format!(" of {}", ms(bound)));
        let target = match (self.target_ns, self.target_met) {
            _ if !self.has_target => "for shares alone".to_owned(),
            (None, _) => "target not known yet".to_owned(),
            (Some(ns), met) => {
                let met = met.map_or("no reads", |met| if met { "met" } else { "missed" });
                format!("target {} ms, {met}", ms(ns))
            }
        };
        let (phase, in_flight, held_back) = (&self.phase, ms(self.in_flight_ns), self.held_back);
        let now = format!("limiter {phase}: {in_flight}{bound} ms with the device, {held_back} held back; {target}");
        let found = self.ceilings.map(|ceilings| {
            let times = counted(self.ceilings_measured, "time");
            format!("ceilings: {ceilings}; measured {times}")
        });
        std::iter::once(now).chain(found).collect()
    }
}

fn ms(ns: u64) -> String {
    format!("{:.2}", ns as f64 / 1e6)
}

impl Ceilings {
    /// What this limiter has found.
    pub(crate) fn of(limiter: &Limiter) -> Option<Self> {
        let a_second = |op, sectors| 1e9 / f64::from(limiter.cost(op, sectors));
        let of = |op| Ceiling {
            requests_per_second: a_second(op, SMALL),
            bytes_per_second: a_second(op, LARGE) * (u64::from(LARGE) * SECTOR) as f64,
        };
        (limiter.times_measured() > 0).then(|| Self { read: of(Op::Read), write: of(Op::Write) })
    }
}

impl std::fmt::Display for Ceilings {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let of = |Ceiling { requests_per_second, bytes_per_second }: Ceiling| {
            format!("{}/s of 4 KiB, {:.1} MB/s of 1 MiB", short(requests_per_second), bytes_per_second / 1e6)
        };
        write!(f, "reads {}; writes {}", of(self.read), of(self.write))
    }
}

#[cfg(test)]
mod tests {
    use blkmq::Time;
    use blkmq::sched::limiter::{Flow, Phase, Progress};

    use super::*;

    /// A limiter that was folded each millisecond for this long, with a device that does `rate` reads of 4 KiB a second
    /// and has 64 of them.
    fn folded(target: Target, rate: u64, ms: u64) -> Limiter {
        let mut limiter = Limiter::new(target);
        for now in 1..=ms {
            let requests = rate * now / 1000;
            let in_device = 64_000_000 * now;
            let reads = Flow { requests, sectors: 8 * requests, in_device };
            let progress =
                Progress { reads, least_read: Some(100_000), held_back: !limiter.is_open(), ..Progress::default() };
            limiter.fold(&progress, Time(now * 1_000_000));
        }
        limiter
    }

    /// Red if a figure is of another unit, direction or size than it says, or if an unknown figure is reported.
    #[test]
    fn what_a_limiter_found_is_told() {
        let report = LimiterReport::new(&Limiter::new(Target::Auto), 0, 0);
        assert_eq!((&*report.phase, report.bound_ns, report.target_ns, report.target_met), ("open", None, None, None));
        assert_eq!((report.ceilings, report.ceilings_measured), (None, 0));
        assert_eq!(report.lines(), ["limiter open: 0.00 ms with the device, 0 held back; target not known yet"]);

        let report = LimiterReport::new(&Limiter::for_shares(Target::Off), 90_000, 0);
        assert_eq!(report.lines(), ["limiter open: 0.09 ms with the device, 0 held back; for shares alone"]);

        let limiter = folded(Target::Within(400_000), 20_000, 330);
        assert_eq!(limiter.phase(), Phase::Paced);
        let report = LimiterReport::new(&limiter, 210_000, 37);
        let read = report.ceilings.expect("a ceiling was measured").read;
        assert!((19e3..21e3).contains(&read.requests_per_second), "{read:?}");
        let large = limiter.cost(Op::Read, 2048);
        assert!((read.bytes_per_second * f64::from(large) / 1e9 / f64::from(1 << 20) - 1.0).abs() < 1e-9, "{read:?}");
        assert_eq!((report.target_ns, report.target_met, report.ceilings_measured), (Some(400_000), Some(false), 1));
        let [now, found] = &report.lines()[..] else { panic!("two lines: {report:?}") };
        assert_eq!(now, "limiter paced: 0.21 of 4.00 ms with the device, 37 held back; target 0.40 ms, missed");
        assert!(
            found.starts_with("ceilings: reads 19.9K/s of 4 KiB, ") && found.ends_with("; measured 1 time"),
            "{found}"
        );
    }
}
