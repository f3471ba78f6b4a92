//! Groups of clients and their shares, seen from outside.

use std::fs;
use std::io::BufRead;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use crate::run::has_all;
use crate::served::{Config, Served, ended, flood, scheduler, until};
use rustix::process::{Signal, getuid};
use serde_json::{Value, json};

/// The name of this process's client at an export.
fn me(export: &str) -> String {
    format!("user:{}@{export}", getuid().as_raw())
}

/// Name, group, weight and connections of each client of the only queue.
fn clients(server: &Served) -> Vec<[Value; 4]> {
    let clients = server.json(&["clients"])["clients"].clone();
    let known = |client: &Value| ["client", "group", "weight", "connections"].map(|name| client[name].clone());
    clients.as_array().expect("it is a list").iter().map(known).collect()
}

/// Path and weight of each group of the only queue.
fn groups(server: &Served) -> Value {
    let groups = server.json(&["groups"]);
    groups.as_array().expect("it is a list").iter().map(|group| json!([group["group"], group["weight"]])).collect()
}

/// A command that must succeed, whatever it warns of: what it prints.
fn change(server: &Served, arguments: &[&str]) -> String {
    let output = server.output(arguments);
    assert!(output.status.success(), "{arguments:?}: {output:?}");
    String::from_utf8(output.stdout).expect("it prints text")
}

const TREE: &str = "\
device = \"ram,size=1M\"\nscheduler = \"mq-deadline\"\n\
[groups.gold]\nweight = 300\n[groups.\"gold/batch\"]\nweight = 20\n\
[[export]]\nname = \"also\"\nqueue = \"default\"\nweight = 250\n\
[[export]]\nname = \"batch\"\nqueue = \"default\"\n\
[[clients]]\nexport = \"batch\"\nname = \"night\"\nweight = 7\ngroup = \"gold/batch\"\n";

/// Red if a connection is not one of its client's, if the file's groups, weights and names do not reach the queue, if a
/// command changes something else than it says, or if a client that comes again has forgotten what was set.
#[test]
fn the_file_places_clients_and_commands_move_them() {
    let config = Config::new(TREE);
    let server = config.serve();
    let mut connections: Vec<_> = ["", "", "also", "batch"].map(|export| server.connect(export)).into();
    let [default, also] = ["default", "also"].map(me);
    assert_eq!(groups(&server), json!([["gold", 300], ["gold/batch", 20]]));
    let night = [json!("night"), json!("gold/batch"), json!(7), json!(1)];
    let expected = [
        night.clone(),
        [json!(also), json!(null), json!(250), json!(1)],
        [json!(default), json!(null), json!(100), json!(2)],
    ];
    assert_eq!(clients(&server), expected, "in the order of their names");

    let of = |name: &str| format!("client={name}");
    assert_eq!(change(&server, &["set", "weight", &of(&default), "500"]), "500\n");
    assert_eq!(change(&server, &["set", "default", "group", &of(&default), "gold"]), "gold\n");
    assert_eq!(change(&server, &["set", "weight", "group=gold/batch", "1000"]), "1000\n");
    assert_eq!(server.say(&["get", "weight", &of(&default)]), "500\n");
    assert_eq!(server.say(&["get", "default", "group", &of(&default)]), "gold\n");
    assert_eq!(server.json(&["get", "weight", "group=gold/batch"])["of"], "group=gold/batch");
    change(&server, &["groups", "--add", "gold/new"]);
    change(&server, &["groups", "default", "--add", "gold/new"]);
    assert_eq!(groups(&server), json!([["gold", 300], ["gold/batch", 1000], ["gold/new", 100]]));
    connections.truncate(0);
    until(|| clients(&server).is_empty());
    connections.push(server.connect(""));
    assert_eq!(clients(&server), [[json!(default), json!("gold"), json!(500), json!(1)]], "it is known by its name");
    assert_eq!(change(&server, &["set", "group", &of(&default), ""]), "\n");
    assert_eq!(clients(&server)[0][1], json!(null));
    for (group, why) in [("gold/batch", "a rule places clients"), ("gold", "has gold/batch, gold/new in it")] {
        has_all(&ended(&server.output(&["groups", "--remove", group]), 2), &[why]);
    }
    change(&server, &["groups", "--remove", "gold/new"]);
    assert_eq!(connections[0].read(0, 512), [0; 512], "it is served as before");
    drop(server);
    let server = config.serve();
    assert_eq!(groups(&server), json!([["gold", 300], ["gold/batch", 20]]), "as the file says");
    let _client = server.connect("");
    assert_eq!(clients(&server), [[json!(default), json!(null), json!(100), json!(1)]]);
}

