//! The counters as OpenMetrics text, under names like those of Prometheus' `node_disk_*`.

mod counters;

use std::fmt::Write;

use blkmq::driver::Health;
use blkmq::sched::limiter::Phase;
use blkmq::{DiskStats, QueueCounters};
use blkmq_export::{FrontEnd, Histogram, Kind, Latencies};

use self::counters::{COUNTERS, Family, Sample};
use super::limiter::{Ceiling, Ceilings, Told};
use super::schema::{Connection, Parts, Share, by_kind};
use super::{Served, State, tenants};

/// The content type of OpenMetrics text.
pub(super) const KIND: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";
/// The content type of plain text.
pub(super) const PLAIN: &str = "text/plain; charset=utf-8";

/// The most connections that have series of their own, and the most clients that do: the connections that are there the
/// longest, and of each queue the clients with the first names.
const MAX_CLIENTS: usize = 64;

/// A label's value between its quotation marks.
fn escaped(text: &str) -> String {
    text.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

/// Begins a family: its type, its unit if its name ends in one, and its description.
fn begin(out: &mut String, name: &str, kind: &str, help: &str) {
    // Writing to a string does not fail.
    let _ = writeln!(out, "# TYPE blkmq_{name} {kind}");
    if let Some(unit) = ["seconds", "bytes"].into_iter().find(|unit| name.ends_with(unit)) {
        let _ = writeln!(out, "# UNIT blkmq_{name} {unit}");
    }
    let _ = writeln!(out, "# HELP blkmq_{name} {help}");
}

/// All metrics.
pub(super) fn text(state: &State) -> String {
    let mut out = String::new();
    let counted: Vec<(&Served, DiskStats, QueueCounters)> =
        state.queues.iter().map(|queue| (queue, queue.q.disk_stats(), queue.q.counters())).collect();
    begin(&mut out, "queue", "info", "What each queue is.");
    for (Served { name, device, q, .. }, ..) in &counted {
        let (name, device, scheduler, locking) = (escaped(name), escaped(device), q.scheduler(), q.locking());
        let _ = writeln!(
            out,
            "blkmq_queue_info{{queue=\"{name}\",device=\"{device}\",scheduler=\"{scheduler}\",locking=\"{locking}\"}} 1"
        );
    }
    begin(&mut out, "device_health", "gauge", "How each queue's device is: 1 for the state that it is in.");
    for (Served { name, q, .. }, ..) in &counted {
        let health = q.driver().health();
        for state in Health::WORDS {
            let (name, value) = (escaped(name), u8::from(health.word() == state));
            let _ = writeln!(out, "blkmq_device_health{{queue=\"{name}\",state=\"{state}\"}} {value}");
        }
    }
    begin(&mut out, "io_now", "gauge", "Requests in the queue just now.");
    for (queue, stat, _) in &counted {
        let _ = writeln!(out, "blkmq_io_now{{queue=\"{}\"}} {}", escaped(&queue.name), stat.in_flight);
    }
    begin(&mut out, "device_requests", "gauge", "Requests that the device has just now.");
    for (Served { name, q, .. }, ..) in &counted {
        for (operation, requests) in ["read", "other"].iter().zip(q.inflight()) {
            let name = escaped(name);
            let _ = writeln!(out, "blkmq_device_requests{{queue=\"{name}\",operation=\"{operation}\"}} {requests}");
        }
    }
    for Family { name, help, of } in COUNTERS {
        begin(&mut out, name, "counter", help);
        for (queue, stat, stats) in &counted {
            let value = match of(stat, stats) {
                Sample::Count(count) => count.to_string(),
                Sample::Ticks(ms) => format!("{}.{:03}", ms / 1000, ms % 1000),
                Sample::Nanoseconds(ns) => seconds(ns),
            };
            let _ = writeln!(out, "blkmq_{name}_total{{queue=\"{}\"}} {value}", escaped(&queue.name));
        }
    }
    begin(&mut out, "wakeups", "counter", "Threads that another thread woke, by cause.");
    for (queue, _, stats) in &counted {
        for (cause, woken) in stats.wakeups.by_cause() {
            let name = escaped(&queue.name);
            let _ = writeln!(out, "blkmq_wakeups_total{{queue=\"{name}\",cause=\"{cause}\"}} {woken}");
        }
    }
    show_limiters(&mut out, state);
    let name = "request_duration_seconds";
    begin(&mut out, name, "histogram", "Time from a client's request to the reply to it.");
    for (Served { name: queue, .. }, ..) in &counted {
        for front_end in FrontEnd::ALL {
            let labels = format!("queue=\"{}\",front_end=\"{}\"", escaped(queue), front_end.word());
            show_latencies(&mut out, name, &labels, &(state.latencies)(front_end, queue));
        }
    }
    show_errors(&mut out, state);
    let clients = (state.connections)();
    begin(&mut out, "clients", "gauge", "Connections of clients, machines, and block devices, by front-end.");
    for front_end in FrontEnd::ALL.map(FrontEnd::word) {
        let count = clients.iter().filter(|client| client.front_end == front_end).count();
        let _ = writeln!(out, "blkmq_clients{{front_end=\"{front_end}\"}} {count}");
    }
    let (used, most) = (state.memory)();
    begin(&mut out, "memory_bytes", "gauge", "Memory that clients have, for the data of their requests and beside it.");
    let _ = writeln!(out, "blkmq_memory_bytes {used}");
    begin(&mut out, "memory_limit_bytes", "gauge", "Memory that clients may have, all together.");
    let _ = writeln!(out, "blkmq_memory_limit_bytes {most}");
    begin(&mut out, "connections_rejected", "counter", "Connections that were not served.");
    let rejections = (state.rejections)();
    for (reason, count) in [
        ("not_allowed", rejections.denied),
        ("max_connections", rejections.full),
        ("too_many_negotiating", rejections.crowded),
        ("negotiation_timeout", rejections.late),
        ("no_descriptor", rejections.no_descriptor),
        ("queue_full", rejections.queue_full),
    ] {
        let _ = writeln!(out, "blkmq_connections_rejected_total{{reason=\"{reason}\"}} {count}");
    }
    show_connections(&mut out, &clients[..clients.len().min(MAX_CLIENTS)]);
    show_shares(&mut out, state);
    out.push_str("# EOF\n");
    out
}

/// The limiters of the queues that have one. What a limiter does not know yet has no series.
fn show_limiters(out: &mut String, state: &State) {
    let limiters: Vec<(String, Told)> =
        state.queues.iter().filter_map(|queue| Some((escaped(&queue.name), Told::of(&queue.q)?))).collect();
    begin(out, "limiter_phase", "gauge", "What each queue's limiter does: 1 for the phase that it is in.");
    for (queue, told) in &limiters {
        for phase in Phase::ALL.map(Phase::name) {
            let value = u8::from(told.phase == phase);
            let _ = writeln!(out, "blkmq_limiter_phase{{queue=\"{queue}\",phase=\"{phase}\"}} {value}");
        }
    }
    for (name, help, of) in [
        (
            "limiter_ceiling_requests_per_second",
            "Requests of 4 KiB that the device does in a second at most, as far as was found.",
            (|ceiling| ceiling.requests_per_second) as fn(Ceiling) -> f64,
        ),
        (
            "limiter_ceiling_bytes_per_second",
            "Bytes that the device does in a second at most by requests of 1 MiB, as far as was found.",
            |ceiling| ceiling.bytes_per_second,
        ),
    ] {
        begin(out, name, "gauge", help);
        for (queue, told) in &limiters {
            let Some(Ceilings { read, write }) = told.ceilings else { continue };
            for (operation, ceiling) in [("read", read), ("write", write)] {
                let value = of(ceiling);
                let _ = writeln!(out, "blkmq_{name}{{queue=\"{queue}\",operation=\"{operation}\"}} {value:.3}");
            }
        }
    }
    for (name, help, of) in [
        (
            "limiter_in_flight_seconds",
            "Predicted work that the device has just now.",
            (|told| Some(seconds(told.in_flight_ns))) as fn(&Told) -> Option<String>,
        ),
        ("limiter_bound_seconds", "Work that the device may have; not shown while it is not bounded.", |told| {
            told.bound_ns.map(seconds)
        }),
        ("limiter_held_back_requests", "Requests that wait while the limiter is not open.", |told| {
            Some(told.held_back.to_string())
        }),
        ("limiter_target_seconds", "Time that reads may take in the device on average.", |told| {
            told.target_ns.map(seconds)
        }),
        (
            "limiter_target_met",
            "Whether reads kept to the target in the last tenth of a second in which the device worked.",
            |told| told.target_met.map(|met| u8::from(met).to_string()),
        ),
    ] {
        begin(out, name, "gauge", help);
        for (queue, told) in &limiters {
            if let Some(value) = of(told) {
                let _ = writeln!(out, "blkmq_{name}{{queue=\"{queue}\"}} {value}");
            }
        }
    }
    let name = "limiter_ceilings_measured";
    begin(out, name, "counter", "How many times the ceiling was measured.");
    for (queue, told) in &limiters {
        let _ = writeln!(out, "blkmq_{name}_total{{queue=\"{queue}\"}} {}", told.ceilings_measured);
    }
}

/// Requests that were answered with an error. All kinds are there from the beginning, so that a reader sees the first
/// error of a kind.
fn show_errors(out: &mut String, state: &State) {
    let name = "request_errors";
    begin(out, name, "counter", "Requests answered with an error.");
    for answered in (state.answered)() {
        let [queue, export] = [&answered.queue, &answered.export].map(|text| escaped(text));
        for (front_end, errors) in FrontEnd::ALL.iter().zip(&answered.errors) {
            let labels = format!("queue=\"{queue}\",export=\"{export}\",front_end=\"{}\"", front_end.word());
            for (kind, count) in by_kind(errors) {
                let _ = writeln!(out, "blkmq_{name}_total{{{labels},kind=\"{kind}\"}} {count}");
            }
        }
    }
}

/// The clients of each queue, with their shares.
fn show_shares(out: &mut String, state: &State) {
    let shares = |queue: &Served| tenants::shares(queue).into_iter().take(MAX_CLIENTS).collect::<Vec<_>>();
    let shares: Vec<Share> = state.queues.iter().flat_map(shares).collect();
    for (name, help, of) in [
        ("share_weight", "The weight of a client.", (|share| share.weight.into()) as fn(&Share) -> u64),
        ("share_connections", "Connections of a client.", |share| share.connections.into()),
        ("share_outstanding", "Operations of a client that are not over.", |share| share.outstanding),
        ("share_waiting", "Requests of a client that the device does not have yet.", |share| share.waiting),
        ("share_waits", "Whether the requests of a client waited in the last second.", |share| share.waits.into()),
        ("share_asks_for_less", "Whether a client asked for less than its part in the last second.", |share| {
            share.asks_for_less.into()
        }),
    ] {
        begin(out, name, "gauge", help);
        for share in &shares {
            let _ = writeln!(out, "blkmq_{name}{{{}}} {}", labels_of_share(share), of(share));
        }
    }
    for (name, help, of) in [
        (
            "share_due_ratio",
            "The part of a queue's sectors that is due to a client.",
            (|parts| parts.due) as fn(&Parts) -> Option<f64>,
        ),
        ("share_received_ratio", "The part of a queue's sectors that a client received.", |parts| parts.received),
    ] {
        begin(out, name, "gauge", help);
        for share in &shares {
            for (window, parts) in [("1s", &share.second), ("1m", &share.minute)] {
                if let Some(part) = of(parts) {
                    let labels = labels_of_share(share);
                    let _ = writeln!(out, "blkmq_{name}{{{labels},window=\"{window}\"}} {part:.6}");
                }
            }
        }
    }
}

/// The labels of a client.
fn labels_of_share(share: &Share) -> String {
    let [queue, client] = [&share.queue, &share.client].map(|text| escaped(text));
    let group = escaped(share.group.as_deref().unwrap_or_default());
    format!("queue=\"{queue}\",group=\"{group}\",client=\"{client}\"")
}

/// The connections, by number. A number is never used again, so each counter begins at 0 and only grows.
fn show_connections(out: &mut String, clients: &[Connection]) {
    for (name, help, of) in [
        ("client_requests", "Requests taken from a client.", (|client| client.requests) as fn(&Connection) -> u64),
        ("client_bytes", "Bytes that a client has read or written.", |client| client.bytes),
        ("client_errors", "Requests of a client answered with an error.", |client| client.errors.values().sum()),
    ] {
        begin(out, name, "counter", help);
        for client in clients {
            let _ = writeln!(out, "blkmq_{name}_total{{{}}} {}", labels(client), of(client));
        }
    }
    let name = "client_request_duration_seconds";
    begin(out, name, "histogram", "Time from a request of a client to the reply to it.");
    for client in clients {
        show_latencies(out, name, &labels(client), &client.latencies);
    }
}

/// The labels of a connection.
fn labels(client: &Connection) -> String {
    let [queue, export] = [&client.queue, &client.export].map(|text| escaped(text.as_deref().unwrap_or_default()));
    let (peer, front_end) = (escaped(&client.peer), &client.front_end);
    // A label that is absent is the same as an empty one.
    let name = client.name.as_ref().map(|name| format!(",name=\"{}\"", escaped(name))).unwrap_or_default();
    let number = client.number;
    format!("queue=\"{queue}\",export=\"{export}\",front_end=\"{front_end}\",client=\"{number}\",peer=\"{peer}\"{name}")
}

/// The histogram of each kind of request that has occurred.
fn show_latencies(out: &mut String, name: &str, labels: &str, latencies: &Latencies) {
    for (kind, operation) in
        [(Kind::Read, "read"), (Kind::Write, "write"), (Kind::Discard, "discard"), (Kind::Flush, "flush")]
    {
        let histogram = latencies.of(kind);
        let labels = format!("{labels},operation=\"{operation}\"");
        let mut count = 0;
        if histogram.count() == 0 {
            continue;
        }
        for (bucket, requests) in histogram.buckets.iter().enumerate() {
            count += requests;
            let upper = Histogram::upper_ns(bucket).map_or_else(|| "+Inf".to_owned(), seconds);
            let _ = writeln!(out, "blkmq_{name}_bucket{{{labels},le=\"{upper}\"}} {count}");
        }
        let _ = writeln!(out, "blkmq_{name}_count{{{labels}}} {count}");
        let _ = writeln!(out, "blkmq_{name}_sum{{{labels}}} {}", seconds(histogram.sum_ns));
    }
}

fn seconds(ns: u64) -> String {
    format!("{}.{:09}", ns / 1_000_000_000, ns % 1_000_000_000)
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;
    use std::sync::Arc;

    use blkmq::RequestQueue;
    use blkmq::driver::spec;

    use super::*;

    #[test]
    fn the_text_is_openmetrics() {
        let [q, with_limiter] = [0, 250].map(|usec| {
            RequestQueue::builder(spec::open("null").unwrap()).scheduler("bfq").wbt_lat_usec(usec).build().unwrap()
        });
        let queue = |name: &str, q: &RequestQueue| Served {
            name: name.to_owned(),
            device: "null".to_owned(),
            description: String::new(),
            read_only: false,
            uris: Vec::new(),
            shares: Default::default(),
            q: q.clone(),
            placement: Arc::new(blkmq_export::Placement::new(q.clone())),
            history: Default::default(),
        };
        let client = |number| Connection {
            number,
            front_end: match number {
                1 => "ublk",
                3 => "vhost-user",
                _ => "nbd",
            }
            .to_owned(),
            queue: None,
            export: None,
            peer: "p".to_owned(),
            name: (number == 2).then(|| "a\"b".to_owned()),
            client: None,
            requests: number,
            bytes: 0,
            errors: Default::default(),
            latencies: Latencies::default(),
        };
        let state = State {
            queues: vec![queue("default", &q), queue("a\"b\\c\n", &q), queue("bounded", &with_limiter)],
            connections: Box::new(move || (1..=1000).map(client).collect()),
            latencies: Box::new(|_, _| Latencies::default()),
            answered: Box::new(Vec::new),
            rejections: Box::new(blkmq_export::Rejections::default),
            memory: Box::new(|| (1, 2)),
            sockets: Box::new(|| Ok(Vec::new())),
            stop: Box::new(|| ()),
        };
        let text = text(&state);
        assert!(text.ends_with("\n# EOF\n") && !text.contains("\n\n"), "{text}");
        assert!(text.contains("\nblkmq_io_now{queue=\"a\\\"b\\\\c\\n\"} 0\n"), "{text}");
        assert!(
            text.contains(
                "\nblkmq_clients{front_end=\"nbd\"} 998\nblkmq_clients{front_end=\"vhost-user\"} 1\n\
                 blkmq_clients{front_end=\"ublk\"} 1\n"
            ),
            "{text}"
        );
        for (state, value) in [("good", 1), ("away", 0), ("orphaned", 0), ("failed", 0)] {
            let line = format!("\nblkmq_device_health{{queue=\"default\",state=\"{state}\"}} {value}\n");
            assert!(text.contains(&line), "{text}");
        }
        let labels = "queue=\"\",export=\"\",front_end=\"ublk\",client=\"1\",peer=\"p\"";
        assert!(text.contains(&format!("\nblkmq_client_requests_total{{{labels}}} 1\n")), "{text}");
        let labels = "queue=\"\",export=\"\",front_end=\"nbd\",client=\"2\",peer=\"p\",name=\"a\\\"b\"";
        assert!(text.contains(&format!("\nblkmq_client_requests_total{{{labels}}} 2\n")), "{text}");
        assert_eq!(text.matches("\nblkmq_client_bytes_total{").count(), MAX_CLIENTS, "so many series at most");
        for (line, is_there) in [
            ("phase{queue=\"bounded\",phase=\"open\"} 1", true),
            ("phase{queue=\"bounded\",phase=\"paced\"} 0", true),
            ("in_flight_seconds{queue=\"bounded\"} 0.000000000", true),
            ("held_back_requests{queue=\"bounded\"} 0", true),
            ("target_seconds{queue=\"bounded\"} 0.000250000", true),
            ("ceilings_measured_total{queue=\"bounded\"} 0", true),
            ("bound_seconds{", false),
            ("target_met{", false),
            ("ceiling_requests_per_second{", false),
        ] {
            assert_eq!(text.contains(&format!("\nblkmq_limiter_{line}")), is_there, "{line}: {text}");
        }
        let limiters = text.lines().filter(|line| line.starts_with("blkmq_limiter_"));
        assert!(limiters.clone().all(|line| line.contains("{queue=\"bounded\"")), "only one has a limiter: {text}");
        assert!(text.contains("\nblkmq_device_requests{queue=\"default\",operation=\"other\"} 0\n"), "{text}");
        for line in [
            "wakeups_total{queue=\"default\",cause=\"deferred\"} 0",
            "scheduler_holds_total{queue=\"default\"} 0",
            "scheduler_dispatched_total{queue=\"default\"} 0",
            "bypass_gate_opened_total{queue=\"default\"} 0",
            "bypass_gate_shut_total{queue=\"default\"} 0",
            "bypass_gate_shut_seconds_total{queue=\"default\"} ",
        ] {
            assert!(text.contains(&format!("\nblkmq_{line}")), "{line}: {text}");
        }
        let (mut seen, mut family) = (HashSet::new(), String::new());
        for line in text.lines().filter(|line| *line != "# EOF") {
            if let Some(begun) = line.strip_prefix("# TYPE ") {
                family = begun.split(' ').next().unwrap().to_owned();
                assert!(seen.insert(family.clone()), "{family} is begun twice");
            } else if let Some(comment) = line.strip_prefix("# ") {
                assert_eq!(comment.split(' ').nth(1), Some(family.as_str()), "{line}");
            } else {
                let (name, value) = (line.split(['{', ' ']).next().unwrap(), line.rsplit(' ').next().unwrap());
                assert!(["", "_total", "_info"].iter().any(|end| name == format!("{family}{end}")), "{line}");
                assert!(value.parse::<f64>().is_ok(), "{line}");
            }
        }
    }
}
