//! The counters as OpenMetrics text, under names like those of Prometheus' `node_disk_*`.

mod counters;

use std::fmt::{Display, Write};

use blkmq::driver::Health;
use blkmq::sched::limiter::Phase;
use blkmq::{DiskStats, QueueCounters};
use blkmq_export::{FrontEnd, Histogram, Kind, Latencies};

use self::counters::{COUNTERS, Family, Unit};
use super::exports::Exports;
use super::limiter::{Ceiling, LimiterReport};
use super::schema::{Connection, Parts, Share, by_kind};
use super::{Served, State, tenants};

/// The content type of OpenMetrics text.
pub(super) const KIND: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";
/// The content type of plain text.
pub(super) const PLAIN: &str = "text/plain; charset=utf-8";

/// The most connections that have series of their own, and the most clients that do: the connections that are there the
/// longest, and of each queue the clients with the first names.
const MAX_CLIENTS: usize = 64;

/// Returns labels as they stand between the braces of a sample.
fn labels<const N: usize>(labels: [(&str, &str); N]) -> String {
    let escaped = |text: &str| text.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n");
    labels.map(|(name, value)| format!("{name}=\"{}\"", escaped(value))).join(",")
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

/// Writes a family with its samples: the labels and value of each.
fn family<V: Display>(
    out: &mut String,
    name: &str,
    kind: &str,
    help: &str,
    samples: impl IntoIterator<Item = (String, V)>,
) {
    begin(out, name, kind, help);
    let suffix = match kind {
        "counter" => "_total",
        "info" => "_info",
        _ => "",
    };
    for (labels, value) in samples {
        let labels = if labels.is_empty() { labels } else { format!("{{{labels}}}") };
        let _ = writeln!(out, "blkmq_{name}{suffix}{labels} {value}");
    }
}

/// All metrics.
pub(super) fn text(state: &State) -> String {
    render(&state.queues, &state.exports, &state.exports.connections())
}

fn render(queues: &[Served], exports: &Exports, connections: &[Connection]) -> String {
    let out = &mut String::new();
    let label = |queue: &Served| labels([("queue", &queue.name)]);
    family(
        out,
        "queue",
        "info",
        "What each queue is.",
        queues.iter().map(|Served { name, device, q, .. }| {
            let [scheduler, locking] = [q.scheduler(), q.locking().name()];
            (labels([("queue", name), ("device", device), ("scheduler", scheduler), ("locking", locking)]), 1)
        }),
    );
    let health = queues.iter().flat_map(|Served { name, q, .. }| {
        let word = q.driver().health().word();
        Health::WORDS.map(|state| (labels([("queue", name), ("state", state)]), u8::from(word == state)))
    });
    family(out, "device_health", "gauge", "How each queue's device is: 1 for the state that it is in.", health);
    let counted: Vec<(&Served, DiskStats, QueueCounters)> =
        queues.iter().map(|queue| (queue, queue.q.disk_stats(), queue.q.counters())).collect();
    let in_flight = counted.iter().map(|(queue, stat, _)| (label(queue), stat.in_flight));
    family(out, "io_now", "gauge", "Requests in the queue just now.", in_flight);
    let of_device = queues.iter().flat_map(|Served { name, q, .. }| {
        let of = |(operation, requests)| (labels([("queue", name), ("operation", operation)]), requests);
        ["read", "other"].into_iter().zip(q.inflight()).map(of).collect::<Vec<_>>()
    });
    family(out, "device_requests", "gauge", "Requests that the device has just now.", of_device);
    for Family { name, help, unit, of } in COUNTERS {
        let sample = |(queue, stat, stats): &(&Served, DiskStats, QueueCounters)| {
            let value = of(stat, stats);
            let shown = match unit {
                Unit::One => value.to_string(),
                Unit::Ticks => format!("{}.{:03}", value / 1000, value % 1000),
                Unit::Nanoseconds => seconds(value),
            };
            (label(queue), shown)
        };
        family(out, name, "counter", help, counted.iter().map(sample));
    }
    let wakeups = counted.iter().flat_map(|(queue, _, stats)| {
        stats.wakeups.by_cause().map(|(cause, woken)| (labels([("queue", &queue.name), ("cause", cause)]), woken))
    });
    family(out, "wakeups", "counter", "Threads that another thread woke, by cause.", wakeups);
    show_limiters(out, queues);
    let name = "request_duration_seconds";
    begin(out, name, "histogram", "Time from a client's request to the reply to it.");
    for (Served { name: queue, .. }, ..) in &counted {
        for front_end in FrontEnd::ALL {
            let labels = labels([("queue", queue), ("front_end", front_end.word())]);
            show_latencies(out, name, &labels, &exports.latencies(front_end, queue));
        }
    }
    // All kinds are there from the beginning, so that a reader sees the first error of a kind.
    let errors = exports.answered().into_iter().flat_map(|answered| {
        let of = |(front_end, errors): (&FrontEnd, _)| {
            let labels = [("queue", &*answered.queue), ("export", &answered.export), ("front_end", front_end.word())];
            by_kind(errors).into_iter().map(move |(kind, count)| {
                let [queue, export, front_end] = labels;
                (self::labels([queue, export, front_end, ("kind", &kind)]), count)
            })
        };
        FrontEnd::ALL.iter().zip(&answered.errors).flat_map(of).collect::<Vec<_>>()
    });
    family(out, "request_errors", "counter", "Requests answered with an error.", errors);
    let of_front_end = FrontEnd::ALL.map(FrontEnd::word).map(|front_end| {
        let count = connections.iter().filter(|connection| connection.front_end == front_end).count();
        (labels([("front_end", front_end)]), count)
    });
    let help = "Connections of clients, machines, and block devices, by front-end.";
    family(out, "clients", "gauge", help, of_front_end);
    let (used, most) = exports.read(blkmq_export::Server::memory);
    let help = "Memory that clients have, for the data of their requests and beside it.";
    family(out, "memory_bytes", "gauge", help, [(String::new(), used)]);
    family(out, "memory_limit_bytes", "gauge", "Memory that clients may have, all together.", [(String::new(), most)]);
    let rejections = exports.read(blkmq_export::Server::rejections);
    let rejected = [
        ("not_allowed", rejections.denied),
        ("max_connections", rejections.full),
        ("too_many_negotiating", rejections.crowded),
        ("negotiation_timeout", rejections.late),
        ("no_descriptor", rejections.no_descriptor),
        ("queue_full", rejections.queue_full),
    ];
    let rejected = rejected.map(|(reason, count)| (labels([("reason", reason)]), count));
    family(out, "connections_rejected", "counter", "Connections that were not served.", rejected);
    show_connections(out, &connections[..connections.len().min(MAX_CLIENTS)]);
    show_shares(out, queues);
    out.push_str("# EOF\n");
    std::mem::take(out)
}

/// The limiters of the queues that have one. A value that a limiter does not know yet has no series.
fn show_limiters(out: &mut String, queues: &[Served]) {
    let limiters: Vec<(&str, LimiterReport)> =
        queues.iter().filter_map(|queue| Some((&*queue.name, LimiterReport::of(&queue.q)?))).collect();
    let phases = limiters.iter().flat_map(|(queue, report)| {
        let of = |phase| (labels([("queue", queue), ("phase", phase)]), u8::from(report.phase == phase));
        Phase::ALL.map(Phase::name).map(of)
    });
    family(out, "limiter_phase", "gauge", "What each queue's limiter does: 1 for the phase that it is in.", phases);
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
        let ceilings = limiters.iter().filter_map(|(queue, report)| Some((queue, report.ceilings?)));
        let ceilings = ceilings.flat_map(|(queue, ceilings)| {
            [("read", ceilings.read), ("write", ceilings.write)].map(|(operation, ceiling)| {
                (labels([("queue", queue), ("operation", operation)]), format!("{:.3}", of(ceiling)))
            })
        });
        family(out, name, "gauge", help, ceilings);
    }
    let mut gauge = |name, help, of: fn(&LimiterReport) -> Option<String>| {
        let sample = |(queue, report): &(&str, LimiterReport)| Some((labels([("queue", queue)]), of(report)?));
        family(out, name, "gauge", help, limiters.iter().filter_map(sample));
    };
    gauge("limiter_in_flight_seconds", "Predicted work that the device has just now.", |report| {
        Some(seconds(report.in_flight_ns))
    });
    gauge("limiter_bound_seconds", "Work that the device may have; not shown while it is not bounded.", |report| {
        report.bound_ns.map(seconds)
    });
    gauge("limiter_held_back_requests", "Requests that wait while the limiter is not open.", |report| {
        Some(report.held_back.to_string())
    });
    gauge("limiter_target_seconds", "Time that reads may take in the device on average.", |report| {
        report.target_ns.map(seconds)
    });
    let help = "Whether reads kept to the target in the last tenth of a second in which the device worked.";
    gauge("limiter_target_met", help, |report| report.target_met.map(|met| u8::from(met).to_string()));
    let measured = limiters.iter().map(|(queue, report)| (labels([("queue", queue)]), report.ceilings_measured));
    family(out, "limiter_ceilings_measured", "counter", "How many times the ceiling was measured.", measured);
}

