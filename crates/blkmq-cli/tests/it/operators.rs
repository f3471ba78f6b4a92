//! What operators see of a server and do with it, from outside.

use std::os::unix::net::UnixDatagram;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use blkmq::sched::limiter::Phase;
use blkmq::{Bio, Buffer, Client, RequestQueue};
use rustix::process::{Signal, getuid};

use crate::served::{AtEnd, Config, READ, Served, WRITE, ended, flood, program, scrape, until};
use serde_json::{Value, json};

/// Red if the port is one that other machines reach, leads to anything but the metrics, or takes anything but GET.
#[test]
fn metrics_are_read_by_tcp_and_nothing_is_changed_there() {
    let (server, port) = Served::with_metrics(&["--device", "ram,size=1M"]);
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

/// A server of a volume of 5000 requests a second with a limiter, while a client has 64 reads outstanding and the
/// limiter holds some of them back.
fn with_limiter(look: impl FnOnce(&Served)) {
    let volume = ["--device", "cloud,iops=5000,size=16M", "--scheduler", "mq-deadline", "--set", "wbt_lat_usec=-1"];
    let server = Served::start(&volume);
    let (answered, ends) = (AtomicU64::new(0), AtomicBool::new(false));
    let mut client = server.connect("");
    thread::scope(|scope| {
        let _ended = AtEnd(|| ends.store(true, Ordering::Relaxed));
        scope.spawn(|| flood(&mut client, 64, &answered, &ends));
        until(|| {
            let limiter = &server.json(&["stat"])["queues"][0]["limiter"];
            !limiter["ceilings"].is_null() && limiter["phase"] != "open" && !limiter["target_met"].is_null()
        });
        look(&server);
    })
}

/// Red if what a limiter found does not come out of a server, or comes out of stat, the control socket and the metrics
/// as something else; or if a queue without a limiter has one.
#[test]
fn what_a_limiter_found_is_told() {
    with_limiter(|server| {
        let told: Value = serde_json::from_str(&server.get("/queues/default/stat")).unwrap();
        let limiter = &told["limiter"];
        let reads = limiter["ceilings"]["read"]["requests_per_second"].as_f64().unwrap();
        assert!(reads > 0.0 && reads < 10_000.0, "the volume lets pass 5000 in a second: {limiter}");
        assert!(limiter["ceilings_measured"].as_u64() >= Some(1), "{limiter}");
        let metrics = server.get("/metrics");
        let value = |series: &str| {
            let found = metrics.lines().find_map(|line| line.strip_prefix(&format!("blkmq_{series} ")));
            found.unwrap_or_else(|| panic!("{series}: {metrics}")).parse::<f64>().unwrap()
        };
        let sum: f64 = Phase::ALL
            .iter()
            .map(|phase| value(&format!("limiter_phase{{queue=\"default\",phase=\"{}\"}}", phase.name())))
            .sum();
        assert_eq!(sum, 1.0, "it is in one phase: {metrics}");
        for operation in ["read", "write"] {
            for unit in ["requests", "bytes"] {
                let series =
                    format!("limiter_ceiling_{unit}_per_second{{queue=\"default\",operation=\"{operation}\"}}");
                assert!(value(&series) > 0.0, "{series}");
            }
        }
        for name in ["in_flight_seconds", "held_back_requests", "target_met"] {
            assert!(value(&format!("limiter_{name}{{queue=\"default\"}}")) >= 0.0, "{name}");
        }
        assert!(value("limiter_target_seconds{queue=\"default\"}") < 1.0, "seconds: {metrics}");
        assert!(value("limiter_ceilings_measured_total{queue=\"default\"}") >= 1.0);
        assert!(value("device_requests{queue=\"default\",operation=\"read\"}") <= 64.0);
        let words = server.say(&["stat"]);
        let [_, _, now, found] = &words.lines().collect::<Vec<_>>()[..] else { panic!("{words}") };
        assert!(now.starts_with("  limiter ") && now.contains(" ms with the device, "), "{words}");
        assert!(found.starts_with("  ceilings: reads ") && found.contains("; measured "), "{words}");

        server.say(&["set", "wbt_lat_usec", "0"]);
        assert!(server.json(&["stat"])["queues"][0]["limiter"].is_null());
        assert!(!server.get("/metrics").contains("\nblkmq_limiter_"), "there is no limiter");
        assert_eq!(server.say(&["stat"]).lines().count(), 2);
    });
}

/// Red if two exports of one queue are not told apart, if an error is counted as another kind, or if the answers to a
/// client that has left are no longer counted.
#[test]
fn clients_stat_and_metrics_name_the_export_and_count_errors_by_kind() {
    let text = "device = \"ram,size=1M\"\n[[export]]\nname = \"also\"\nqueue = \"default\"\nread_only = true\n";
    let (server, port) = Served::with_metrics(&["--config", &Config::new(text).path()]);
    let mut client = server.connect("also");
    assert_eq!(client.write(0, &[1; 512]), 1, "the export is read-only");
    client.send(READ, 1, 1 << 20, 512, &[]);
    assert_eq!(client.receive(), Some((1, 22)), "beyond the end");
    let shown = server.json(&["clients"])["connections"][0].clone();
    assert_eq!((&shown["export"], &shown["queue"]), (&json!("also"), &json!("default")));
    let expected = json!({"io": 0, "invalid": 1, "nomem": 0, "nospace": 0, "notsup": 0, "perm": 1, "shutdown": 0});
    assert_eq!(shown["errors"], expected);
    let me = format!("process {} of user", std::process::id());
    assert!(shown["peer"].as_str().unwrap().starts_with(&me), "{shown}");
    let name = format!("user:{}@also", getuid().as_raw());
    assert_eq!(shown["client"], json!(name));
    let table = server.say(&["clients"]);
    let line = table.lines().find(|line| line.starts_with(&me)).unwrap_or_else(|| panic!("{table}"));
    let words: Vec<_> = line.split_whitespace().skip(5).collect();
    assert_eq!(words, ["nbd", &name, "also", "default", "1", "2", "0", "2"], "front-end, client, export, queue, ...");
    let peer = shown["peer"].as_str().unwrap();
    let labels = format!("{{queue=\"default\",export=\"also\",front_end=\"nbd\",client=\"1\",peer=\"{peer}\"}}");
    let metrics = scrape(&port, "GET /metrics").1;
    assert!(metrics.contains(&format!("\nblkmq_client_errors_total{labels} 2\n")), "{metrics}");

    drop(client);
    while server.json(&["clients"])["connections"] != json!([]) {}
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
        let labels = format!("queue=\"default\",export=\"{export}\",front_end=\"nbd\",kind=\"{kind}\"");
        let line = format!("\nblkmq_request_errors_total{{{labels}}} {count}\n");
        assert!(metrics.contains(&line), "{line}{metrics}");
    }
    assert!(server.json(&["stat"])["queues"][0]["err/s"].as_f64() > Some(0.0));
}

