//! Threads that are there from the start for what a server does when it ends. At that time the system may give no
//! thread, because its limit is reached. `serve` starts them, and `nbd` and `drain` have work for them.

use std::io;
use std::sync::mpsc::{self, Sender};
use std::thread;

type Task = Box<dyn FnOnce() + Send>;

/// A thread that waits for tasks, and does one after the other. It ends once this value is dropped and they are done.
#[derive(Debug)]
pub(super) struct Standby(Sender<Task>);

impl Standby {
    /// # Errors
    /// The system gives no thread.
    pub(super) fn start(name: &str) -> io::Result<Self> {
        let (tasks, waiting) = mpsc::channel::<Task>();
        let work = move || waiting.into_iter().for_each(|task| task());
        thread::Builder::new().name(name.to_owned()).spawn(work)?;
        Ok(Self(tasks))
    }

    /// Leaves a task to the thread.
    pub(super) fn run(&self, task: impl FnOnce() + Send + 'static) {
        // An error would say that a task before this one has panicked, which has been reported.
        let _ = self.0.send(Box::new(task));
    }
}
