//! Configuration files and command lines, good and bad.

use blkmq::{Class, IoPriority};
use blkmq_export::{Allow, Rule};
use clap::Parser;

use super::*;

mod page;

/// The options of a command line.
#[derive(Debug, Parser)]
struct Line {
    #[command(flatten)]
    serve: Serve,
}

fn merged(arguments: &[&str], text: &str) -> Result<Plan, TextError> {
    let line = Line::try_parse_from([&["serve"], arguments].concat()).unwrap();
    Plan::merge(&line.serve, File::parse(Path::new("disks.toml"), text)?)
}

fn error(arguments: &[&str], text: &str) -> String {
    merged(arguments, text).unwrap_err().to_string()
}

/// The device of its own that an export has, and what its queue is built from.
fn own(export: &Export) -> (&str, &Settings) {
    let Disk::Own { device, settings } = &export.disk else { panic!("{export:?}") };
    (&device.text, settings)
}

/// Words, with their places.
fn placed(given: &[Given]) -> Vec<(&str, &str)> {
    given.iter().map(|given| (&*given.text, &*given.place)).collect()
}

fn spec(export: &Export) -> &str {
    own(export).0
}

fn settings(export: &Export) -> &Settings {
    own(export).1
}

#[test]
fn nothing_said_serves_a_ram_disk() {
    let plan = merged(&[], "").unwrap();
    let [export] = &plan.exports[..] else { panic!("{plan:?}") };
    assert_eq!((export.name.text.as_str(), spec(export), export.weight), ("", "ram,size=1G", None));
    assert_eq!(plan.tls, None);
    assert_eq!((&plan.nbd[..], &plan.control, &plan.run, plan.max_connections), (&[][..], &None, &None, None));
}

/// Red if `blkmq ublk del` ends a server at which a virtual machine or a client by a named socket is.
#[test]
fn a_server_is_for_block_devices_only_if_it_has_no_other_clients() {
    let is_so = |arguments: &[&str]| merged(arguments, "").unwrap().is_for_block_devices();
    assert!(is_so(&["--ublk", "id=0"]) && !is_so(&[]));
    for others in [["--vhost-user", "vm.sock"], ["--nbd", "a.sock"], ["--run", "true"]] {
        assert!(!is_so(&[&["--ublk", "id=0"][..], &others].concat()), "{others:?}");
    }
}

#[test]
fn a_file_says_what_the_command_line_could() {
    let text = r#"
        device = "null"
        nbd = ["a.sock", "tcp:127.0.0.1:0"]
        vhost_user = "vm.sock,queues=2"
        ublk = ["id=1", "id=2,export=b"]
        scheduler = "none"
        bypass = true
        set = { nr_requests = 64, "iosched/fifo_batch" = "1" }
        control = "c.sock"
        run = "true"
        max_connections = 3
        drain_timeout = "7s"
        stall_timeout = "off"

        [[export]]
        name = "b"
        device = "hdd"
        scheduler = "mq-deadline"
        locking = "single"
        bypass = 0
        read_only = true
        description = "a slow one"
        weight = 1000
        priority = "rt/3"
        set = { nomerges = 2 }
    "#;
    let plan = merged(&[], text).unwrap();
    assert_eq!(placed(&plan.nbd), [("a.sock", "disks.toml: line 3"), ("tcp:127.0.0.1:0", "disks.toml: line 3")]);
    assert_eq!(placed(&plan.vhost_user), [("vm.sock,queues=2", "disks.toml: line 4")]);
    assert_eq!(placed(&plan.ublk), [("id=1", "disks.toml: line 5"), ("id=2,export=b", "disks.toml: line 5")]);
    assert_eq!((plan.control, plan.run), (Some("c.sock".into()), Some("true".to_owned())));
    assert_eq!(plan.max_connections, Some(3));
    let timeouts = [plan.drain_timeout, plan.stall_timeout].map(Option::unwrap);
    assert_eq!(placed(&timeouts), [("7s", "disks.toml: line 12"), ("off", "disks.toml: line 13")]);
    let [default, b] = &plan.exports[..] else { panic!("{:?}", plan.exports) };
    let said = |given: &Option<Given>| given.as_ref().map(|given| given.text.clone()).unwrap_or_default();
    assert_eq!((said(&settings(default).scheduler), said(&settings(default).bypass)), ("none".into(), "1".into()));
    let set = |export: &Export| -> Vec<String> {
        settings(export).set.iter().map(|(name, value)| format!("{name}={}", value.text)).collect()
    };
    assert_eq!(set(default), ["iosched/fifo_batch=1", "nr_requests=64"]);
    assert_eq!(set(b), ["iosched/fifo_batch=1", "nr_requests=64", "nomerges=2"], "its own last");
    assert_eq!((said(&settings(b).scheduler), said(&settings(b).locking)), ("mq-deadline".into(), "single".into()));
    assert_eq!((b.read_only, b.weight, b.description.as_str()), (true, Some(1000), "a slow one"));
    assert_eq!(b.priority, IoPriority { class: Class::RealTime, level: 3 });
    assert_eq!(settings(b).locking.as_ref().unwrap().place, "disks.toml: line 19");
}

