//! What operators see of a server and do with it, from outside.

mod served;

use std::io::{Read, Write};
use std::net::TcpStream;

use serde_json::{Value, json};
use served::{READ, Served, WRITE};

/// Head and body of an answer to what is sent to a server's port for metrics.
fn scrape(port: &str, asked: &str) -> (String, String) {
    let mut stream = TcpStream::connect(port).expect("the server listens");
    stream.write_all(format!("{asked} HTTP/1.1\r\nHost: x\r\n\r\n").as_bytes()).expect("the server hears it");
    let mut text = String::new();
    stream.read_to_string(&mut text).expect("an answer is text");
    let (head, body) = text.split_once("\r\n\r\n").expect("an answer has a head");
    (head.to_owned(), body.to_owned())
}

/// A server that has told where its metrics are, and where that is.
fn with_metrics(arguments: &[&str]) -> (Served, String) {
    // Port 0 is any that is free, and the greeting tells which.
    let server = Served::start(&[arguments, &["--metrics", "0"]].concat());
    let told = server.greeting.lines().find_map(|line| line.strip_prefix("metrics: http://")).expect("it is told");
    let port = told.strip_suffix("/metrics").expect("it is a URL").to_owned();
    (server, port)
}

/// Red if the port is one that other machines reach, leads to anything but the metrics, or takes anything but GET.
#[test]
fn metrics_are_read_by_tcp_and_nothing_is_changed_there() {
    let (server, port) = with_metrics(&["--device", "ram,size=1M"]);
    assert!(port.starts_with("127.0.0.1:"), "{port}");
    let (head, body) = scrape(&port, "GET /metrics");
    assert!(head.starts_with("HTTP/1.1 200 OK\r\n") && body.ends_with("\n# EOF\n"), "{head}{body}");
    assert!(head.contains("\r\nContent-Type: application/openmetrics-text; version=1.0.0"), "{head}");
    for asked in ["POST /metrics", "PUT /metrics"] {
        assert!(scrape(&port, asked).0.starts_with("HTTP/1.1 405 "), "{asked}");
    }
    let elsewhere = ["GET /", "GET /queues", "PUT /queues/default/knobs/nomerges", "POST /stop", "GET /metrics/"];
    for asked in elsewhere {
        let (head, body) = scrape(&port, asked);
        assert!(head.starts_with("HTTP/1.1 404 ") && body.contains("there is only /metrics here"), "{asked}: {head}");
    }
    assert_eq!(server.say(&["get", "nomerges"]), "0\n", "it runs on");
}

/// Red if an export that shares a queue is not told apart, an error is counted as another kind, or what a client that has left was
/// answered is forgotten.
#[test]
fn clients_stat_and_metrics_name_the_export_and_count_errors_by_kind() {
    let folder = tempfile::tempdir().unwrap();
    let config = folder.path().join("disks.toml");
    let text = "device = \"ram,size=1M\"\n[[export]]\nname = \"also\"\nqueue = \"default\"\nread_only = true\n";
    std::fs::write(&config, text).unwrap();
    let (server, port) = with_metrics(&["--config", config.to_str().unwrap()]);
    let mut client = server.connect("also");
    assert_eq!(client.write(0, &[1; 512]), 1, "the export is read-only");
    client.send(READ, 1, 1 << 20, 512, &[]);
    assert_eq!(client.receive(), Some((1, 22)), "beyond the end");
    let shown = server.json(&["clients"])[0].clone();
    assert_eq!((&shown["export"], &shown["queue"]), (&json!("also"), &json!("default")));
    let expected = json!({"io": 0, "invalid": 1, "nomem": 0, "nospace": 0, "notsup": 0, "perm": 1, "shutdown": 0});
    assert_eq!(shown["errors"], expected);
    let me = format!("process {} of user", std::process::id());
    assert!(shown["peer"].as_str().unwrap().starts_with(&me), "{shown}");
    let table = server.say(&["clients"]);
    let words: Vec<_> = table.lines().nth(1).unwrap().split_whitespace().collect();
    assert_eq!(words[..7], ["1", "-", "also", "default", "2", "0", "2"], "number, name, export, queue, ..., errors");
    let labels =
        format!("{{queue=\"default\",export=\"also\",client=\"1\",peer=\"{}\"}}", shown["peer"].as_str().unwrap());
    let metrics = scrape(&port, "GET /metrics").1;
    assert!(metrics.contains(&format!("\nblkmq_client_errors_total{labels} 2\n")), "{metrics}");

    drop(client);
    while server.json(&["clients"]) != json!([]) {}
    let mut other = server.connect("");
    other.send(WRITE, 2, 1 << 20, 512, &[1; 512]);
    assert_eq!(other.receive(), Some((2, 28)), "beyond the end");
    let stat: Value = serde_json::from_str(&server.get("/queues/default/stat")).unwrap();
    assert_eq!(stat["exports"], json!(["default", "also"]));
    let expected = json!({"io": 0, "invalid": 1, "nomem": 0, "nospace": 1, "notsup": 0, "perm": 1, "shutdown": 0});
    assert_eq!(stat["errors"], expected);
    let metrics = scrape(&port, "GET /metrics").1;
    for (export, kind, count) in
        [("also", "perm", 1), ("also", "invalid", 1), ("default", "nospace", 1), ("also", "io", 0)]
    {
        let line =
            format!("\nblkmq_request_errors_total{{queue=\"default\",export=\"{export}\",kind=\"{kind}\"}} {count}\n");
        assert!(metrics.contains(&line), "{line}{metrics}");
    }
    assert!(server.json(&["stat"])["queues"][0]["err/s"].as_f64() > Some(0.0));
}

/// Red if the knob's prefix has to be known already.
#[test]
fn a_knob_of_the_scheduler_without_its_prefix_is_pointed_to() {
    let server = Served::start(&["--device", "ram,size=1M", "--scheduler", "mq-deadline"]);
    let error = served::ended(&server.output(&["set", "fifo_batch", "1"]), 2);
    assert!(error.starts_with("blkmq: unknown knob 'fifo_batch'; there are: scheduler, locking, size, "), "{error}");
    assert!(error.ends_with("; for the scheduler's say 'iosched/fifo_batch'\n"), "{error}");
}
