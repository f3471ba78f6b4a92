//! How time passes in a world, and numbers that are drawn by their magnitude.

use blkmq_vcpu::Random;

/// How time passes in a world.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Pace {
    /// Any pace.
    Any,
    /// Timeouts are long and stay long: no timeout rescues a sleeper that was not woken.
    Patient,
    /// Clients come together once in this many ns, and sleep for most of the time.
    Together(u64),
}

impl Pace {
    /// A value for the knob `io_timeout`.
    pub(crate) fn io_timeout_ms(self, random: &mut Random) -> u32 {
        match self {
            Self::Any => io_timeout_ms(random),
            Self::Patient => long_io_timeout_ms(random),
            Self::Together(_) => any_io_timeout_ms(random),
        }
    }

    /// The longest time between two changes, in ns.
    pub(crate) fn pause_ns(self, random: &mut Random) -> u64 {
        match self {
            Self::Together(period_ns) => 1000 * magnitude(random, 2 * period_ns / 1000),
            Self::Any | Self::Patient => 1000 * magnitude(random, 1 << 14),
        }
    }

    /// The longest time between two changes while no operation is taken, in ns.
    pub(crate) const fn most_pause_ns(self) -> u64 {
        match self {
            Self::Together(period_ns) => 2 * period_ns,
            Self::Any | Self::Patient => 30_000_000,
        }
    }
}

/// A number from 1 to `most`. Each order of magnitude is as likely as any other.
pub(crate) fn magnitude(random: &mut Random, most: u64) -> u64 {
    let bits = u64::from(most.ilog2()) + 1;
    let high = 1 << random.below(bits);
    random.within(high, 2 * high - 1).min(most)
}

/// A timeout in ms. Many are about as long as the slower requests take, so that completions meet the timeout scan.
fn io_timeout_ms(random: &mut Random) -> u32 {
    if random.one_in(2) { random.within(1, 4) as u32 } else { 4 + magnitude(random, 250) as u32 }
}

/// A timeout in ms of a world with clients that come together. A thread that waits there sleeps, however long the
/// timeout is. While a request takes long, all threads look at it once in each timeout.
fn any_io_timeout_ms(random: &mut Random) -> u32 {
    if random.one_in(4) { 6000 } else { magnitude(random, 6000).max(20) as u32 }
}

/// A timeout in ms of a world in which no timeout rescues a sleeper that was not woken.
fn long_io_timeout_ms(random: &mut Random) -> u32 {
    random.within(2000, 30_000) as u32
}

/// A value for the knob `wbt_lat_usec`. Numbers are about what reads take here.
pub(crate) fn wbt_lat_usec(random: &mut Random) -> i64 {
    match random.below(4) {
        0 => 0,
        1 => magnitude(random, 200) as i64,
        _ => -1,
    }
}

/// How often the depths of tokens were quartered beforehand. There are 256 tokens for reads at first, which are hardly
/// ever all out in a world; after four times there is one.
pub(crate) fn shallow(random: &mut Random) -> u32 {
    random.below(5) as u32
}