/// Red if `--check` opens or locks a device or a socket, if it does not find what is wrong in the file, or if it fails
/// because a server runs.
#[test]
fn a_file_is_checked_while_a_server_runs_with_it() {
    let config = Config::new("");
    let folder = config.0.path();
    let [disk, nbd] = ["disk.img", "nbd"].map(|name| folder.join(name).display().to_string());
    std::fs::write(&disk, vec![0; 1 << 20]).unwrap();
    let write = |text: &str| config.write(&format!("device = \"file,path={disk}\"\nnbd = \"{nbd}\"\n{text}"));
    write(
        "metrics = 0\n[[export]]\nname = \"fast\"\ndevice = \"ram\"\nset = { \"iosched/fifo_batch\" = 4 }\nscheduler = \"mq-deadline\"\n",
    );
    let path = config.path();
    let mut server = Served::start_in(folder, &["--config", &path]);
    let good = config.checked(0);
    assert!(good.starts_with("good: default, fast at "), "{good}");
    for (text, words) in [
        ("tls = \"on\"\ntls_certificates = \"/nowhere\"", "line 4: /nowhere/server-cert.pem: "),
        ("metrics = \":9100\"", "line 3: ':9100': no host or no port"),
        ("drain_timeout = \"soon\"", "line 3: 'soon' is not a time"),
        ("[[export]]\nname = \"a\"\ndevice = \"tape\"", "line 5: there is no device \"tape\""),
        ("[[export]]\nname = \"a\"\ndevice = \"file,pth=x\"", "line 5: device file: there is no parameter \"pth\""),
        ("scheduler = \"no-such-scheduler\"", "line 3: unknown scheduler 'no-such-scheduler'"),
        ("set = { nr_requests = 0 }", "line 3: nr_requests: 0 is not within 1.."),
        ("memory = \"much\"", "line 3: "),
    ] {
        write(text);
        let error = config.checked(2);
        assert!(error.starts_with(&format!("blkmq: {path}: {words}")), "{error}");
    }
    assert_eq!(server.terminate(), (Some(0), String::new()));
}

