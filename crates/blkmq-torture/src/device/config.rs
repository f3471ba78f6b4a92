//! What a world's device is like, and which faults it has.

use blkmq_vcpu::Random;
use blkmq_virtual::Limits;
use blkmq_virtual::driver::Topology;

use crate::pace::magnitude;

/// How often something happens: never, or on average once in this many times.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Rate(u64);

impl Rate {
    /// Never.
    pub(crate) const NEVER: Self = Self(0);

    /// Once in `n` times on average.
    const fn one_in(n: u64) -> Self {
        Self(n)
    }

    /// Whether it happens this time.
    pub(crate) const fn strikes(self, random: &mut Random) -> bool {
        self.0 > 0 && random.one_in(self.0)
    }

    /// In half of the worlds never. In the others once in `low` to `high` times.
    fn sometimes(random: &mut Random, low: u64, high: u64) -> Self {
        if random.one_in(2) { Self(random.within(low, high)) } else { Self::NEVER }
    }
}

/// A device.
#[derive(Debug, Clone)]
pub(crate) struct DeviceConfig {
    /// What it accepts.
    pub(crate) limits: Limits,
    /// Its hardware queues at the start.
    pub(crate) topology: Topology,
    /// Whether several threads may call the device at once.
    pub(crate) is_concurrent: bool,
    /// Whether each hardware queue belongs to one submitter.
    pub(crate) is_owned: bool,
    /// How long requests take.
    pub(crate) timing: Timing,
    /// What goes wrong.
    pub(crate) faults: Faults,
}

/// How long a device takes for its requests.
#[derive(Debug, Clone)]
pub(crate) struct Timing {
    /// Percent of the requests that are finished in the call in which they are offered.
    pub(crate) at_once: u64,
    /// The average time of a request, in ns. Hardware queue i has entry i modulo the length.
    pub(crate) mean_ns: Vec<u64>,
    /// How often a request takes a hundred times as long, but at most 2 ms.
    pub(crate) slow: Rate,
    /// How often a request takes up to [`LONGEST_NS`], with each order of magnitude equally likely.
    pub(crate) long: Rate,
    /// Whether a hardware queue has its requests worked on one after the other.
    pub(crate) limit: Option<Limit>,
    /// Whether the requests of a hardware queue complete in the order in which they were started.
    pub(crate) in_order: bool,
    /// The timeout at the start, in ns: the time after which the queue asks about a request.
    pub(crate) timeout_ns: u64,
}

/// What a hardware queue can do at most, whatever it is asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Limit {
    /// The time of one request, in ns, in which no other one is worked on.
    pub(crate) each_ns: u64,
    /// How long a request takes after that, in ns.
    pub(crate) after_ns: u64,
    /// The average time between two changes of the speed, in ns. 0: the speed stays.
    pub(crate) jumps_ns: u64,
}

/// What a device does wrong.
#[derive(Debug, Clone)]
pub(crate) struct Faults {
    /// How often a request fails.
    pub(crate) fails: Rate,
    /// How often a request is given back for another try.
    pub(crate) gives_back: Rate,
    /// After how many requests a hardware queue takes no more for `busy_ns`.
    pub(crate) busy: Rate,
    /// How long a hardware queue stays busy, in ns.
    pub(crate) busy_ns: u64,
    /// The most requests that the device works on at once. The device refuses further ones.
    pub(crate) room: usize,
    /// How often a request never completes by itself.
    pub(crate) hangs: Rate,
    /// How often such a request completes after all, at about the time when the queue asks about it.
    pub(crate) too_late: Rate,
    /// How often the device gives up a request when it is asked about it.
    pub(crate) gives_up: Rate,
    /// How often a request is completed once more after it is over.
    pub(crate) completes_again: Rate,
    /// Average time between two losses of power, in ns. 0: the power never goes.
    pub(crate) power_ns: u64,
    /// How often a change of the hardware queues is refused.
    pub(crate) refuses_topology: Rate,
}

impl Faults {
    /// A device that does nothing wrong.
    pub(crate) const NONE: Self = Self {
        fails: Rate::NEVER,
        gives_back: Rate::NEVER,
        busy: Rate::NEVER,
        busy_ns: 0,
        room: usize::MAX,
        hangs: Rate::NEVER,
        too_late: Rate::NEVER,
        gives_up: Rate::NEVER,
        completes_again: Rate::NEVER,
        power_ns: 0,
        refuses_topology: Rate::NEVER,
    };