/// Red if something that is not there, or a value that cannot be, is taken, or is refused without a word that helps.
#[test]
fn what_clients_and_groups_do_not_have_is_refused() {
    let server = Config::new(TREE).serve();
    let _client = server.connect("");
    let client = format!("client={}", me("default"));
    for (command, expected) in [
        (&["set", "weight", "client=nobody", "7"][..], "no client \"nobody\" is there"),
        (&["set", "weight", "group=silver", "7"], "there is no group \"silver\""),
        (&["set", "weight", &client, "0"], "0 is not within 1..1000"),
        (&["set", "weight", &client, "much"], "weight: 'much' is not a number within 1..1000"),
        (&["set", "share", &client, "7"], "a client has no knob 'share'; it has: weight, group"),
        (&["set", "default", "weight", &client], "the words are [QUEUE] KNOB [client=NAME|group=NAME] VALUE"),
        (&["get", "group", "group=gold"], "a group has no knob 'group'; it has: weight"),
        (&["groups", "--add", "a b"], "'a b' cannot be a group; accepted: 1 to 64 letters"),
        (&["groups", "--add", "a\u{202e}b"], "'a?b' cannot be a group; accepted: 1 to 64 letters"),
        (&["set", "weight", "client=a\u{202e}b", "7"], "no client \"a\\u{202e}b\" is there"),
        (&["groups", "disk"], "there is no queue 'disk'; there are: default"),
    ] {
        let error = ended(&server.output(command), 2);
        assert!(error.contains(expected), "{command:?}: {error}");
    }
    for (request, status) in [
        ("GET /queues/default/clients/nobody/weight", "404"),
        ("PUT /queues/default/clients/nobody/weight", "400"),
        ("DELETE /queues/default/clients/nobody/weight", "405"),
        ("GET /queues/default/groups/silver", "404"),
        ("POST /queues/default/groups/gold", "405"),
        ("DELETE /queues/default/groups/gold", "409"),
        ("GET /queues/default/groups/gold/share", "404"),
        ("GET /queues/default/groups/gold%2Fbatch/weight", "200"),
        ("GET /queues/default/groups/gold%2Fbatch", "200"),
    ] {
        let (head, body) = server.http(format!("{request} HTTP/1.1\r\nHost: x\r\n\r\n").as_bytes());
        assert!(head.starts_with(&format!("HTTP/1.1 {status} ")), "{request}: {head}{body}");
    }
    assert_eq!(groups(&server), json!([["gold", 300], ["gold/batch", 20]]), "nothing has changed");
}

/// Red if SIGHUP leaves clients that are connected as they were, if a wrong file changes anything or ends the server,
/// or if what a command had changed outlives it.
#[test]
fn sighup_applies_the_files_groups_and_weights_to_those_connected() {
    let config = Config::new(TREE);
    let mut server = config.serve();
    let [mut default, _also] = ["", "also"].map(|export| server.connect(export));
    let [name, other] = ["default", "also"].map(me);
    change(&server, &["set", "weight", &format!("client={name}"), "500"]);
    let rules =
        format!("[[clients]]\nuser = {}\nexport = \"default\"\nweight = 70\ngroup = \"silver\"\n", getuid().as_raw());
    let text = TREE.replace("[groups.gold]", "[groups.silver]\n[groups.gold]").replace("weight = 250", "weight = 25");
    config.write(&(text.clone() + &rules));
    let read = format!(
        "blkmq: SIGHUP: {} is read again: its groups, clients and weights count from now on, all else when the server \
         starts anew",
        config.path()
    );
    assert_eq!(server.told_of_hangup(), read);
    for words in ["the weight of also (25) does nothing: ", "the weights of clients and groups do nothing: "] {
        let mut warning = String::new();
        server.error.read_line(&mut warning).unwrap();
        assert!(warning.starts_with(&format!("blkmq: SIGHUP: default: {words}")), "{warning}");
    }
    let placed =
        [[json!(other), json!(null), json!(25), json!(1)], [json!(name), json!("silver"), json!(70), json!(1)]];
    assert_eq!(clients(&server), placed);
    assert_eq!(groups(&server), json!([["gold", 300], ["silver", 100], ["gold/batch", 20]]));
    for wrong in ["[[clients]]\nuser = 1\ngroup = \"bronze\"\n", "[groups.a]\nweight = 0\n", "weight"] {
        config.write(&(text.clone() + wrong));
        let told = server.told_of_hangup();
        assert!(told.starts_with("blkmq: SIGHUP: nothing has changed, and what was read before counts: "), "{told}");
        assert!(told.contains("disks.toml: line "), "{told}");
    }
    assert_eq!(clients(&server), placed);
    config.write("device = \"ram,size=1M\"\n[[export]]\nname = \"also\"\nqueue = \"default\"\n");
    assert_eq!(server.told_of_hangup(), read);
    let plain = |name| [json!(name), json!(null), json!(100), json!(1)];
    assert_eq!(clients(&server), [plain(&other), plain(&name)]);
    assert_eq!((groups(&server), default.read(0, 512)), (json!([]), vec![0; 512]));
    server.signal(Signal::TERM);
}