#[test]
fn exports_share_a_queue() {
    let text = "device = \"ram\"\n[[export]]\nname = \"now\"\nqueue = \"default\"\npriority = \"rt\"";
    let plan = merged(&[], text).unwrap();
    let [own, shared] = &plan.exports[..] else { panic!("{plan:?}") };
    assert_eq!((own.queue(), shared.queue()), ("default", "default"));
    assert!(matches!(&shared.disk, Disk::Shared(queue) if queue.place == "disks.toml: line 4"));
    assert_eq!((own.priority.class, shared.priority.class), (Class::BestEffort, Class::RealTime));
}

#[test]
fn the_command_line_counts() {
    let text = "device = \"null\"\nnbd = \"a\"\nvhost_user = [\"x\", \"y\"]\nublk = \"id=1\"\nscheduler = \"none\"\nset = { nomerges = 1 }";
    let options = "--device ram --nbd b --vhost-user v --ublk id=2 --scheduler mq-deadline --set nomerges=2 --read-only \
                   --export x=hdd";
    let plan = merged(&options.split(' ').collect::<Vec<_>>(), text).unwrap();
    let devices: Vec<_> = plan.exports.iter().map(|export| (&*export.name.text, spec(export))).collect();
    assert_eq!(devices, [("", "ram"), ("x", "hdd")]);
    let given = [&plan.nbd, &plan.vhost_user, &plan.ublk].map(|given| placed(given));
    assert_eq!(given, [vec![("b", "--nbd")], vec![("v", "--vhost-user")], vec![("id=2", "--ublk")]]);
    assert!(plan.exports.iter().all(|export| export.read_only));
    let settings = settings(&plan.exports[1]);
    assert_eq!(settings.scheduler.as_ref().unwrap().text, "mq-deadline");
    assert_eq!(settings.set.last().unwrap().1.text, "2", "what is set last counts");
}

#[test]
fn unknown_keys_are_refused_with_their_line_and_the_accepted_ones() {
    let top = error(&[], "device = \"ram\"\n\nshceduler = \"none\"\n");
    let expected = "unknown field `shceduler`; did you mean `scheduler`? Expected one of `device`, `nbd`";
    assert!(top.starts_with(&format!("disks.toml: line 3: {expected}")), "{top}");
    let export = error(&[], "[[export]]\nname = \"a\"\ndevice = \"ram\"\nsize = 3\n");
    assert!(export.starts_with("disks.toml: line 4: unknown field `size`, expected one of `name`"), "{export}");
}

