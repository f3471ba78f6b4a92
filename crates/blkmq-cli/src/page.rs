//! Reports on a page: `--report FILE.html`.

pub(crate) use blkmq_program::page::{Page, bars, table};

use blkmq_workbench::device::is_real;

use crate::device;
use crate::target::Time;

/// What the figures of a run on these devices, which may be the same, depend on.
pub(crate) fn modelled(devices: &[&str], clock: Time) -> String {
    let mut each = devices.to_vec();
    each.dedup();
    let on = |device: &str| match (clock, is_real(&device::name(device))) {
        (Time::Virtual, _) => format!(
            " Times are virtual: they follow from the jobs, the scheduler and the parameters of the device '{device}', a \
             model, and are the same on every machine."
        ),
        (Time::Real, false) => format!(
            " The device '{device}' is part of blkmq: the time that it takes for an operation follows from its parameters."
        ),
        (Time::Real, true) => format!(
            " The device '{device}' is real storage: the time that it takes for an operation is its own, and was measured."
        ),
    };
    let real = "Times, CPU times and rates were measured on the machine above.";
    let begin = if clock == Time::Real { real } else { "" };
    let all: String = std::iter::once(begin.to_owned()).chain(each.into_iter().map(on)).collect();
    all.trim_start().to_owned()
}