/// Red if the manager is told before clients are served, if it is not told of the end, or if the command of `--run`
/// inherits the manager's socket.
#[test]
fn the_service_manager_is_told_that_the_server_serves_and_that_it_ends() {
    let folder = tempfile::tempdir().unwrap();
    let manager = UnixDatagram::bind(folder.path().join("notify")).unwrap();
    manager.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    let heard = || {
        let mut bytes = [0; 256];
        let length = manager.recv(&mut bytes).unwrap();
        String::from_utf8(bytes[..length].to_vec()).unwrap()
    };
    let nbd = folder.path().join("nbd").display().to_string();
    let mut serve = program(folder.path(), &["serve", "--device", "ram,size=1M", "--nbd", &nbd]);
    serve.env("NOTIFY_SOCKET", folder.path().join("notify"));
    let mut server = Served::begin(folder.path(), serve);
    assert_eq!(heard(), "READY=1\n");
    assert_eq!(server.connect("").size, 1 << 20);
    server.signal(Signal::TERM);
    assert_eq!(heard(), "STOPPING=1\n");
    assert_eq!(server.end(), (Some(0), String::new()));
    let mut run = program(folder.path(), &["serve", "--run", "test -z \"$NOTIFY_SOCKET\""]);
    assert_eq!(ended(&run.env("NOTIFY_SOCKET", folder.path().join("notify")).output().unwrap(), 0), "");
}

/// Bytes of a block that the load writes.
const BLOCK: usize = 4096;
/// Blocks of each of its threads.
const BLOCKS: u64 = 64;

/// Writes the round's number to each of a thread's blocks, and reads what the round before wrote, until `ends`. Returns
/// the last round.
fn load(q: &RequestQueue, thread: u64, rounds: &AtomicU64, ends: &AtomicBool) -> u64 {
    let mut submitter = q.submitter(&Client::new("load")).expect("there is room for one");
    let first = thread * BLOCKS;
    let mut round = 0_u64;
    let mut all = |bios: Vec<Bio>| -> Vec<Bio> {
        let mut over = Vec::new();
        for bio in bios {
            submitter.submit(bio).expect("there is room for so few");
        }
        while over.len() < BLOCKS as usize {
            submitter.wait(1, None);
            while let Some(done) = submitter.reap() {
                assert!(done.status.is_ok(), "{done:?}");
                over.push(done.bio);
            }
        }
        over
    };
    while !ends.load(Ordering::Relaxed) {
        round += 1;
        let sector = |block: u64| (first + block) * (BLOCK / 512) as u64;
        let stamp = round.to_le_bytes().repeat(BLOCK / 8);
        all((0..BLOCKS).map(|block| Bio::write(sector(block), Buffer::from(&stamp[..]))).collect());
        for bio in all((0..BLOCKS).map(|block| Bio::read(sector(block), Buffer::zeroed(BLOCK))).collect()) {
            let data = &bio.buffers.iter().next().expect("a read has a buffer")[..];
            assert!(data.chunks(8).all(|chunk| chunk == round.to_le_bytes()), "sector {} in round {round}", bio.sector);
        }
        rounds.fetch_add(1, Ordering::Relaxed);
    }
    round
}