/// Red if the sandbox keeps the server from a file that was replaced by another one, as editors do, in a folder that is
/// the program's own.
#[test]
fn a_file_that_another_one_replaced_is_read_again_in_a_folder_of_its_own() {
    let folder = tempfile::tempdir().unwrap();
    let own = folder.path().join("etc-blkmq");
    fs::create_dir(&own).unwrap();
    let path = own.join("disks.toml");
    fs::write(&path, "device = \"ram,size=1M\"\n").unwrap();
    let mut server = Served::start(&["--config", path.to_str().unwrap()]);
    let replace = |path: &Path| {
        fs::write(own.join("new"), "device = \"ram,size=1M\"\nallow = [{ user = \"root\" }]\n[groups.gold]\n").unwrap();
        fs::rename(own.join("new"), path).unwrap();
    };
    replace(&path);
    let told = server.told_of_hangup();
    assert!(told.contains("is read again"), "{told}");
    assert_eq!(groups(&server), json!([["gold", 100]]));
}

/// Red if the rule by which the sandbox refuses a file that `sed -i` has put in the place of another is not told.
#[test]
fn the_rule_that_keeps_a_replaced_file_from_being_read_is_told() {
    let folder = tempfile::Builder::new().prefix("tenants").tempdir().unwrap();
    let path = folder.path().join("disks.toml");
    let text = "device = \"ram,size=1M\"\n";
    fs::write(&path, text).unwrap();
    let mut server = Served::start(&["--config", path.to_str().unwrap()]);
    if !server.greeting.contains("sandbox: Landlock") {
        println!("SKIP Landlock is not to be had here");
        return;
    }
    fs::write(folder.path().join("new"), text).unwrap();
    fs::rename(folder.path().join("new"), &path).unwrap();
    let told = server.told_of_hangup();
    assert!(told.contains("'sed -i'") && told.contains("only in a folder whose name contains 'blkmq'"), "{told}");
}

/// The numbers that are told of a client, as `second.due` names them.
fn part(client: &Value, window: &str, what: &str) -> f64 {
    client[window][what].as_f64().unwrap_or(f64::NAN)
}