#[test]
fn what_makes_no_sense_is_refused_where_it_stands() {
    for (text, line, words) in [
        ("device = ram", 1, "string"),
        ("device = 3", 1, "expected a string"),
        ("bypass = [1]", 1, "expected a number, a text, or true or false"),
        ("\nset = { a = 1.5 }", 2, "expected a number, a text, or true or false"),
        ("[[exports]]\nname = \"a\"", 1, "unknown field `exports`; did you mean `export`? Expected one of `device`, "),
        ("[[clients]]\ngruop = \"a\"", 2, "did you mean `group`?"),
        ("colour = 1", 1, "unknown field `colour`, expected one of `device`"),
        ("nbd = 3", 1, "expected one text or a list of them"),
        ("max_connections = 0", 1, "not within 1..65535"),
        ("max_connections = 70000", 1, "70000"),
        ("[[export]]\nname = \"a\"", 2, "or the queue of another export"),
        ("[[export]]\nname = \"a\"\ndevice = \"ram\"\nqueue = \"b\"", 2, "or the queue of another export"),
        ("[[export]]\nname = \"a\"\nqueue = \"b\"", 3, "there is no queue 'b'; no export has a device of its own"),
        (
            "device = \"ram\"\n[[export]]\nname = \"a\"\nqueue = \"a\"",
            4,
            "there is no queue 'a'; exports with a device of their own: default",
        ),
        (
            "device = \"ram\"\n[[export]]\nname = \"a\"\nqueue = \"default\"\nbypass = 1",
            3,
            "belong to the export whose queue",
        ),
        ("[[export]]\nname = \"a\"\ndevice = \"ram\"\nweight = 0", 4, "0 is not within 1..1000"),
        ("[[export]]\nname = \"a\"\ndevice = \"ram\"\nweight = 70000", 4, "70000 is not within 1..1000"),
        ("[[export]]\nname = \"default\"\ndevice = \"ram\"", 2, "'default' is what commands call"),
        ("[[export]]\nname = \"a\\n\"\ndevice = \"ram\"", 2, "no characters that control a line"),
        ("[[export]]\nname = \"a\\u202e\"\ndevice = \"ram\"", 2, "'a\\u{202e}': an export's name has at most"),
        ("device = \"ram\"\n[[export]]\nname = \"\"\ndevice = \"ram\"", 3, "'default' is there already"),
        ("device = \"ram\"\ndevice = \"ram\"", 2, "duplicate key"),
    ] {
        let error = error(&[], text);
        assert!(error.starts_with(&format!("disks.toml: line {line}: ")) && error.contains(words), "{text}: {error}");
        assert_eq!(error.lines().count(), 1, "{error}");
    }
    assert!(error(&["--export", "ram"], "").starts_with("--export: 'ram' is not of the form NAME=DEVICE"));
    let twice = error(&["--export", "a=ram", "--export", "a=hdd"], "");
    assert_eq!(twice, "--export: the export 'a' is there already; each has a name of its own");
}

#[test]
fn tls_is_said_here_or_there_and_never_by_halves() {
    let file = "tls = \"on\"\ntls_certificates = \"pki\"\ntls_verify_peer = true\nallow = \"any\"";
    let tls = merged(&[], file).unwrap().tls.unwrap();
    assert_eq!((tls.folder.text.as_str(), tls.folder.place.as_str()), ("pki", "disks.toml: line 2"));
    assert!(!tls.is_required && tls.verifies_peer);
    let tls = merged(&["--tls", "require", "--tls-certificates", "here"], file).unwrap().tls.unwrap();
    assert_eq!((tls.folder.text.as_str(), tls.is_required, tls.verifies_peer), ("here", true, true));
    assert_eq!(merged(&["--tls", "off"], file).unwrap().tls, None);
    let halves = "no connection would be encrypted; say --tls on, or --tls require, too";
    assert_eq!(error(&["--tls-certificates", "a"], ""), format!("--tls-certificates: {halves}"));
    assert_eq!(error(&["--tls-verify-peer"], ""), format!("--tls-verify-peer: {halves}"));
    assert_eq!(error(&[], "\ntls_certificates = \"a\""), format!("disks.toml: line 2: {halves}"));
    assert!(error(&["--tls", "on"], "").starts_with("--tls: a certificate and its key are needed; say --tls-cert"));
    assert_eq!(error(&[], "tls = \"yes\""), "disks.toml: line 1: 'yes' is not accepted; accepted: off, on, require");
}