/// Red if the old server removes or closes the socket, if the new one serves before the old one has let go of the file,
/// or if a request of a client that connects anew is lost. In each case an operation would fail, or a read would find
/// old data.
#[test]
fn a_server_is_replaced_under_load_and_no_acknowledged_write_is_lost() {
    const THREADS: u64 = 2;
    let folder = tempfile::tempdir().unwrap();
    let [disk, nbd, control] =
        ["disk.img", "nbd", "control"].map(|name| folder.path().join(name).display().to_string());
    std::fs::write(&disk, vec![0; (THREADS * BLOCKS) as usize * BLOCK]).unwrap();
    let arguments = [&disk, "--nbd", &nbd, "--control", &control];
    let mut server = Served::start_in(folder.path(), &arguments);
    let spec = format!("nbd,uri=nbd+unix:///?socket={nbd},submit_queues=2,reconnect_delay=60s,keeps_cache=1");
    let q = RequestQueue::builder(blkmq_drivers::open(&spec).unwrap()).build().unwrap();
    let (rounds, ends) = (AtomicU64::new(0), AtomicBool::new(false));
    let last = thread::scope(|scope| {
        let threads: Vec<_> = (0..THREADS)
            .map(|thread| {
                let (q, rounds, ends) = (&q, &rounds, &ends);
                scope.spawn(move || load(q, thread, rounds, ends))
            })
            .collect();
        let go_on = || {
            let before = rounds.load(Ordering::Relaxed);
            while rounds.load(Ordering::Relaxed) < before + 20 && threads.iter().all(|thread| !thread.is_finished()) {
                thread::sleep(Duration::from_millis(5));
            }
        };
        for _ in 0..2 {
            go_on();
            let next = Served::start_in(folder.path(), &[&arguments[..], &["--replace", &control]].concat());
            // The old server may have written that it waited for its own predecessor.
            let (code, said) = std::mem::replace(&mut server, next).end();
            assert_eq!(code, Some(0), "{said}");
        }
        go_on();
        ends.store(true, Ordering::Relaxed);
        threads.into_iter().map(|thread| thread.join().unwrap()).collect::<Vec<_>>()
    });
    drop(q);
    let (code, said) = server.terminate();
    assert_eq!(code, Some(0), "{said}");
    let data = std::fs::read(&disk).unwrap();
    for (block, data) in data.chunks(BLOCK).enumerate() {
        let round = last[block / BLOCKS as usize];
        assert!(data.chunks(8).all(|chunk| chunk == round.to_le_bytes()), "block {block} is not of round {round}");
    }
}

/// Red if `take_place` does not check the plan before it asks for the sockets: the server with the wrong option would
/// end the other one, and then fail.
#[test]
fn what_cannot_be_replaced_is_said() {
    let folder = tempfile::tempdir().unwrap();
    let server = Served::start_in(folder.path(), &["--device", "ram,size=1M"]);
    let replace =
        |arguments: &[&str]| program(folder.path(), &[&["serve", "--replace"], arguments].concat()).output().unwrap();
    let error = ended(&replace(&["/nowhere"]), 1);
    assert!(error.starts_with("blkmq: --replace: /nowhere: No such file"), "{error}");
    // A wrong option is found before the other server ends.
    let error = ended(&replace(&[&server.control, "--scheduler", "no-such-scheduler"]), 2);
    assert!(error.starts_with("blkmq: --scheduler: unknown scheduler 'no-such-scheduler'"), "{error}");
    assert_eq!(server.say(&["get", "nomerges"]), "0\n", "it runs on");
}

/// A file of the folder `docs/deploy`.
fn deployed(name: &str) -> std::path::PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/deploy").join(name)
}

/// Red if the file has an option that the program does not know, or one that does nothing.
#[test]
fn the_configuration_in_the_documentation_is_right() {
    let folder = tempfile::tempdir().unwrap();
    let path = deployed("blkmq.toml").display().to_string();
    // Nothing is written to standard error, so no setting of it does nothing.
    let good = ended(&program(folder.path(), &["serve", "--check", &path]).output().unwrap(), 0);
    assert!(good.starts_with("good: "), "{good}");
}

/// What begins with `blkmq_` in a text.
fn metrics_of(text: &str) -> Vec<&str> {
    let is_part = |c: char| c.is_ascii_alphanumeric() || c == '_';
    text.split(|c| !is_part(c)).filter(|word| word.starts_with("blkmq_") && *word != "blkmq_drivers").collect()
}

/// The queries of the dashboard, with a time for the variable that stands for one.
fn queries(dashboard: &Value) -> Vec<String> {
    let panels = dashboard["panels"].as_array().expect("a dashboard has panels");
    let targets = panels.iter().filter_map(|panel| panel["targets"].as_array()).flatten();
    targets.map(|target| target["expr"].as_str().expect("a query").replace("$__rate_interval", "5m")).collect()
}

