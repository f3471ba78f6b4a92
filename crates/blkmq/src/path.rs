//! The way of a request from its plug to the driver, for every scheduler and for none.
//!
//! `insert` takes a plug. Requests that may pass the scheduler by do so in `bypass`. The others go to `order`, or
//! without a scheduler straight to the device. `dispatch` chooses, `requeue` parks what the driver gave back, and
//! `drive` does all of this in turn until nothing can go on. Submitters and the threads of `background` call in here.

mod background;
mod bypass;
mod dispatch;
mod drive;
mod insert;
mod requeue;

pub use background::Background;
pub(crate) use insert::refuse_nowait;