/// Red if the share due does not go by weight among those that ask, if what was received does not add up, or if it is
/// not told who waits and who asks for less.
#[test]
fn shares_due_and_received_are_told_with_who_waits() {
    let config = Config::new(
        "device = \"null,irqmode=2,completion_nsec=1ms,hw_queue_depth=1,size=1G\"\nscheduler = \"none\"\n\
         [[export]]\nname = \"gold\"\nqueue = \"default\"\nweight = 400\n[[export]]\nname = \"calm\"\nqueue = \"default\"\n",
    );
    let server = config.serve();
    let (answered, ends) = (AtomicU64::new(0), AtomicBool::new(false));
    let [mut one, mut gold, mut calm] = ["", "gold", "calm"].map(|export| server.connect(export));
    thread::scope(|scope| {
        scope.spawn(|| flood(&mut one, 16, &answered, &ends));
        scope.spawn(|| flood(&mut gold, 16, &answered, &ends));
        let of = |name: &str| -> Value {
            let clients = server.json(&["clients"])["clients"].clone();
            clients.as_array().unwrap().iter().find(|client| client["client"] == json!(me(name))).unwrap().clone()
        };
        // The calm client reads once in a while, and the others take what they get.
        until(|| {
            calm.read(0, 512);
            thread::sleep(Duration::from_secs(1));
            let [default, gold, calm] = ["default", "gold", "calm"].map(of);
            let is_near = |client: &Value, window, due: f64| (part(client, window, "due") - due).abs() < 0.02;
            let are_due = |window| is_near(&default, window, 0.2) && is_near(&gold, window, 0.8);
            let sum: f64 = [&default, &gold, &calm].map(|client| part(client, "second", "received")).iter().sum();
            let waits =
                [&default, &gold].iter().all(|client| client["waits"] == true && client["waiting"].as_u64() > Some(0));
            are_due("second") && are_due("minute") && (sum - 1.0).abs() < 0.01 && waits && calm["asks_for_less"] == true
        });
        let metrics = server.get("/metrics");
        let told = |name: &str, labels: &str| {
            let begin = format!("blkmq_{name}{{queue=\"default\",group=\"\",client=\"{}\"{labels}}} ", me("gold"));
            let found = metrics.lines().find_map(|line| line.strip_prefix(&begin));
            found.unwrap_or_else(|| panic!("{begin}: {metrics}")).parse::<f64>().expect("it is a number")
        };
        assert_eq!((told("share_weight", ""), told("share_connections", "")), (400.0, 1.0));
        assert!((told("share_due_ratio", ",window=\"1m\"") - 0.8).abs() < 0.05);
        assert!((0.1..0.9).contains(&told("share_received_ratio", ",window=\"1s\"")));
        let table = server.say(&["clients"]);
        assert!(table.contains("waits") && table.contains("asks for less"), "{table}");
        assert!(table.contains("\nIn queue default weights do nothing: "), "{table}");
        ends.store(true, Ordering::Relaxed);
    });
    until(|| {
        let is_idle = |client: &Value| client["second"]["received"].is_null() && client["waits"] == false;
        server.json(&["clients"])["clients"].as_array().unwrap().iter().all(is_idle)
    });
}

/// Red if a command or the server keeps silent about weights that do nothing.
#[test]
fn it_is_said_that_weights_do_nothing() {
    let server = Config::new(TREE).serve();
    assert!(server.greeting.contains("default: the weight of also (250) does nothing: "), "{}", server.greeting);
    let output = server.output(&["set", "weight", "group=gold", "7"]);
    let warning = String::from_utf8(output.stderr).unwrap();
    assert!(warning.starts_with("blkmq: the weight of group=gold does nothing now: "), "{warning}");
    let set = server.json(&["set", "weight", "group=gold", "8"]);
    assert_eq!(set["warnings"].as_array().map(Vec::len), Some(1));
    assert!(server.json(&["list"])[0]["queues"][0]["idle_weights"].is_string());
    assert!(server.say(&["groups"]).contains("\nIn queue default weights do nothing: "));
}

/// Red if `--check` approves of weights that the start warns of, or warns of others.
#[test]
fn check_warns_of_what_the_start_warns_of() {
    let pairs = [
        (UNNAMED, "default: clients have weights and no scheduler is named, so the scheduler is fair"),
        (TREE, "default: the weights of clients and groups do nothing: mq-deadline does not share"),
        (UNDER_BFQ, "default: weights do not hold at the start of a load and after each pause: "),
        ("device = \"null,size=1M\"\n", "default: null,size=1M THROWS AWAY WHAT IS WRITTEN"),
    ];
    for (text, words) in pairs {
        let config = Config::new(text);
        let server = config.serve();
        // Nothing is suggested that ends shares.
        let suggestions = ["scheduler none", "\n  blkmq clients --control "].map(|text| server.greeting.contains(text));
        assert_eq!(suggestions, [!text.contains("weight"), text.contains("weight")], "{}", server.greeting);
        let output = server.output(&["serve", "--check", &config.path()]);
        assert!(output.status.success(), "{output:?}");
        let warned = String::from_utf8(output.stderr).unwrap();
        assert!(warned.contains(words), "{warned}");
        let greeted: Vec<_> = server.greeting.lines().filter(|line| line.starts_with("blkmq: default: ")).collect();
        assert_eq!(warned.lines().collect::<Vec<_>>(), greeted);
    }
    let config = Config::new(&format!("{UNDER_BFQ}[set]\n\"iosched/low_latency\" = 0\n"));
    let output = config.serve().output(&["serve", "--check", &config.path()]);
    let warned = String::from_utf8(output.stderr).unwrap();
    assert!(!warned.contains("weights") && warned.lines().count() == 1, "{warned}");
}

/// Weights, and no scheduler.
const UNNAMED: &str = "device = \"ram,size=1M\"\n[groups.gold]\nweight = 300\n";