/// Red if the documentation, a rule, a rule's test or the dashboard names a metric that a server does not print; or if
/// the dashboard is no JSON, or leaves out what tells a limiter's state.
#[test]
fn the_metrics_in_the_documentation_are_there() {
    let server = Served::start(&["--device", "ram,size=1M"]);
    let mut names = Vec::new();
    let metrics = server.get("/metrics");
    for line in metrics.lines().filter_map(|line| line.strip_prefix("# TYPE ")) {
        let (family, kind) = line.split_once(' ').expect("a family has a kind");
        let ends: &[&str] = match kind {
            "counter" => &["_total"],
            "info" => &["_info"],
            "histogram" => &["_bucket", "_count", "_sum"],
            _ => &[""],
        };
        names.extend(ends.iter().map(|end| format!("{family}{end}")));
    }
    let files = ["../deploy.md", "blkmq.rules.yml", "blkmq.rules.test.yml", "blkmq.dashboard.json"];
    let [page, rules, tests, dashboard] = files.map(|name| std::fs::read_to_string(deployed(name)).unwrap());
    for (file, text) in files.iter().zip([&page, &rules, &tests, &dashboard]) {
        for name in metrics_of(text) {
            assert!(names.iter().any(|known| known == name), "{file}: {name}: {names:?}");
        }
    }
    assert!(!metrics_of(&page).is_empty() && metrics_of(&rules).len() >= 8, "{rules}");
    let dashboard: Value = serde_json::from_str(&dashboard).unwrap();
    let queries = queries(&dashboard);
    assert!(queries.len() >= 16, "{queries:?}");
    for name in names.iter().filter(|name| name.starts_with("blkmq_limiter_")) {
        assert!(queries.iter().any(|query| metrics_of(query).contains(&name.as_str())), "{name} is in no panel");
    }
}

/// Red if Prometheus does not take a rule or a query of the dashboard, if an alert has no test, or if one fires when it
/// should not or does not when it should.
#[test]
fn the_rules_do_what_they_say() {
    let promtool = |arguments: &[&str]| std::process::Command::new("promtool").args(arguments).output();
    if !promtool(&["--version"]).is_ok_and(|output| output.status.success()) {
        println!("SKIP promtool is missing: scripts/tools promtool fetches it");
        return;
    }
    let passes = |arguments: &[&str]| {
        let output = promtool(arguments).unwrap();
        let said = [output.stdout, output.stderr].map(|text| String::from_utf8_lossy(&text).into_owned()).concat();
        assert!(output.status.success() && said.contains("SUCCESS"), "{arguments:?}: {said}");
    };
    let [rules, tests] = ["blkmq.rules.yml", "blkmq.rules.test.yml"].map(|name| deployed(name).display().to_string());
    passes(&["check", "rules", &rules]);
    passes(&["test", "rules", &tests]);
    let dashboard = std::fs::read_to_string(deployed("blkmq.dashboard.json")).unwrap();
    let recorded = |(at, query): (usize, String)| json!({ "record": format!("panel:{at}"), "expr": query });
    let recorded: Vec<_> =
        queries(&serde_json::from_str(&dashboard).unwrap()).into_iter().enumerate().map(recorded).collect();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("queries.yml");
    // JSON is YAML too.
    std::fs::write(&path, json!({ "groups": [{ "name": "queries", "rules": recorded }] }).to_string()).unwrap();
    passes(&["check", "rules", path.to_str().unwrap()]);
    let text = |path: &str| std::fs::read_to_string(path).unwrap();
    let (rules, tests) = (text(&rules), text(&tests));
    let limiter = rules.split_once("name: blkmq-limiter").expect("there is such a group").1;
    let alerts: Vec<_> = limiter.lines().filter_map(|line| line.trim().strip_prefix("- alert: ")).collect();
    assert!(alerts.len() >= 3, "{limiter}");
    for alert in alerts {
        assert!(tests.contains(&format!("alertname: {alert} }}")), "{alert} is not said to be silent at any time");
        assert!(tests.contains(&format!("alertname: {alert}\n")), "{alert} never fires");
    }
}

/// Red if a unit has a setting that systemd does not know, or one that makes no sense.
#[test]
fn the_units_are_what_systemd_takes() {
    let found = std::process::Command::new("systemd-analyze").arg("--version").output();
    if !found.is_ok_and(|output| output.status.success()) {
        println!("SKIP systemd-analyze is missing: it comes with systemd");
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let units = ["blkmq.socket", "blkmq.service"].map(|name| {
        let text = std::fs::read_to_string(deployed(name)).unwrap();
        // `systemd-analyze` checks that the program exists.
        let text = text.replace("/usr/local/bin/blkmq", env!("CARGO_BIN_EXE_blkmq"));
        let path = folder.path().join(name);
        std::fs::write(&path, text).unwrap();
        path
    });
    let output = std::process::Command::new("systemd-analyze").arg("verify").args(units).output().unwrap();
    let error = String::from_utf8_lossy(&output.stderr);
    let ours: Vec<_> = error.lines().filter(|line| line.contains("blkmq")).collect();
    assert!(output.status.success() && ours.is_empty(), "{error}");
}
