//! Traces written by hand.

/// A trace under construction, a microsecond between two records.
#[derive(Default)]
pub(crate) struct Trace {
    pub(crate) bytes: Vec<u8>,
    records: u32,
    time: u64,
}

impl Trace {
    /// A trace of these records.
    pub(crate) fn of(records: &str) -> Self {
        Self::default().then(records)
    }

    /// Adds records in the notation of `data/replay.txt`. Behind `@` stand the microseconds from the beginning at which
    /// the next one is written.
    pub(crate) fn then(self, records: &str) -> Self {
        let number = |text: &str| text.parse::<u64>().unwrap_or_else(|_| panic!("no number {text}"));
        records.split_whitespace().fold(self, |trace, record| {
            if let Some(us) = record.strip_prefix('@') {
                return trace.at(number(us));
            }
            let (pid, record) = record.split_once(':').unwrap_or(("1", record));
            let (what, place) = record.split_at(record.find(|c: char| c.is_ascii_digit()).unwrap_or(record.len()));
            let (sector, sectors) = place.split_once('+').unwrap_or(("0", place));
            trace.add(number(pid) as u32, what, number(sector), number(sectors) as u32)
        })
    }

    /// The next record is written so many microseconds after the beginning.
    pub(crate) fn at(mut self, us: u64) -> Self {
        self.time = us * 1000 - 1000;
        self
    }

    /// Adds the record that blkparse would print as `what sector + sectors`, of task `pid`. `what` is the action's
    /// letter and what kind of I/O it is about: nothing for a read, `w` for a write, `d` for a discard, `f` for a
    /// flush. For `U`, `sectors` counts the requests in the plug.
    pub(crate) fn add(mut self, pid: u32, what: &str, sector: u64, sectors: u32) -> Self {
        let action = match &what[..1] {
            "Q" => 1,
            "M" => 2,
            "F" => 3,
            "G" => 4,
            "D" => 7,
            "C" => 8,
            "P" => 9,
            "U" => 10,
            "I" => 12,
            "X" => 13,
            other => panic!("no action {other}"),
        };
        let category: u32 = match &what[1..] {
            "" => 1,
            "w" => 2,
            "f" => 2 | 1 << 2,
            "d" => 2 | 1 << 13,
            other => panic!("no category {other}"),
        };
        let payload = if action == 10 { u64::from(sectors).to_be_bytes().to_vec() } else { Vec::new() };
        let bytes = if action == 10 { 0 } else { sectors.wrapping_mul(512) };
        self.put(pid, category << 16 | action, sector, bytes, &payload);
        self
    }

    /// Adds a text that a program wrote into the trace, on behalf of a control group.
    pub(crate) fn message(mut self, text: &str) -> Self {
        let payload = [&7_u64.to_le_bytes(), text.as_bytes()].concat();
        self.put(0, 1 << 26 | 0x102, 0, 0, &payload);
        self
    }

    fn put(&mut self, pid: u32, action: u32, sector: u64, bytes: u32, payload: &[u8]) {
        self.records += 1;
        self.time += 1000;
        for word in [0x6561_7407, self.records] {
            self.bytes.extend(u32::to_le_bytes(word));
        }
        for long in [self.time, sector] {
            self.bytes.extend(u64::to_le_bytes(long));
        }
        for word in [bytes, action, pid, 0, 0, (payload.len() as u32) << 16] {
            self.bytes.extend(u32::to_le_bytes(word));
        }
        self.bytes.extend(payload);
    }
}
