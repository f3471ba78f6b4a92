//! The workbench: runs fio's jobs, replays traces of Linux, and says where blkmq chooses otherwise than Linux.
//!
//! - Jobs: a [`JobFile`] is read into [`job`]s, which [`mod@bench`] runs; [`compare`] runs several variants in turn and
//!   says how they differ as a [`Ratio`]. Results go out as fio's JSON ([`Document`]) or as a page ([`report`]).
//! - Traces: [`blktrace`] reads what Linux recorded. A [`Load`] is the trace's operations, which [`play()`] submits to
//!   a queue. [`order`] asks a scheduler alone for the choices that Linux's made.
//! - Quality: [`judge`](mod@judge) says what a scheduler is worth to the clients behind it.
//!
//! Programs call in at the names of this page. Inside, `job`, `blktrace` and `device` are imported by the others and
//! import nothing.

/// A struct whose defaults stand beside its fields.
macro_rules! with_defaults {
    ($(#[$of_struct:meta])* $vis:vis struct $name:ident {
        $($(#[$of_field:meta])* $field_vis:vis $field:ident: $type:ty = $default:expr,)*
    }) => {
        $(#[$of_struct])*
        $vis struct $name {
            $($(#[$of_field])* $field_vis $field: $type,)*
        }

        impl Default for $name {
            fn default() -> Self {
                Self { $($field: $default,)* }
            }
        }
    };
}

pub mod bench;
pub mod blktrace;
mod buffers;
mod classes;
pub mod compare;
pub mod device;
mod fio;
pub mod job;
mod jobfile;
pub mod judge;
mod latency;
mod load;
pub mod oracle;
pub mod order;
mod play;
mod ratio;
pub mod report;
mod settings;
mod text;
mod think;
mod trace_files;

pub use classes::Classes;
pub use fio::{Document, Reported, Subject, reported};
pub use job::Job;
pub use jobfile::{JobFile, Mode, Surroundings, System};
pub use latency::{Latencies, Percentiles};
pub use load::{Load, Source, Traced};
pub use play::{NoSpeed, Outcome, PlayError, Speed, play};
pub use ratio::{MIN_ROUNDS, Ratio, Spread, Turns, WIDTH};
pub use settings::{Settings, assignment};
pub use text::{TextError, nearest};
pub use trace_files::TraceFiles;