/// Red if weights without a scheduler do nothing; if a file that gets weights later is taken without a word, or is said
/// to have them; or if the scheduler that the operator names does not count.
#[test]
fn weights_without_a_scheduler_get_fair() {
    let config = Config::new("device = \"ram,size=1M\"\n");
    let mut server = config.serve();
    assert_eq!(server.say(&["get", "scheduler"]), scheduler("mq-deadline") + "\n", "without weights");
    config.write(UNNAMED);
    assert!(server.told_of_hangup().contains(" is read again: "));
    for words in [
        "the weights of clients and groups do nothing: mq-deadline does not share by weight; set the knob scheduler to \
         fair\n",
        "the file names no scheduler, so when the server starts anew it takes fair; to take it now, set the knob \
         scheduler to fair\n",
    ] {
        let mut line = String::new();
        server.error.read_line(&mut line).unwrap();
        assert_eq!(line, format!("blkmq: SIGHUP: default: {words}"));
    }
    assert_eq!(change(&server, &["set", "scheduler", "fair"]), scheduler("fair") + "\n");
    assert!(server.told_of_hangup().contains(" is read again: "));
    drop(server);

    let mut server = config.serve();
    assert_eq!(server.say(&["get", "scheduler"]), scheduler("fair") + "\n");
    assert!(server.json(&["list"])[0]["queues"][0]["idle_weights"].is_null());
    let output = server.output(&["set", "scheduler", "kyber"]);
    let warning = String::from_utf8(output.stderr).unwrap();
    assert_eq!(
        warning,
        "blkmq: the weights of clients and groups do nothing: kyber does not share by weight; set the knob scheduler to \
         fair\n"
    );
    server.signal(Signal::TERM);
    server.end();

    let named = format!("scheduler = \"none\"\n{UNNAMED}");
    let server = Config::new(&named).serve();
    assert_eq!(server.say(&["get", "scheduler"]), scheduler("none") + "\n");
    let wrong = Config::new(&format!("set = {{ \"iosched/fifo_batch\" = 4 }}\n{UNNAMED}"));
    let error = wrong.checked(2);
    let end = "'iosched/fifo_batch' belongs to mq-deadline, and the scheduler is fair, because clients have weights and no \
               scheduler is named\n";
    assert!(error.contains("disks.toml: line 1: unknown knob") && error.ends_with(end), "{error}");
}

/// A queue under bfq whose device does one request at a time, with an export `gold` beside the default one.
const UNDER_BFQ: &str = "\
device = \"null,irqmode=2,completion_nsec=1ms,hw_queue_depth=1,size=1G\"\nscheduler = \"bfq\"\n\
[groups.low]\nweight = 100\n[groups.high]\nweight = 400\n\
[[export]]\nname = \"gold\"\nqueue = \"default\"\nweight = 400\n";

/// Keeps reads outstanding on a connection to each of these exports, while `f` watches.
fn flooded(server: &mut Served, exports: &[&str], f: impl FnOnce(&mut Served)) {
    let (answered, ends) = (AtomicU64::new(0), AtomicBool::new(false));
    let mut connections: Vec<_> = exports.iter().map(|export| server.connect(export)).collect();
    thread::scope(|scope| {
        for connection in &mut connections {
            scope.spawn(|| flood(connection, 16, &answered, &ends));
        }
        f(server);
        ends.store(true, Ordering::Relaxed);
    });
}

/// Waits until the clients of the default export and of `gold` have received these parts in a second.
fn until_they_get(server: &Served, parts: [f64; 2]) {
    until(|| {
        let clients = server.json(&["clients"])["clients"].clone();
        let of = |name| clients.as_array()?.iter().find(|client| client["client"] == json!(me(name)));
        let received = ["default", "gold"].map(|name| part(of(name).expect("it is connected"), "second", "received"));
        received.iter().zip(parts).all(|(got, due)| (got - due).abs() < 0.08)
    });
}

/// Red if bfq is not told of the weight of a client or group, of a change of it, or of a client's move, or if it
/// forgets them when another scheduler takes its place for a while.
#[test]
fn under_bfq_clients_receive_what_is_due() {
    let mut server = Config::new(UNDER_BFQ).serve();
    flooded(&mut server, &["", "gold"], |server| {
        until_they_get(server, [0.2, 0.8]);
        assert!(!server.say(&["clients"]).contains("weights do nothing"));
        change(server, &["set", "weight", &format!("client={}", me("default")), "400"]);
        until_they_get(server, [0.5, 0.5]);
        change(server, &["set", "group", &format!("client={}", me("default")), "high"]);
        change(server, &["set", "group", &format!("client={}", me("gold")), "low"]);
        until_they_get(server, [0.8, 0.2]);
        change(server, &["set", "weight", "group=low", "400"]);
        until_they_get(server, [0.5, 0.5]);
        change(server, &["set", "weight", "group=low", "100"]);
        change(server, &["set", "scheduler", "none"]);
        until_they_get(server, [0.5, 0.5]);
        change(server, &["set", "scheduler", "bfq"]);
        until_they_get(server, [0.8, 0.2]);
    });
}

