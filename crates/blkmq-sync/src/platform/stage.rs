//! The stages of a request's way, so that what a thread does by itself can be told apart by them.
//!
//! A product build does nothing here. On virtual CPUs a stage takes the time that the run's options give it. With
//! `--cfg stages` it measures: `scripts/stages` shows what each stage takes on the machine.

/// What a thread does with requests, in the order of their way.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Stage {
    /// Bios become requests in a plug; what the application does between two plugs is in it.
    Submit,
    /// Requests get tags and start without being put into the scheduler.
    Start,
    /// Requests are made ready to be left with another thread.
    Leave,
    /// Requests are put into the scheduler. Under the lock.
    Insert,
    /// The scheduler chooses requests. Under the lock.
    Choose,
    /// Requests are put in the scheduler's order without being put into the scheduler. Under the lock.
    Through,
    /// Requests that were chosen get ready for the driver.
    Ready,
    /// The driver gets requests, and works on them.
    Issue,
    /// Requests that the driver has finished go to the lists of their submitters.
    Complete,
    /// The application takes back its operations.
    Reap,
    /// A poll finds nothing to take back. What other stages the poll has had is not in it. A look is for one thing.
    Look,
}

impl Stage {
    /// All stages.
    pub const ALL: [Self; 11] = [
        Self::Submit,
        Self::Start,
        Self::Leave,
        Self::Insert,
        Self::Choose,
        Self::Through,
        Self::Ready,
        Self::Issue,
        Self::Complete,
        Self::Reap,
        Self::Look,
    ];

    /// The name in lower case.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Submit => "submit",
            Self::Start => "start",
            Self::Leave => "leave",
            Self::Insert => "insert",
            Self::Choose => "choose",
            Self::Through => "through",
            Self::Ready => "ready",
            Self::Issue => "issue",
            Self::Complete => "complete",
            Self::Reap => "reap",
            Self::Look => "look",
        }
    }
}

/// What this thread has done since the last such call was `stage`, for so many requests. For none of them, it belongs
/// to what comes next.
#[inline(always)]
pub fn stage(stage: Stage, requests: usize) {
    #[cfg(virtual_cpus)]
    blkmq_vcpu::stage(stage as usize, requests);
    #[cfg(all(stages, not(virtual_cpus)))]
    measured::end(stage, requests);
    #[cfg(not(any(virtual_cpus, stages)))]
    let _ = (stage, requests);
}

#[cfg(all(stages, not(virtual_cpus)))]
pub use measured::take_stages;

#[cfg(all(stages, not(virtual_cpus)))]
mod measured {
    use std::cell::Cell;
    use std::time::{Duration, Instant};

    use super::Stage;

    const NR_STAGES: usize = Stage::ALL.len();

    thread_local! {
        static LAST: Cell<Option<Instant>> = const { Cell::new(None) };
        static SUMS: Cell<[(Duration, u64, u64); NR_STAGES]> = const { Cell::new([(Duration::ZERO, 0, 0); NR_STAGES]) };
    }

    pub(super) fn end(stage: Stage, requests: usize) {
        if requests == 0 {
            return;
        }
        if let Some(last) = LAST.get() {
            let mut sums = SUMS.get();
            let (time, batches, all) = &mut sums[stage as usize];
            *time += last.elapsed();
            (*batches, *all) = (*batches + 1, *all + requests as u64);
            SUMS.set(sums);
        }
        // Read anew, so that what this function does belongs to no stage.
        LAST.set(Some(Instant::now()));
    }

    /// The time, the batches and the requests of each stage on this thread since this was last called.
    #[must_use]
    pub fn take_stages() -> [(Duration, u64, u64); NR_STAGES] {
        LAST.set(None);
        SUMS.replace([(Duration::ZERO, 0, 0); NR_STAGES])
    }
}