#[test]
fn who_may_use_an_export_is_said_there_or_for_all_and_must_be_where_certificates_are_wanted() {
    let file = "allow = [{ user = 7 }]\n[[export]]\nname = \"a\"\ndevice = \"ram\"\nallow = [{ user = 8, access = \"write\" }]\n\
                [[export]]\nname = \"b\"\ndevice = \"ram\"";
    let users = |arguments: &[&str]| {
        let plan = merged(arguments, file).unwrap();
        plan.exports.into_iter().map(|export| export.allow).collect::<Vec<_>>()
    };
    let only = |user, writes| {
        Some(Allow::Listed(vec![blkmq_export::Permit {
            who: blkmq_export::Identity::User(user),
            writes,
            priority: None,
        }]))
    };
    assert_eq!(users(&[]), [only(8, true), only(7, false)]);
    assert_eq!(users(&["--allow", "any"]), [only(8, true), Some(Allow::Anybody)]);
    for (list, expected) in [
        ("\"all\"", "allow: 'all' is not accepted; accepted: 'any', or allow = [{ certificate"),
        ("[{ access = \"read\" }]", "allow: a client is known by a certificate or by a user, one of both"),
        ("[{ user = 7, access = \"x\" }]", "access: 'x' is not accepted; accepted: read, write"),
        ("[{ name = \"x\" }]", "expected \"any\" or a list of tables, each with certificate or user"),
        ("[{ certificate = \"x\" }]", "the certificate \"x\" is allowed to use this export, but no client shows one"),
    ] {
        let error = error(&[], &format!("\nallow = {list}"));
        assert!(error.contains(expected), "{list}: {error}");
    }
    let verifying = ["--tls", "on", "--tls-certificates", "pki", "--tls-verify-peer", "--device", "ram"];
    let refused = error(&verifying, "");
    assert!(refused.starts_with("--device: with --tls-verify-peer nobody may use this export before"), "{refused}");
}

/// Red if what a file says of groups and clients does not reach the queues as it stands there.
#[test]
fn a_file_places_clients_in_groups() {
    let text = r#"
        tls = "on"
        tls_certificates = "pki"
        tls_verify_peer = true
        allow = "any"
        device = "ram"

        [groups."gold/batch"]

        [groups.gold]
        weight = 300

        [[clients]]
        certificate = "db"
        address = "10.0.0.0/8"
        name = "database"
        weight = 1000
        group = "gold"

        [[clients]]
        user = 7
        export = "default"
        group = "gold/batch"

        [[clients]]
        weight = 1
    "#;
    let layout = merged(&[], text).unwrap().placements.layout();
    assert_eq!(layout.groups, [("gold".to_owned(), 300), ("gold/batch".to_owned(), 100)]);
    let own = |text: &str| Some(text.to_owned());
    let [db, user, all] = &layout.rules[..] else { panic!("{layout:?}") };
    let address = Some("10.0.0.0/8".parse().unwrap());
    let expected =
        Rule { certificate: own("db"), address, name: own("database"), weight: Some(1000), ..Rule::default() };
    assert_eq!(*db, Rule { group: own("gold"), ..expected });
    assert_eq!(*user, Rule { user: Some(7), export: own(""), group: own("gold/batch"), ..Rule::default() });
    assert_eq!(*all, Rule { weight: Some(1), ..Rule::default() });
}