/// Red (hangs) if fair, which nobody named, is not told of weights, groups and moves; if it counts a group for more
/// than a client of the same weight beside it; or if the parts that are due are not those that it gives.
#[test]
fn under_fair_clients_receive_what_is_due() {
    let mut server = Config::new(&UNDER_BFQ.replace("scheduler = \"bfq\"\n", "")).serve();
    assert!(server.greeting.contains("so the scheduler is fair\n"), "{}", server.greeting);
    flooded(&mut server, &["", "gold"], |server| {
        let until_due_and_got = |parts: [f64; 2]| {
            until_they_get(server, parts);
            until(|| {
                let clients = server.json(&["clients"])["clients"].clone();
                let due = clients.as_array().expect("it is a list").iter().map(|client| part(client, "second", "due"));
                due.zip(parts).all(|(due, part)| (due - part).abs() < 0.02)
            });
        };
        until_due_and_got([0.2, 0.8]);
        let client = format!("client={}", me("default"));
        change(server, &["set", "group", &client, "high"]);
        until_due_and_got([0.5, 0.5]);
        change(server, &["set", "group", &client, "low"]);
        until_due_and_got([0.2, 0.8]);
        change(server, &["set", "weight", "group=low", "800"]);
        until_due_and_got([0.67, 0.33]);
        let table = server.say(&["clients"]);
        assert!(table.contains("waits") && !table.contains("weights do nothing"), "{table}");
        assert!(server.say(&["stat"]).contains("; for shares alone\n"), "{}", server.say(&["stat"]));
    });
}

/// Red (hangs) if each connection of a client has a queue of bfq's own: with three connections the client would receive
/// three quarters, and not its half.
#[test]
fn under_bfq_connections_of_one_client_count_as_one() {
    let mut server = Config::new(&UNDER_BFQ.replace("\nweight = 400\n", "\n")).serve();
    flooded(&mut server, &["", "", "", "gold"], |server| {
        until_they_get(server, [0.5, 0.5]);
        let one = |export, connections: u64| [json!(me(export)), json!(null), json!(100), json!(connections)];
        assert_eq!(clients(server), [one("default", 3), one("gold", 1)]);
    });
}

/// Red (hangs) if SIGHUP tells bfq nothing of the weights and groups that the file has now, for clients that wait at
/// that time, or if a wrong file changes what they get.
#[test]
fn under_bfq_sighup_changes_what_is_received() {
    let config = Config::new(UNDER_BFQ);
    let mut server = config.serve();
    flooded(&mut server, &["", "gold"], |server| {
        let told_of = |server: &mut Served, text: &str| {
            config.write(text);
            server.told_of_hangup()
        };
        let rule = |export, group| format!("[[clients]]\nexport = \"{export}\"\ngroup = \"{group}\"\n");
        let grouped = [UNDER_BFQ, &rule("default", "high"), &rule("gold", "low")].concat();
        let calm = UNDER_BFQ.replace("\nweight = 400\n", "\nweight = 100\n");
        for (text, parts) in [(&*calm, [0.5, 0.5]), (&grouped, [0.8, 0.2]), (UNDER_BFQ, [0.2, 0.8])] {
            assert!(told_of(server, text).contains(" is read again: "));
            let mut warning = String::new();
            server.error.read_line(&mut warning).unwrap();
            assert!(warning.contains("SIGHUP: default: weights do not hold at the start of a load"), "{warning}");
            until_they_get(server, parts);
        }
        let wrong = grouped.replace("weight = 100", "weight = 1001");
        assert!(told_of(server, &wrong).starts_with("blkmq: SIGHUP: nothing has changed"));
        let plain = |export, weight: u64| [json!(me(export)), json!(null), json!(weight), json!(1)];
        assert_eq!(clients(server), [plain("default", 100), plain("gold", 400)]);
        until_they_get(server, [0.2, 0.8]);
    });
}
