//! Garbage collection, as far as readers and writers notice it.

use blkmq_sched::Time;

use super::config::Config;
use crate::driver::random;

/// What is erased and what is not. Writing uses up the spare; collection meanwhile gives it back at a fixed rate. When
/// the spare is used up, each program makes its die copy pages first, until a good part of the spare is free again. So
/// the SSD is fast and slow by turns if more is written than it can sustain, and never slow otherwise.
#[derive(Debug)]
pub(super) struct Collector {
    /// Bytes.
    spare: u64,
    used: u64,
    /// Bytes a second.
    rate: u64,
    /// When `used` was brought up to date last.
    at: Time,
    copies: u64,
    slow: Option<Slow>,
    random: u64,
}

/// An episode of copying: how many pages for each page programmed, and down to how much used spare.
#[derive(Debug)]
struct Slow {
    copies: u64,
    until: u64,
}

impl Collector {
    pub(super) fn new(config: &Config) -> Self {
        Self {
            spare: config.spare,
            used: 0,
            rate: config.gc_rate,
            at: Time(0),
            copies: config.gc_copies,
            slow: None,
            random: config.seed,
        }
    }

    /// `bytes` bytes are programmed at `now`. Returns how many pages have to be copied for each page.
    pub(super) fn program(&mut self, bytes: u64, now: Time) -> u64 {
        let collected = u128::from(now.since(self.at)) * u128::from(self.rate) / 1_000_000_000;
        // Less than a byte is kept for later.
        if collected > 0 {
            self.used = self.used.saturating_sub(u64::try_from(collected).unwrap_or(u64::MAX));
            self.at = self.at.max(now);
        }
        self.used += bytes;
        if self.used > self.spare && self.slow.is_none() {
            // How much has to be copied, and how much is found to collect, differs from episode to episode: by a
            // quarter around the mean.
            let (half, draw) = (self.spare / 2, random::draw(&mut self.random));
            let until = self.spare / 4 + draw % half.max(1);
            let copies = (self.copies * 3).div_ceil(4) + (draw >> 32) % (self.copies / 2 + 1);
            self.slow = Some(Slow { copies, until });
        }
        if self.slow.as_ref().is_some_and(|slow| self.used < slow.until) {
            self.slow = None;
        }
        self.slow.as_ref().map_or(0, |slow| slow.copies)
    }

    pub(super) fn is_slow(&self) -> bool {
        self.slow.is_some()
    }

    pub(super) fn used(&self) -> u64 {
        self.used
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    /// Writes a MiB every `gap` nanoseconds, and tells how often pages had to be copied, in how many episodes.
    fn run(seed: u64, gap: u64) -> (u64, u64) {
        let config = format!("spare=64,gc_mbps=1000,gc_copies=8,seed={seed}");
        let mut collector = Collector::new(&config.parse().unwrap());
        let (mut copied, mut episodes, mut was_slow) = (0, 0, false);
        for step in 0..10_000 {
            let copies = collector.program(MIB, Time(step * gap));
            assert!(copies == 0 || (6..=10).contains(&copies), "{copies}");
            episodes += u64::from(copies > 0 && !was_slow);
            was_slow = copies > 0;
            copied += u64::from(was_slow);
        }
        (copied, episodes)
    }

    #[test]
    fn nothing_is_copied_for_less_than_is_collected_and_much_for_more() {
        // 1000 MB/s are a MiB each 1.05 ms.
        assert_eq!(run(1, 1_100_000), (0, 0));
        assert_eq!(run(1, 500_000).1, 1, "who writes on as fast gets out of it never");
    }

    #[test]
    fn episodes_end_when_much_is_free_and_their_lengths_follow_from_the_seed() {
        let fast_then_slow = |seed| {
            let config = format!("spare=64,gc_mbps=1000,gc_copies=8,seed={seed}");
            let mut collector = Collector::new(&config.parse().unwrap());
            let (mut now, mut lengths, mut length) = (0, Vec::new(), 0_u64);
            for _ in 0..10_000 {
                // The writer waits for each program, so it is ten times as slow while pages are copied.
                let copies = collector.program(MIB, Time(now));
                now += if copies > 0 { 3_000_000 } else { 300_000 };
                match (copies, length) {
                    (0, 0) => {}
                    (0, _) => lengths.push(std::mem::take(&mut length)),
                    _ => length += 1,
                }
            }
            lengths
        };
        let lengths = fast_then_slow(3);
        assert!(lengths.len() > 20, "{lengths:?}");
        // From the whole spare down to between a quarter and three quarters of it, 2 MiB net for each MiB written.
        assert!(lengths.iter().all(|length| (7..=28).contains(length)), "{lengths:?}");
        assert!(lengths.iter().any(|length| *length != lengths[0]));
        assert_eq!(lengths, fast_then_slow(3));
        assert_ne!(lengths, fast_then_slow(4));
    }
}