/// Red if weights do nothing because no scheduler is named, or if a scheduler that is named gives way to `fair`.
#[test]
fn weights_without_a_scheduler_take_fair() {
    let device = "[[export]]\nname = \"a\"\ndevice = \"ram\"\n";
    let shared = "[[export]]\nname = \"b\"\nqueue = \"a\"\nweight = 100\n";
    let takes_fair = |arguments: &[&str], text: &str| merged(arguments, text).unwrap().takes_fair("a");
    for weights in [shared, "[groups.gold]\n", "[[clients]]\nweight = 7\n"] {
        let text = [device, weights].concat();
        assert!(takes_fair(&[], &text), "{text}");
        assert!(!takes_fair(&["--scheduler", "none"], &text), "{text}");
        assert!(!takes_fair(&[], &format!("scheduler = \"bfq\"\n{text}")), "{text}");
        assert!(!takes_fair(&[], &text.replace("device = ", "scheduler = \"kyber\"\ndevice = ")), "{text}");
    }
    assert!(!takes_fair(&[], device));
    assert!(!takes_fair(&[], &format!("{device}[[clients]]\nname = \"me\"\n")), "a name is no weight");
    let other = "[[export]]\nname = \"b\"\ndevice = \"ram\"\nweight = 7\n";
    assert!(!takes_fair(&[], &[device, other].concat()), "the weight is in another queue");
}

#[test]
fn groups_and_clients_that_make_no_sense_are_refused_where_they_stand() {
    let many: String = (0..300).map(|number| format!("[groups.g{number:03}]\n")).collect();
    let deep = ["a"; 9].join("/");
    for (text, line, words) in [
        ("[groups.gold]\nweight = 0", 2, "weight: 0 is not within 1..1000"),
        ("[groups.gold]\nweight = 1001", 2, "weight: 1001 is not within 1..1000"),
        ("[groups.gold]\nweight = \"much\"", 2, "invalid type: string \"much\", expected a whole number"),
        ("[groups.gold]\nwieght = 3", 2, "'wieght' is no setting of the group 'gold', which has: weight"),
        ("[groups.gold]\n[groups.gold]", 2, "duplicate key"),
        ("[groups.gold]\nwieght = { a = 3 }", 2, "'wieght' is no setting of the group 'gold', which has: weight"),
        (
            "[groups.gold]\n\n[groups.gold.batch]",
            3,
            "'batch' is no setting of the group 'gold', which has: weight; a group in it is written [groups.\"gold/batch\"]",
        ),
        (
            "[groups]\ngold = 3",
            2,
            "invalid type: integer `3`, expected a group: a table, as in [groups.gold] with weight = 300 beneath it",
        ),
        ("groups = 3", 1, "invalid type: integer `3`, expected a table"),
        ("[groups.\"gold batch\"]", 1, "'gold batch' cannot be a group; accepted: 1 to 64 letters"),
        ("[groups.\"\"]", 1, "'' cannot be a group"),
        ("[groups.\"gold/batch\"]", 1, "the group 'gold/batch' is in 'gold', which is not there; add [groups.gold]"),
        ("[groups.a]\n[groups.\"a/b/c\"]", 2, "is in 'a/b', which is not there; add [groups.\"a/b\"]"),
        (&format!("[groups.\"{deep}\"]"), 1, "at most 8 of these"),
        (&many, 257, "there are 300 groups; at most 256 can be"),
        (
            "[[clients]]\nname = \"a\"\ncertificat = \"b\"",
            3,
            "unknown field `certificat`; did you mean `certificate`? Expected one of `certificate`, `user`",
        ),
        ("\n[[clients]]\nuser = 7", 2, "these clients get nothing here; say name, weight or group"),
        ("[[clients]]\nuser = 7\naddress = \"10.0.0.7\"\nweight = 7", 1, "a client has a user or an address"),
        ("[[clients]]\nuser = \"no such user\"\nweight = 7", 2, "this machine knows no user 'no such user'"),
        (
            "[[clients]]\naddress = \"10.0.0.7/8\"\nweight = 7",
            2,
            "address: '10.0.0.7/8' is an address within a network",
        ),
        ("[[clients]]\naddress = \"localhost\"\nweight = 7", 2, "address: 'localhost' is no address; accepted: "),
        ("[[clients]]\nuser = 7\nweight = 0", 3, "weight: 0 is not within 1..1000"),
        ("[[clients]]\nuser = 7\nname = \"\"", 3, "a client's name has 1 to 128 bytes"),
        ("[[clients]]\nuser = 7\nname = \"a\\n\"", 3, "'a\\n': a client's name has 1 to 128 bytes, and no characters "),
        ("[[clients]]\nuser = 7\nname = \"a\\u202eb\"", 3, "'a\\u{202e}b': a client's name has 1 to 128 bytes"),
        ("[[clients]]\ncertificate = \"a\\u200b\"\nweight = 7", 1, "certificate: 'a\\u{200b}': no client is let in"),
        ("[groups.\"g\\u202eb\"]", 1, "cannot be a group"),
        ("[[clients]]\nuser = 7\ngroup = \"gold\"", 3, "there is no group 'gold'; no [groups] are there"),
        ("[groups.g]\n[[clients]]\nuser = 7\ngroup = \"gold\"", 4, "there is no group 'gold'; groups: g"),
        ("[[clients]]\nexport = \"a\"\nweight = 7", 2, "there is no export 'a'; exports: default"),
        ("[[clients]]\ncertificate = \"a\"\nweight = 7", 1, "no client shows a certificate without --tls-verify-peer"),
        (
            "[[clients]]\nweight = 7\n[[clients]]\nuser = 7\nweight = 8",
            3,
            "no client comes here: the table [[clients]] at disks.toml: line 1 is for all",
        ),
    ] {
        let error = error(&[], text);
        assert!(error.starts_with(&format!("disks.toml: line {line}: ")) && error.contains(words), "{text}: {error}");
        assert_eq!(error.lines().count(), 1, "{error}");
    }
    let rules = "[[clients]]\nuser = 7\nweight = 8\n".repeat(1025);
    let expected = "disks.toml: line 3073: there are 1025 tables [[clients]]; at most 1024 can be";
    assert_eq!(error(&[], &rules), expected);
}