/// The clients of each queue, with their shares.
fn show_shares(out: &mut String, queues: &[Served]) {
    let shares: Vec<Share> =
        queues.iter().flat_map(|queue| tenants::shares(queue).into_iter().take(MAX_CLIENTS)).collect();
    let of_share = |Share { queue, group, client, .. }: &Share| {
        labels([("queue", queue), ("group", group.as_deref().unwrap_or_default()), ("client", client)])
    };
    let mut gauge = |name, help, of: fn(&Share) -> u64| {
        family(out, name, "gauge", help, shares.iter().map(|share| (of_share(share), of(share))));
    };
    gauge("share_weight", "The weight of a client.", |share| share.weight.into());
    gauge("share_connections", "Connections of a client.", |share| share.connections.into());
    gauge("share_outstanding", "Operations of a client that are not over.", |share| share.outstanding);
    gauge("share_waiting", "Requests of a client that the device does not have yet.", |share| share.waiting);
    let help = "Whether the requests of a client waited in the last second.";
    gauge("share_waits", help, |share| share.waits.into());
    let help = "Whether a client asked for less than its part in the last second.";
    gauge("share_asks_for_less", help, |share| share.asks_for_less.into());
    let mut ratio = |name, help, of: fn(&Parts) -> Option<f64>| {
        let samples = shares.iter().flat_map(|share| {
            let part = |(window, parts)| {
                Some((format!("{},window=\"{window}\"", of_share(share)), format!("{:.6}", of(parts)?)))
            };
            [("1s", &share.second), ("1m", &share.minute)].into_iter().filter_map(part).collect::<Vec<_>>()
        });
        family(out, name, "gauge", help, samples);
    };
    ratio("share_due_ratio", "The part of a queue's sectors that is due to a client.", |parts| parts.due);
    ratio("share_received_ratio", "The part of a queue's sectors that a client received.", |parts| parts.received);
}