    /// Draws some of the faults, or none: a fault may hide a bug, which is then found in a world without that fault.
    fn draw(random: &mut Random, io_timeout_ms: u32, sleeps: bool) -> Self {
        if random.one_in(8) {
            return Self::NONE;
        }
        Self {
            fails: Rate::sometimes(random, 2, 100),
            gives_back: Rate::sometimes(random, 2, 50),
            busy: Rate::sometimes(random, 3, 100),
            busy_ns: long_or_short(random, 100, 14),
            // A thread that was refused tries again and again, also while the device hangs for long. So the room has a
            // bound only where threads do not sleep.
            room: if !sleeps && random.one_in(4) { random.within(1, 16) as usize } else { usize::MAX },
            // A thread that waits for a request that hangs polls now and then. So the longer the timeout is, the fewer
            // requests hang.
            hangs: match u64::from(io_timeout_ms) {
                _ if sleeps => Rate::sometimes(random, 50, 1000),
                1000.. => Rate::NEVER,
                ms if random.one_in(2) => Rate(long_or_short(random, 5, 6).max(ms)),
                _ => Rate::NEVER,
            },
            too_late: *random.pick(&[Rate::NEVER, Rate::one_in(1), Rate::one_in(2)]),
            gives_up: *random.pick(&[Rate::NEVER, Rate::one_in(1), Rate::one_in(2), Rate::one_in(4)]),
            completes_again: Rate::sometimes(random, 2, 20),
            power_ns: if random.one_in(3) { long_or_short(random, 50_000, 8) } else { 0 },
            refuses_topology: Rate::sometimes(random, 1, 3),
        }
    }
}

/// The longest time of a request while the threads that wait for it sleep, in ns.
const LONGEST_NS: u64 = 8_000_000_000;

/// The longest time of a slow request, in ns. A thread that polls for the request makes a step at least every 100 ns.
const SLOW_NS: u64 = 2_000_000;

impl Timing {
    /// How long a request takes that is started on this hardware queue, in ns.
    pub(crate) fn time_ns(&self, hctx: u16, random: &mut Random) -> u64 {
        if self.long.strikes(random) {
            return magnitude(random, LONGEST_NS);
        }
        let mean_ns = self.mean_ns[usize::from(hctx) % self.mean_ns.len()];
        let time_ns = if mean_ns > 0 { random.around(mean_ns) } else { 0 };
        if self.slow.strikes(random) { (100 * time_ns).min(SLOW_NS) } else { time_ns }
    }

    /// How long a request takes that completes at about the time when the queue asks about it, in ns.
    pub(crate) fn too_late_ns(&self, random: &mut Random) -> u64 {
        let magnitude = random.below(14);
        let around = random.below(1 << magnitude);
        if random.one_in(2) { self.timeout_ns + around } else { self.timeout_ns.saturating_sub(around) }
    }

    fn draw(random: &mut Random, io_timeout_ms: u32, sleeps: bool) -> Self {
        let at_once = match random.below(6) {
            0 => 100,
            1 | 2 => random.below(100),
            _ => 0,
        };
        let mut mean_ns = vec![mean(random)];
        if random.one_in(4) {
            mean_ns.extend((1..8).map(|_| mean(random)));
        }
        Self {
            at_once,
            mean_ns,
            slow: Rate::sometimes(random, 5, 200),
            limit: None,
            long: if sleeps { Rate::sometimes(random, 20, 500) } else { Rate::NEVER },
            in_order: random.one_in(3),
            timeout_ns: u64::from(io_timeout_ms) * 1_000_000,
        }
    }
}

/// A mean time from 0 ns (done at the next look) to 256 us.
fn mean(random: &mut Random) -> u64 {
    if random.one_in(8) { 0 } else { long_or_short(random, 500, 8) }
}

/// A number from `least` to twice `least`, doubled up to `most` times. Small numbers are as frequent as large ones.
fn long_or_short(random: &mut Random, least: u64, most: u64) -> u64 {
    random.within(least, 2 * least) << random.below(most + 1)
}

impl DeviceConfig {
    /// Draws a device. `sleeps`: the threads that wait for the device sleep, so that its requests may take long.
    pub(crate) fn draw(random: &mut Random, io_timeout_ms: u32, sleeps: bool) -> Self {
        let mut config = Self {
            limits: limits(random),
            topology: topology(random),
            is_concurrent: random.one_in(3),
            is_owned: false,
            timing: Timing::draw(random, io_timeout_ms, sleeps),
            faults: Faults::draw(random, io_timeout_ms, sleeps),
        };
        if sleeps {
            // All threads that sleep wake again and again to retry a request that the device gave back, also while
            // another request takes long. So a device has only one of the two.
            if random.one_in(2) {
                config.faults.gives_back = Rate::NEVER;
            } else {
                (config.faults.hangs, config.timing.long) = (Rate::NEVER, Rate::NEVER);
            }
        }
        config
    }
}

