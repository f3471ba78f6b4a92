//! Whether a server could be started as it is described, as far as that can be told without starting it.

use std::io::{self, Write};

use blkmq_workbench::TextError;

use super::plan::Plan;
use super::warnings::warnings;
use super::{limits, machine, metrics, nbd, placed, queue, ublk};
use crate::control::name::shown;

/// Checks the options and the configuration of a server without opening anything. A running server with the same
/// devices and addresses is no obstacle. Returns what such a server would warn of at its start, by what is known
/// without opening a device.
pub(super) fn check(plan: &Plan) -> Result<Vec<String>, TextError> {
    // Without `..`, so that a field that comes in is not forgotten here. `machine`, `ublk` and `placed` read theirs
    // from the plan; the other fields were checked when they were parsed.
    let Plan {
        nbd,
        ublk: _,
        vhost_user: _,
        tls,
        exports: _,
        placements: _,
        metrics,
        memory,
        drain_timeout,
        stall_timeout,
        control: _,
        run: _,
        identity: _,
        sandbox: _,
        max_connections: _,
    } = plan;
    for given in nbd {
        nbd::address(given, 0o600)?;
    }
    machine::check(plan)?;
    ublk::wishes(plan)?;
    metrics.as_ref().map(metrics::address).transpose()?;
    tls.as_ref().map(nbd::tls).transpose()?;
    limits::drain_timeout(drain_timeout.as_ref())?;
    limits::stall_timeout(stall_timeout.as_ref())?;
    memory.as_ref().map(limits::memory).transpose()?;
    let queues = queue::check_all(plan)?;
    let placements = placed::placements(plan, &queues)?;
    Ok(warnings(plan, &queues, &placements))
}

/// Says in a sentence that a plan is right.
pub(super) fn approve(plan: &Plan, out: &mut dyn Write) -> io::Result<()> {
    let names: Vec<_> = plan.exports.iter().map(|export| shown(&export.name.text)).collect();
    let places = match &plan.nbd[..] {
        [] => "sockets that are handed over, or one of its own".to_owned(),
        given => given.iter().map(|given| given.text.as_str()).collect::<Vec<_>>().join(", "),
    };
    writeln!(out, "good: {} at {places}; whether the devices can be opened is seen when they are", names.join(", "))
}