/// The connections, by number. A number is never used again, so each counter begins at 0 and only grows.
fn show_connections(out: &mut String, clients: &[Connection]) {
    let mut counter = |name, help, of: fn(&Connection) -> u64| {
        family(out, name, "counter", help, clients.iter().map(|client| (of_connection(client), of(client))));
    };
    counter("client_requests", "Requests taken from a client.", |client| client.requests);
    counter("client_bytes", "Bytes that a client has read or written.", |client| client.bytes);
    counter("client_errors", "Requests of a client answered with an error.", |client| client.errors.values().sum());
    let name = "client_request_duration_seconds";
    begin(out, name, "histogram", "Time from a request of a client to the reply to it.");
    for client in clients {
        show_latencies(out, name, &of_connection(client), &client.latencies);
    }
}

/// The labels of a connection.
fn of_connection(Connection { number, front_end, queue, export, peer, name, .. }: &Connection) -> String {
    let [queue, export] = [queue, export].map(|text| text.as_deref().unwrap_or_default());
    let number = number.to_string();
    let all =
        labels([("queue", queue), ("export", export), ("front_end", front_end), ("client", &number), ("peer", peer)]);
    // A label that is absent is the same as an empty one.
    name.as_ref().map_or(all.clone(), |name| format!("{all},{}", labels([("name", name)])))
}

/// The histogram of each kind of request that has occurred.
fn show_latencies(out: &mut String, name: &str, labels: &str, latencies: &Latencies) {
    let kinds = [(Kind::Read, "read"), (Kind::Write, "write"), (Kind::Discard, "discard"), (Kind::Flush, "flush")];
    for (kind, operation) in kinds {
        let histogram = latencies.of(kind);
        if histogram.count() == 0 {
            continue;
        }
        let labels = format!("{labels},operation=\"{operation}\"");
        let mut count = 0;
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
    use std::collections::{BTreeMap, HashSet};
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
        let queues = [queue("default", &q), queue("a\"b\\c\n", &q), queue("bounded", &with_limiter)];
        let exports = Exports { server: Arc::default(), queues: BTreeMap::new() };
        let text = render(&queues, &exports, &(1..=1000).map(client).collect::<Vec<_>>());
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
