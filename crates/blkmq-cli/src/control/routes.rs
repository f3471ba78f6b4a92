//! Which path leads to what; `docs/control.md` has the table.

use std::collections::BTreeMap;
use std::thread;
use std::time::{Duration, Instant};

use blkmq::{Change, QUEUE_KNOBS, QueueError, RequestQueue};
use blkmq_sched::SCHEDULERS;
use percent_encoding::percent_decode_str;
use serde_json::json;

use super::http::{Answer, BAD_REQUEST, CONFLICT, NOT_FOUND, Request, UNAVAILABLE};
use super::schema::{Health, Queue, Stat, Value};
use super::shares::idle_weights;
use super::{Served, State, Then, handover, metrics, tenants};

/// How long a change waits for the queue to drain. Meanwhile nothing enters the queue, so this must not be forever.
const DRAIN_LIMIT: Duration = Duration::from_secs(10);
/// How often a change looks whether the queue has drained.
const DRAIN_STEP: Duration = Duration::from_micros(100);

/// The answer, and what follows it.
pub(super) fn answer(state: &State, request: &Request) -> (Answer, Then) {
    let decoded: Result<Vec<String>, _> = request.path[1..]
        .split('/')
        .map(|part| percent_decode_str(part).decode_utf8().map(|text| text.into_owned()))
        .collect();
    let Ok(parts) = decoded else {
        return (Answer::refusal(BAD_REQUEST, "the path is not UTF-8"), Then::GoOn);
    };
    let parts: Vec<&str> = parts.iter().map(String::as_str).collect();
    let is_get = request.method == "GET";
    let get = |make: &dyn Fn() -> Answer| if is_get { make() } else { Answer::not_allowed("GET") };
    let of = |name: &str, make: &dyn Fn(&Served) -> Answer| {
        state.queues.iter().find(|queue| queue.name == name).map_or_else(|| no_queue(state, name), make)
    };
    let answer = match parts[..] {
        ["queues"] => get(&|| Answer::json(&state.queues.iter().map(describe).collect::<Vec<_>>())),
        ["queues", name] => of(name, &|queue| get(&|| Answer::json(&describe(queue)))),
        ["queues", name, "stat"] => {
            of(name, &|queue| get(&|| Answer::json(&Stat::of(name, &queue.q, &state.exports.answered()))))
        }
        ["queues", name, "dump"] => of(name, &|queue| get(&|| Answer::text(metrics::PLAIN, queue.q.dump()))),
        ["queues", name, "knobs", ref knob @ ..] if !knob.is_empty() => {
            of(name, &|queue| self::knob(queue, &knob.join("/"), request))
        }
        ["queues", name, "clients"] => of(name, &|queue| get(&|| Answer::json(&tenants::shares(queue)))),
        ["queues", name, "clients", client, knob] => {
            of(name, &|queue| tenants::client_knob(queue, client, knob, request))
        }
        ["queues", name, "groups"] => of(name, &|queue| get(&|| Answer::json(&tenants::groups(queue)))),
        ["queues", name, "groups", path] => of(name, &|queue| tenants::group(queue, path, request)),
        ["queues", name, "groups", path, knob] => of(name, &|queue| tenants::group_knob(queue, path, knob, request)),
        ["clients"] => get(&|| Answer::json(&state.exports.connections())),
        ["metrics"] => get(&|| Answer::text(metrics::KIND, metrics::text(state))),
        ["stop"] if request.method == "POST" => return (Answer::accepted(&json!({ "stopping": true })), Then::Stop),
        ["replace"] if request.method == "POST" => return replace(state),
        ["stop" | "replace"] => Answer::not_allowed("POST"),
        _ => Answer::refusal(
            NOT_FOUND,
            "there is no such path; begin with /queues, /clients, /metrics, /replace or /stop",
        ),
    };
    (answer, Then::GoOn)
}

/// The answer where the metrics can be read and nothing can be changed.
pub(super) fn metrics_alone(state: &State, request: &Request) -> (Answer, Then) {
    let answer = match (request.path.as_str(), request.method.as_str()) {
        ("/metrics", "GET") => Answer::text(metrics::KIND, metrics::text(state)),
        ("/metrics", _) => Answer::not_allowed("GET"),
        _ => Answer::refusal(NOT_FOUND, "there is only /metrics here; the control socket has the rest"),
    };
    (answer, Then::GoOn)
}

