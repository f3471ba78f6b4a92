//! What a scheduler promises. A row has a target only for schedulers that promise what the row is about.

/// The order in which a scheduler dispatches requests of one direction and one class.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Order {
    /// In the order in which they came.
    Arrival,
    /// In the order in which they came, among those of one submitter.
    Submitter,
    /// By rising sector, and from the oldest request anew when nothing waits ahead.
    Sector,
}

/// Bounds on how long a request waits for the device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Deadlines {
    /// Nanoseconds: how long a read may wait before it goes first.
    pub read_ns: u64,
    /// The same for a write.
    pub write_ns: u64,
    /// Requests of one batch. An expired request may have to wait for one batch.
    pub batch: u64,
    /// How many batches of reads may pass waiting writes.
    pub starved: u64,
    /// Nanoseconds: how long a request of a lower class may wait for those of a higher class.
    pub aging_ns: u64,
}

/// A knob of a scheduler, and a value of it.
pub type Knob = (&'static str, &'static str);

/// How quick reads stay beside a flood of writes, which loses a tenth of its throughput at most.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum QuickReads {
    /// 99 of 100 take no longer than twice as many nanoseconds. A scheduler that acts on latencies acts when they are
    /// too long.
    Within(u64),
    /// The p99 is so many times shorter than without a scheduler, or no longer than twice that of a reader alone.
    Times(u32),
}

/// What a client has a share of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Resource {
    /// The bytes that the device does.
    Bytes,
    /// The device's time: what a client gets counts as a part of what it would get alone.
    Time,
}

/// How clients share a device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shares {
    /// What is shared: one of these, as the device makes the scheduler charge.
    pub of: &'static [Resource],
    /// Knobs that are set where shares are judged: what prefers one client to another one whatever their weights.
    pub knobs: &'static [Knob],
    /// Knobs besides, where there are many clients: with these, a client's turn has 128 KiB at most. So every client
    /// has many turns in a run of some minutes.
    pub short_turns: &'static [Knob],
    /// Only of a device that is full: each client has enough outstanding to fill the device alone, and has had so for
    /// this many nanoseconds. `None`: always.
    pub once_full: Option<u64>,
}

impl Shares {
    /// Of bytes, whatever the knobs.
    pub const OF_BYTES: Self = Self { of: &[Resource::Bytes], knobs: &[], short_turns: &[], once_full: None };
}

/// What a scheduler promises to the clients behind it.
///
/// Two things are asked of every scheduler, and are not listed here: it does not delay a request that is alone, and the
/// device does not idle while requests wait, unless the scheduler says that it lets the device idle on purpose.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Promises {
    /// The order of dispatch, and how large the mean rank error may be: as many requests as one batch has.
    pub order: Option<(Order, u64)>,
    /// No request waits longer than this.
    pub deadlines: Option<Deadlines>,
    /// How quick reads stay beside a flood of writes.
    pub quick_reads: Option<QuickReads>,
    /// Clients and groups get the device by their weights.
    pub shares: Option<Shares>,
    /// An application starts under load nearly as quickly as without.
    pub quick_start: bool,
    /// A client of a higher class gets the device within 100 ms.
    pub classes: bool,
    /// A client that asks for less than its share gets what it asks for.
    pub isolation: bool,
    /// It lets the device idle now and then, because that pays later. Such idling has no bound.
    pub idles: bool,
}

impl Promises {
    /// No promise: what `none` and an unknown scheduler give.
    pub const NOTHING: Self = Self {
        order: None,
        deadlines: None,
        quick_reads: None,
        shares: None,
        quick_start: false,
        classes: false,
        isolation: false,
        idles: false,
    };

    /// What mq-deadline promises with its default knobs, which are Linux's.
    pub const MQ_DEADLINE: Self = Self {
        order: Some((Order::Sector, 16)),
        deadlines: Some(Deadlines {
            read_ns: 500_000_000,
            write_ns: 5_000_000_000,
            batch: 16,
            starved: 2,
            aging_ns: 10_000_000_000,
        }),
        classes: true,
        ..Self::NOTHING
    };

    /// What Kyber promises with its default knobs: reads within their target of 2 ms beside writes, and that requests
    /// of one submitter do not overtake each other.
    pub const KYBER: Self =
        Self { order: Some((Order::Submitter, 1)), quick_reads: Some(QuickReads::Within(2_000_000)), ..Self::NOTHING };

    /// What BFQ promises. Reads beside a flood are as quick as they were published to be. Shares are those of BFQ's own
    /// suite of benchmarks, which turns `low_latency` off for them.
    pub const BFQ: Self = Self {
        quick_reads: Some(QuickReads::Times(20)),
        shares: Some(Shares {
            of: &[Resource::Bytes, Resource::Time],
            knobs: &[("iosched/low_latency", "0")],
            short_turns: &[("iosched/max_budget", "256")],
            once_full: None,
        }),
        quick_start: true,
        classes: true,
        isolation: true,
        idles: true,
        ..Self::NOTHING
    };

    /// What fair promises. It learns in some tenths of a second how few requests keep a device busy. Reads are
    /// quick beside a flood, and classes strict, on some devices only.
    pub const FAIR: Self = Self {
        shares: Some(Shares { of: &[Resource::Time], knobs: &[], short_turns: &[], once_full: Some(1_000_000_000) }),
        ..Self::NOTHING
    };

    /// The promises of a scheduler that blkmq knows by this name; nothing for any other.
    #[must_use]
    pub fn of(scheduler: &str) -> Self {
        match scheduler {
            "mq-deadline" => Self::MQ_DEADLINE,
            "kyber" => Self::KYBER,
            "bfq" => Self::BFQ,
            "fair" => Self::FAIR,
            _ => Self::NOTHING,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Red if a scheduler of the registry has no promises here: the judge would have no targets for it.
    #[test]
    fn every_scheduler_promises_something_and_none_does_not() {
        for name in blkmq::scheduler_names() {
            assert_eq!(Promises::of(name) == Promises::NOTHING, name == "none", "{name}");
        }
    }
}
