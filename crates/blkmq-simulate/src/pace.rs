//! At which pace a thread of a load submits and takes back. The thread submits to the modelled block layer, or to the
//! real one of the machine that this program runs on.

/// As in the job (`iodepth`, `iodepth_batch_submit`, `iodepth_batch_complete_min` and `_max`, `iodepth_low`): how many
/// operations are outstanding at most; how many are submitted together; how many a thread waits for at least, and takes
/// back at once at most; and how many may be outstanding when it submits again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Pace {
    pub(crate) depth: u32,
    pub(crate) batch: u32,
    pub(crate) take_min: u32,
    pub(crate) take_max: u32,
    pub(crate) low: u32,
}

/// What a thread has outstanding.
#[derive(Debug, Default)]
pub(crate) struct InFlight {
    pub(crate) outstanding: u32,
    /// How many of these are in the plug.
    plugged: u32,
}

/// A thread of a load. What the thread does is required; when the thread does it is provided.
pub(crate) trait Paced {
    fn pace(&self) -> Pace;

    fn in_flight(&mut self) -> &mut InFlight;

    /// Submits one operation to the plug.
    fn submit_one(&mut self);

    fn flush_plug(&mut self);

    /// Takes one completion, if there is one.
    fn reap(&mut self) -> bool;

    /// Returns whether there may be a completion.
    fn poll(&mut self) -> bool;

    /// Sleeps until one operation is over, or until all are. May end early.
    fn wait(&mut self, for_all: bool);

    /// Whether the run is over.
    fn is_over(&self) -> bool;

    /// Submits as many operations as may be outstanding, and takes back as many as the job says. Calls `before` before
    /// each operation.
    fn go_round(&mut self, before: impl Fn()) {
        let Pace { depth, batch, .. } = self.pace();
        while self.in_flight().outstanding < depth {
            before();
            self.submit_one();
            let in_flight = self.in_flight();
            in_flight.outstanding += 1;
            in_flight.plugged += 1;
            if in_flight.plugged >= batch {
                self.flush();
            }
        }
        self.flush();
        self.take_as_wanted();
    }

    fn flush(&mut self) {
        if std::mem::take(&mut self.in_flight().plugged) > 0 {
            self.flush_plug();
        }
    }

    /// Takes completions as the job says, so that more can be submitted.
    fn take_as_wanted(&mut self) {
        let Pace { take_min, take_max, low, .. } = self.pace();
        let mut wanted = take_min.min(self.in_flight().outstanding);
        while wanted > 0 && !self.is_over() {
            let got = self.take_or_wait(take_max.max(wanted), wanted);
            wanted = wanted.saturating_sub(got);
            let outstanding = self.in_flight().outstanding;
            if wanted == 0 && outstanding > low {
                wanted = take_min.min(outstanding);
            }
        }
    }

    /// Takes back all that is outstanding.
    fn take_all(&mut self) {
        while self.in_flight().outstanding > 0 {
            let outstanding = self.in_flight().outstanding;
            self.take_or_wait(u32::MAX, outstanding);
        }
    }

    /// Takes up to `most` completions. If there are none, waits for one, or for all if it wants all.
    fn take_or_wait(&mut self, most: u32, wanted: u32) -> u32 {
        let got = self.take(most);
        if got == 0 {
            let for_all = wanted >= self.in_flight().outstanding;
            self.wait(for_all);
        }
        got
    }

    /// Takes up to `most` completions. Polls if there are none at the start.
    fn take(&mut self, most: u32) -> u32 {
        let mut got = 0;
        while got < most {
            if self.reap() {
                got += 1;
            } else if got > 0 || !self.poll() {
                break;
            }
        }
        self.in_flight().outstanding -= got;
        got
    }
}