impl DeviceConfig {
    /// The same device without faults, with one short hardware queue. Its requests take time, and never long.
    pub(crate) fn steady(mut self, random: &mut Random) -> Self {
        self.topology =
            Topology { default_queues: 1, read_queues: 0, poll_queues: 0, depth: *random.pick(&[1, 1, 2, 4, 8]) };
        self.timing = Timing {
            at_once: 0,
            mean_ns: vec![random.within(5_000, 100_000)],
            slow: Rate::NEVER,
            long: Rate::NEVER,
            ..self.timing
        };
        self.faults = Faults::NONE;
        self
    }

    /// The same device with a limit to what it can do, which is less than CPUs ask for whose steps take so many ns. In
    /// most worlds its speed jumps, up to four times as slow.
    pub(crate) fn limited(mut self, random: &mut Random, step_ns: u64) -> Self {
        let each_ns = step_ns * (random.within(300, 600) << random.below(2));
        let after_ns = if random.one_in(2) { 0 } else { random.below(4 * each_ns) };
        let jumps_ns = if random.one_in(3) { 0 } else { each_ns * long_or_short(random, 50, 4) };
        self.timing = Timing {
            at_once: 0,
            slow: Rate::NEVER,
            long: Rate::NEVER,
            limit: Some(Limit { each_ns, after_ns, jumps_ns }),
            ..self.timing
        };
        self
    }

    /// The same device with room for more than it can work on at a time.
    pub(crate) fn deep(mut self, random: &mut Random) -> Self {
        self.topology.depth = *random.pick(&[16, 32, 64, 128]);
        self
    }

    /// A disk without faults that is as large as a device can be here, with one short hardware queue.
    pub(crate) fn disk(self, random: &mut Random) -> Self {
        let mut disk = self.steady(random);
        (disk.limits.rotational, disk.limits.capacity_sectors) = (true, 8192);
        disk.topology.depth = *random.pick(&[4, 16, 64]);
        disk
    }

    /// The same device with owned hardware queues: each of this many submitters owns one of each type.
    pub(crate) fn owned_by(mut self, nr_owners: u16) -> Self {
        let of_type = |nr: u16| if nr == 0 { 0 } else { nr.max(nr_owners) };
        let Topology { default_queues, read_queues, poll_queues, depth } = self.topology;
        self.topology = Topology {
            default_queues: of_type(default_queues),
            read_queues: of_type(read_queues),
            poll_queues: of_type(poll_queues),
            depth,
        };
        self.is_owned = true;
        self
    }
}

/// Draws limits with small numbers, so that operations often overlap, touch and are split.
fn limits(random: &mut Random) -> Limits {
    let logical_block_size = *random.pick(&[512, 512, 512, 1024, 4096]);
    let block = logical_block_size / 512;
    // A whole number of blocks, for blocks of any size.
    let capacity_sectors = long_or_short(random, 64, 3) * 8;
    let max_sectors = (long_or_short(random, 4, 5) as u32).max(block);
    let max_segment_size = if random.one_in(3) { logical_block_size * random.within(1, 8) as u32 } else { 65536 };
    let boundary_sectors = if random.one_in(3) { block * random.within(4, 40) as u32 } else { 0 };
    let of_blocks = |random: &mut Random| if random.one_in(2) { 0 } else { block * random.within(1, 128) as u32 };
    Limits {
        capacity_sectors,
        missing_bytes: 0,
        logical_block_size,
        physical_block_size: logical_block_size,
        max_sectors,
        max_segments: long_or_short(random, 1, 3) as u16,
        max_segment_size,
        boundary_sectors,
        max_discard_sectors: of_blocks(random),
        max_discard_segments: random.within(1, 8) as u16,
        max_write_zeroes_sectors: of_blocks(random),
        write_cache: !random.one_in(3),
        fua: random.one_in(2),
        no_flush: false,
        rotational: random.one_in(2),
        pages_align: 0,
        read_only: false,
    }
}

fn topology(random: &mut Random) -> Topology {
    Topology {
        default_queues: *random.pick(&[1, 1, 2, 3, 4]),
        read_queues: *random.pick(&[0, 0, 1, 2]),
        poll_queues: *random.pick(&[0, 0, 1, 2]),
        depth: *random.pick(&[1, 2, 3, 4, 8, 16, 32, 64, 128]),
    }
}
