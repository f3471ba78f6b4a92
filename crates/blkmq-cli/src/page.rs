//! Reports on a page: `--report FILE.html`.

pub(crate) use blkmq_program::page::{Page, bars, table};

use crate::target::Time;

/// What the figures of a run depend on.
pub(crate) fn modelled(device: &str, clock: Time) -> String {
    match clock {
        Time::Real => format!(
            "Times, CPU times and rates were measured on the machine above. The device '{device}' is part of blkmq: the \
             time that it takes for an operation follows from its parameters."
        ),
        Time::Virtual => format!(
            "Times are virtual: they follow from the jobs, the scheduler and the parameters of the device '{device}', a \
             model, and are the same on every machine."
        ),
    }
}