/// Red if an error names a type of this program, and not what is to be written.
#[test]
fn what_is_of_a_wrong_kind_is_refused_in_words() {
    let words: Vec<&str> = "device nbd scheduler locking bypass set read_only export groups clients control metrics run \
                            max_connections memory drain_timeout stall_timeout tls tls_certificates tls_verify_peer allow \
                            user group sandbox name queue description weight priority certificate address"
        .split_whitespace()
        .collect();
    let values =
        ["3", "-1", "1.5", "true", "\"x\"", "[1]", "[[1]]", "{ a = 1 }", "[{ a = 1 }]", "1979-05-27", "{}", "[{}]"];
    let headings = [
        "",
        "[groups]\n",
        "[groups.g]\n",
        "[groups.g.h]\n",
        "[[groups]]\n",
        "[clients]\n",
        "[[clients]]\n",
        "[export]\n",
        "[[export]]\nname = \"e\"\ndevice = \"ram\"\n",
        "[set]\n",
        "[[allow]]\n",
    ];
    let lines: Vec<String> =
        words.iter().flat_map(|word| values.iter().map(move |value| format!("{word} = {value}"))).collect();
    let texts = headings.iter().flat_map(|heading| lines.iter().map(move |line| format!("{heading}{line}")));
    let mut refused = 0;
    for text in texts {
        let Err(error) = File::parse(Path::new("disks.toml"), &text) else { continue };
        let error = error.to_string();
        for name in ["Written", "struct", "enum", "variant", "Spanned", "i64", "u16", "u64", "PathBuf", "::", "_serde"]
        {
            assert!(!error.contains(name), "{text}: {error}");
        }
        assert!(error.starts_with("disks.toml: line "), "{text}: {error}");
        refused += 1;
    }
    assert!(refused > 2000, "{refused}");
}
