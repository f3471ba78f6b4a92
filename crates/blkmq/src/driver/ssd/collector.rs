//! Garbage collection, as far as readers and writers notice it.

use super::config::Config;
use crate::driver::random;

/// How much is written before the next change between the two states of an SSD that is written to. For some stretch
/// there is enough that is erased, and rows are programmed as they come. Then there is not, and for another stretch
/// each program makes its die copy rows first. How long each stretch is, and how much is copied, is drawn anew each
/// time.
#[derive(Debug)]
pub(super) struct Collector {
    /// Bytes, on average, for which nothing is copied first, and for which something is.
    spare: u64,
    gc_size: u64,
    /// Rows copied for each that is programmed, on average.
    mean_copies: u64,
    /// Bytes until the state changes.
    left: u64,
    /// Rows copied for each that is programmed at present, on average; 0 if none has to be.
    copies: u64,
    random: u64,
}

impl Collector {
    pub(super) fn new(config: &Config) -> Self {
        let mut collector = Self {
            spare: config.spare,
            gc_size: config.gc_size,
            mean_copies: config.gc_copies,
            left: 0,
            copies: 0,
            random: config.seed,
        };
        collector.left = collector.stretch(collector.spare);
        collector
    }

    /// A stretch whose mean is `mean`: any length up to twice of that.
    fn stretch(&mut self, mean: u64) -> u64 {
        random::draw(&mut self.random) % (2 * mean)
    }

    /// A stretch whose mean is the mean of collections. Half of them have the same short length, a quarter are twice as
    /// long, an eighth four times, and so on up to 32 times: what collections find differs that much.
    fn collection(&mut self) -> u64 {
        let pieces = random::draw(&mut self.random).trailing_ones().min(5);
        (2 * self.gc_size / 7) << pieces
    }

    /// A row of `bytes` bytes is programmed. Returns how many rows its die has to copy first.
    pub(super) fn program(&mut self, bytes: u64) -> u64 {
        match self.left.checked_sub(bytes) {
            Some(left) => self.left = left,
            None if self.copies > 0 || self.mean_copies == 0 => {
                self.copies = 0;
                self.left = self.stretch(self.spare);
            }
            None => {
                // From half to one and a half of the mean.
                let range = self.mean_copies | 1;
                self.copies = self.mean_copies.div_ceil(2) + random::draw(&mut self.random) % range;
                self.left = self.collection();
            }
        }
        if self.copies > 0 { random::draw(&mut self.random) % (2 * self.copies + 1) } else { 0 }
    }

    pub(super) fn is_slow(&self) -> bool {
        self.copies > 0
    }

    /// Bytes that can be written before the state changes.
    pub(super) fn left(&self) -> u64 {
        self.left
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    /// Writes 64 GiB in steps of a MiB. Returns the lengths of the stretches, in MiB: first of those in which nothing
    /// has to be copied. Also how many rows were copied for each of the others, on average.
    fn stretches(config: &str) -> ([Vec<u64>; 2], f64) {
        let mut collector = Collector::new(&config.parse().unwrap());
        let (mut lengths, mut length, mut was_slow, mut copied) = ([Vec::new(), Vec::new()], 0, false, 0);
        for _ in 0..64 << 10 {
            let copies = collector.program(MIB);
            assert!(copies <= if collector.is_slow() { 24 } else { 0 }, "{copies}");
            copied += copies;
            if collector.is_slow() != was_slow {
                lengths[usize::from(was_slow)].push(std::mem::take(&mut length));
                was_slow = !was_slow;
            }
            length += 1;
        }
        let slow = lengths[1].iter().sum::<u64>();
        (lengths, copied as f64 / slow as f64)
    }

    /// Red if the SSD copies more or less often than its parameters say, or the same amount each time.
    #[test]
    fn stretches_are_as_long_as_the_parameters_say_on_average() {
        let ([fast, slow], copies) = stretches("spare=64,gc_size=28,gc_copies=8,seed=3");
        let mean = |lengths: &[u64]| lengths.iter().sum::<u64>() / lengths.len() as u64;
        // Some 700 stretches of each kind. Three standard errors are a fifteenth of the mean of a uniform distribution,
        // and a sixth of the other one's. A step adds half a MiB.
        assert!((60..=69).contains(&mean(&fast)), "{}", mean(&fast));
        assert!((23..=34).contains(&mean(&slow)), "{}", mean(&slow));
        assert!((7.0..=9.0).contains(&copies), "{copies}");
        assert!(fast.iter().any(|length| *length < 16) && fast.iter().any(|length| *length > 112), "{fast:?}");
        let count = |range: std::ops::Range<u64>| slow.iter().filter(|length| range.contains(length)).count();
        let (short, long) = (count(7..11), count(200..300));
        assert!(20 * short > 8 * slow.len() && long > 5, "half are short, and some 32 times as long: {short}, {long}");
    }

    #[test]
    fn stretches_follow_from_the_seed() {
        let of = |seed: u64| stretches(&format!("spare=64,gc_size=16,gc_copies=8,seed={seed}"));
        assert_eq!(of(3), of(3));
        assert_ne!(of(3), of(4));
    }

    #[test]
    fn without_copies_nothing_is_ever_slow() {
        let mut collector = Collector::new(&"spare=1,gc_size=1,gc_copies=0".parse().unwrap());
        assert!((0..1000).all(|_| collector.program(MIB) == 0 && !collector.is_slow()));
    }
}