/// Hands over the sockets through which clients connect, to one server alone.
fn replace(state: &State) -> (Answer, Then) {
    let Some(claim) = handover::Claim::take() else {
        return (Answer::refusal(CONFLICT, "another server takes the place of that server already"), Then::GoOn);
    };
    let sockets = state.exports.read(|server| Some(server.share_sockets()));
    match sockets.unwrap_or_else(|| Ok(Vec::new())) {
        Ok(sockets) if sockets.len() <= handover::MAX_SOCKETS => {
            (Answer::json(&json!({ "sockets": sockets.len() })), Then::HandOver(claim, sockets))
        }
        Ok(sockets) => {
            let what = format!("{} sockets are more than can be handed over", sockets.len());
            (Answer::refusal(UNAVAILABLE, what), Then::GoOn)
        }
        Err(error) => (Answer::refusal(UNAVAILABLE, error.to_string()), Then::GoOn),
    }
}

fn no_queue(state: &State, name: &str) -> Answer {
    let names: Vec<&str> = state.queues.iter().map(|queue| queue.name.as_str()).collect();
    Answer::refusal(NOT_FOUND, format!("there is no queue '{name}'; there are: {}", names.join(", ")))
}

fn describe(queue: &Served) -> Queue {
    Queue {
        name: queue.name.clone(),
        device: queue.device.clone(),
        description: queue.description.clone(),
        size_bytes: queue.q.limits().size_bytes(),
        read_only: queue.read_only,
        keeps_data: queue.q.driver().keeps_data(),
        health: Health::of(&queue.q),
        idle_weights: idle_weights(&queue.q),
        uris: queue.uris.clone(),
        knobs: knobs(&queue.q),
    }
}

/// Every knob of a queue and of its scheduler. If the scheduler changes meanwhile, the knobs that are gone are left
/// out.
fn knobs(q: &RequestQueue) -> BTreeMap<String, String> {
    let scheduler = q.scheduler();
    let of_scheduler = SCHEDULERS.iter().filter(|known| known.name == scheduler).flat_map(|known| known.knobs);
    ["scheduler", "locking", "size"]
        .into_iter()
        .map(str::to_owned)
        .chain(QUEUE_KNOBS.iter().map(|knob| knob.name.to_owned()))
        .chain(of_scheduler.map(|knob| format!("iosched/{}", knob.name)))
        .filter_map(|name| q.knob(&name).ok().map(|value| (name, value)))
        .collect()
}

fn knob(queue: &Served, knob: &str, request: &Request) -> Answer {
    let answer = || {
        let value = tenants::value(request)?;
        if let Some(value) = value {
            set(&queue.q, knob, value)?;
        }
        let is_about_shares = value.is_some() && matches!(knob, "scheduler" | "nr_requests" | "iosched/low_latency");
        let warnings = if is_about_shares { queue.warn_of_shares() } else { Vec::new() };
        let value = queue.q.knob(knob).map_err(refuse)?;
        Ok(Answer::json(&Value { queue: queue.name.clone(), knob: knob.to_owned(), of: None, value, warnings }))
    };
    answer().unwrap_or_else(|refusal| refusal)
}

fn refuse(error: QueueError) -> Answer {
    let is_unknown = matches!(error, QueueError::UnknownKnob { .. });
    let status = if is_unknown { NOT_FOUND } else { BAD_REQUEST };
    Answer::refusal(status, error.to_string())
}

fn set(q: &RequestQueue, knob: &str, value: &str) -> Result<(), Answer> {
    let mut change = q.change_knob(knob, value).map_err(refuse)?;
    wait(&mut change, Instant::now() + DRAIN_LIMIT)
}

fn wait(change: &mut Change, until: Instant) -> Result<(), Answer> {
    loop {
        if let Some(result) = change.poll() {
            return result.map_err(refuse);
        }
        if Instant::now() >= until {
            let seconds = DRAIN_LIMIT.as_secs();
            let what = format!("nothing has changed: the queue has not drained within {seconds} s");
            return Err(Answer::refusal(UNAVAILABLE, what));
        }
        thread::sleep(DRAIN_STEP);
    }
}
