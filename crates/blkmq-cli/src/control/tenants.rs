//! The paths of the control socket that are about a queue's clients and groups.

use blkmq::{QueueError, TenantError};
use blkmq_export::PlacementError;

use super::http::{Answer, BAD_REQUEST, CONFLICT, NOT_FOUND, Request};
use super::schema::{Group, Parts, Share, Value};
use super::shares::idle_weights;
use super::{Served, sampler};

/// Every client with its share, as the last second left it.
pub(super) fn shares(queue: &Served) -> Vec<Share> {
    // A client is asked for as it is now: it may have come after the last look, or have another weight since then.
    let seen = sampler::seen(&queue.q);
    sampler::lock(&queue.history).shares(&queue.name, seen)
}

/// Every group with the share of all clients in it and in its groups, each group behind its parent.
pub(super) fn groups(queue: &Served) -> Vec<Group> {
    let shares = shares(queue);
    let group = |group: blkmq::GroupInfo| {
        let inside = format!("{}/", group.name);
        let is_within =
            |share: &&Share| share.group.as_ref().is_some_and(|path| *path == group.name || path.starts_with(&inside));
        let sum = |of: fn(&Share) -> Parts| shares.iter().filter(is_within).map(of).fold(Parts::default(), Parts::and);
        Group {
            queue: queue.name.clone(),
            weight: group.weight,
            clients: group.clients,
            second: sum(|share| share.second),
            minute: sum(|share| share.minute),
            group: group.name,
        }
    };
    queue.q.tenants().groups().into_iter().map(group).collect()
}

fn refuse(error: &PlacementError) -> Answer {
    let status = match error {
        PlacementError::IsNamed(_)
        | PlacementError::NotEmpty { .. }
        | PlacementError::TooManyGroups
        | PlacementError::TooManyChanged => CONFLICT,
        PlacementError::Queue(QueueError::BadTenant(TenantError::UnknownClient(_) | TenantError::UnknownGroup(_))) => {
            NOT_FOUND
        }
        _ => BAD_REQUEST,
    };
    Answer::refusal(status, error.to_string())
}

/// The text that is to be set, if something is to be set.
pub(super) fn value(request: &Request) -> Result<Option<&str>, Answer> {
    match request.method.as_str() {
        "GET" => Ok(None),
        "PUT" => match std::str::from_utf8(&request.body) {
            Ok(value) => Ok(Some(value.trim())),
            Err(_) => Err(Answer::refusal(BAD_REQUEST, "the value is not UTF-8")),
        },
        _ => Err(Answer::not_allowed("GET, PUT")),
    }
}

fn weight(value: &str) -> Result<u16, Answer> {
    value.parse().map_err(|_| Answer::refusal(BAD_REQUEST, format!("weight: '{value}' is not a number within 1..1000")))
}

/// The answer about a knob of a client or group, behind a change if there was one.
fn show(queue: &Served, of: String, knob: &str, value: String, is_changed: bool) -> Answer {
    let idle = idle_weights(&queue.q).filter(|_| is_changed);
    let warnings = idle.map(|why| format!("the {knob} of {of} does nothing now: {why}")).into_iter().collect();
    Answer::json(&Value { queue: queue.name.clone(), knob: knob.to_owned(), of: Some(of), value, warnings })
}

/// `/queues/NAME/clients/CLIENT/KNOB`.
pub(super) fn client_knob(queue: &Served, client: &str, knob: &str, request: &Request) -> Answer {
    let answer = || {
        let value = value(request)?;
        let set = match (knob, value) {
            ("weight", Some(value)) => queue.placement.set_client_weight(client, weight(value)?),
            ("group", Some(path)) => queue.placement.move_client(client, path),
            ("weight" | "group", None) => Ok(()),
            _ => {
                let what = format!("a client has no knob '{knob}'; it has: weight, group");
                return Err(Answer::refusal(NOT_FOUND, what));
            }
        };
        set.map_err(|error| refuse(&error))?;
        let found = sampler::seen(&queue.q).into_iter().find(|seen| seen.name == client);
        let unknown = || PlacementError::Queue(TenantError::UnknownClient(client.to_owned()).into());
        let found = found.ok_or_else(|| refuse(&unknown()))?;
        let shown = if knob == "weight" { found.weight.to_string() } else { found.group };
        Ok(show(queue, format!("client={client}"), knob, shown, value.is_some()))
    };
    answer().unwrap_or_else(|refusal| refusal)
}

/// `/queues/NAME/groups/GROUP`, where `GROUP` is a path.
pub(super) fn group(queue: &Served, path: &str, request: &Request) -> Answer {
    let done = match request.method.as_str() {
        "GET" => Ok(()),
        "PUT" if request.body.is_empty() => queue.placement.add_group(path),
        "PUT" => return Answer::refusal(BAD_REQUEST, "a group is added without a value; set its weight under /weight"),
        "DELETE" => {
            return match queue.placement.remove_group(path) {
                Ok(()) => Answer::json(&serde_json::json!({ "queue": queue.name, "group": path, "removed": true })),
                Err(error) => refuse(&error),
            };
        }
        _ => return Answer::not_allowed("GET, PUT, DELETE"),
    };
    let unknown = || PlacementError::Queue(TenantError::UnknownGroup(path.to_owned()).into());
    let found = || groups(queue).into_iter().find(|group| group.group == path).ok_or_else(unknown);
    done.and_then(|()| found()).map_or_else(|error| refuse(&error), |group| Answer::json(&group))
}

/// `/queues/NAME/groups/GROUP/KNOB`.
pub(super) fn group_knob(queue: &Served, path: &str, knob: &str, request: &Request) -> Answer {
    let answer = || {
        let value = value(request)?;
        if knob != "weight" {
            return Err(Answer::refusal(NOT_FOUND, format!("a group has no knob '{knob}'; it has: weight")));
        }
        if let Some(value) = value {
            queue.placement.set_group_weight(path, weight(value)?).map_err(|error| refuse(&error))?;
        }
        let found = queue.q.tenants().groups().into_iter().find(|group| group.name == path);
        let unknown = || PlacementError::Queue(TenantError::UnknownGroup(path.to_owned()).into());
        let found = found.ok_or_else(|| refuse(&unknown()))?;
        Ok(show(queue, format!("group={path}"), knob, found.weight.to_string(), value.is_some()))
    };
    answer().unwrap_or_else(|refusal| refusal)
}
