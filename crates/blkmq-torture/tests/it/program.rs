//! `blkmq torture`: one seed gives one run; what the rig says of a failure; the seeds of all bugs that the rig has
//! found.

use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::process::{Command, Stdio};

use crate::run::{blkmq, printed, refused};
use serde_json::Value;

/// What a run that must fail prints, and its one line on standard error.
fn broken(arguments: &[&str]) -> (String, String) {
    let output = blkmq(arguments);
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).expect("the program prints text");
    let (out, error) = (text(&output.stdout), text(&output.stderr));
    assert_eq!((output.status.code(), error.lines().count()), (Some(1), 1), "{arguments:?}: {error}{out}");
    (out, error)
}

fn json(text: &str) -> Value {
    serde_json::from_str(text).unwrap_or_else(|error| panic!("{error}: {text}"))
}

/// How much memory is held when a world begins depends on what the process has done before.
fn is_story(line: &&str) -> bool {
    !line.ends_with("bytes of memory held")
}

fn words(command: &str) -> Vec<&str> {
    command.split_whitespace().collect()
}

/// Red if anything else than the seed and the number of requests decides the hash, or if one of the two does not.
#[test]
fn the_same_seed_gives_the_same_hash_and_another_another() {
    let last = |seed: &str, requests: &str| {
        let text = printed(&["--seed", seed, "--requests", requests]);
        text.lines().last().expect("it prints lines").to_owned()
    };
    let line = last("7", "6000");
    let (told, hash) = line.split_once(", hash ").expect("the last line tells the hash");
    assert_eq!(told, "clean: seed 7, requests 6000");
    assert!(hash.len() == 16 && hash.chars().all(|digit| "0123456789abcdef".contains(digit)), "{line}");
    assert_eq!(last("7", "6000"), line);
    let json = json(&printed(&["--seed", "7", "--requests", "6000", "--json"]));
    assert_eq!(
        (json["hash"].as_str(), json["requests"].as_u64(), json["worlds"].as_u64()),
        (Some(hash), Some(6000), Some(2))
    );
    assert_ne!(last("8", "6000").rsplit(' ').next(), Some(hash));
    assert_ne!(last("7", "5999").rsplit(' ').next(), Some(hash));
}

/// Red if the seed that a run drew is not printed, does not repeat the run, or is always the same.
#[test]
fn a_fresh_seed_is_told_first_and_repeats_the_run() {
    let text = printed(&["--minutes", "0.001"]);
    let seed =
        text.strip_prefix("torture with seed ").and_then(|rest| rest.split(':').next()).expect("the seed is first");
    let last = text.lines().last().expect("it prints lines");
    let requests = last.split(", ").nth(1).and_then(|part| part.strip_prefix("requests ")).expect("they are told");
    assert_eq!(printed(&["--seed", seed, "--requests", requests]).lines().last(), Some(last));
    assert_ne!(printed(&["--minutes", "0.001"]).split(':').next(), text.split(':').next());
}

/// Red if the printed command does not play the shortest failing world, or says something else of that world.
#[test]
fn a_failure_is_cut_short_and_repeated_by_its_command() {
    let (text, error) = broken(&["--seed", "1", "--requests", "20000", "--plant", "tag-twice"]);
    let command = text
        .lines()
        .last()
        .and_then(|line| line.strip_prefix("repeat: blkmq torture "))
        .expect("it ends with a command");
    let requests: u64 = words(command)[3].parse().expect("the command names the requests");
    assert!(requests < 500, "{command}");
    let (again, same) = broken(&words(command));
    assert_eq!(same, error);
    // The first lines tell what was found before it was made shorter.
    let story = |text: &str| text.lines().skip(5).filter(is_story).map(str::to_owned).collect::<Vec<_>>();
    assert_eq!(story(&again), story(&text));
    // The search has ended next to a length that passes.
    let shorter = command.replacen(&format!(" {requests} "), &format!(" {} ", requests - 1), 1);
    if requests > 1 {
        assert!(printed(&words(&shorter)).contains("clean: "));
    }
    let json = json(&String::from_utf8(blkmq(&[&words(command)[..], &["--json"]].concat()).stdout).expect("text"));
    let failure = &json["failure"];
    assert_eq!((failure["seed"].as_str(), failure["shortest"].as_bool()), (Some(words(command)[1]), Some(true)));
    assert_eq!(failure["repeat"].as_str(), Some(format!("blkmq torture {command}").as_str()));
    assert_eq!((failure["requests"].as_u64(), failure["repeatable"].as_bool()), (Some(requests), Some(true)));
    assert!(error.contains(failure["rule"].as_str().expect("a rule was broken")), "{error}");
}

/// Red if the world that was found is made shorter though that is not wanted, or if its command repeats another one.
#[test]
fn a_failure_is_told_as_it_was_found() {
    let run = ["--seed", "1", "--requests", "5000", "--plant", "tag-twice", "--as-found"];
    let (text, error) = broken(&run);
    let repeat = "repeat: blkmq torture --seed 1 --requests 5000 --cpus 8 --plant tag-twice";
    assert_eq!(text.lines().last(), Some(repeat));
    assert!(text.contains("\nfound: ") && !text.contains("making it shorter"), "{text}");
    let json = json(&String::from_utf8(blkmq(&[&run[..], &["--json"]].concat()).stdout).expect("text"));
    let failure = &json["failure"];
    assert_eq!((failure["shortest"].as_bool(), failure["repeatable"].as_bool()), (Some(false), Some(true)));
    assert!(error.contains(failure["what"].as_str().expect("it is told")), "{error}");
}

/// Red if something that a failure tells of a world is missing in the replay, or if the replay ends in another way.
#[test]
fn a_replay_tells_all_that_happened() {
    let world = ["--seed", "1", "--requests", "200"];
    let replay = printed(&[&world[..], &["--replay"]].concat());
    let told = |bio: u64| replay.lines().filter(|line| line.contains(&format!("  bio {bio}: "))).count();
    assert!((1..=200).all(|bio| told(bio) >= 1), "each operation is submitted");
    // A client that leaves may drop operations that are not done, without an event for each.
    assert!((1..=200).filter(|bio| told(*bio) >= 2).count() > 100, "most operations are over");
    assert!(replay.ends_with(": no promise was seen broken\n"), "{replay}");
    let planted = [&world[..], &["--plant", "tag-twice"]].concat();
    let (text, error) = broken(&planted);
    let repeat = text
        .lines()
        .last()
        .and_then(|line| line.strip_prefix("repeat: blkmq torture "))
        .expect("it ends with a command");
    let (replay, same) = broken(&[&words(repeat)[..], &["--replay"]].concat());
    assert!(
        replay.lines().any(|line| line.starts_with("broken: ") && same.trim_end().ends_with(&line["broken: ".len()..]))
    );
    let what =
        |error: &str| error.rsplit_once("panic: ").expect("tags that are back twice are an assertion").1.to_owned();
    assert_eq!(what(&same), what(&error));
    let story: Vec<&str> = text.lines().filter_map(|line| line.strip_prefix("  ")).filter(is_story).collect();
    assert!(story.len() > 10 && story.iter().all(|line| replay.contains(line)), "{text}");
}

/// Red if a run that a signal ends does not print all that it found, or if standard error does not say what was found
/// when no program reads standard output.
#[test]
fn no_end_makes_it_silent() {
    let program = || {
        let mut command = Command::new(env!("CARGO_BIN_EXE_blkmq-torture"));
        command.args(["--seed", "1"]).stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    };
    let mut child = program().args(["--minutes", "1000"]).spawn().expect("the program starts");
    let mut out = BufReader::new(child.stdout.take().expect("it was asked for"));
    let mut head = String::new();
    out.read_line(&mut head).expect("the first line comes at once");
    // GNU timeout does the same: it signals the program, and then the group that it is in.
    let kill = format!("kill -TERM {0} && kill -TERM {0}", child.id());
    let killed = Command::new("sh").args(["-c", &kill]).status().expect("there is a shell");
    assert!(killed.success());
    let mut rest = String::new();
    out.read_to_string(&mut rest).expect("it prints text");
    let output = child.wait_with_output().expect("it ends");
    let error = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!((output.status.code(), error.as_str()), (Some(1), "blkmq: torture: interrupted before its end\n"));
    assert!(rest.contains("clean: ") || rest.contains("no world was played to its end"), "{rest}");

    let mut child =
        program().args(["--requests", "5000", "--plant", "tag-twice", "--json"]).spawn().expect("the program starts");
    drop(child.stdout.take());
    let output = child.wait_with_output().expect("it ends");
    let error = String::from_utf8_lossy(&output.stderr);
    assert_eq!((output.status.code(), error.lines().count()), (Some(1), 1), "{error}");
    assert!(error.contains("tags put back twice"), "{error}");
}

/// Red if a world fails that has failed because of a bug which is mended.
#[test]
fn kept_seeds_are_clean() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/seeds.txt");
    let text = fs::read_to_string(path).expect("the seeds are there");
    let lines: Vec<&str> = text.lines().filter(|line| !line.starts_with('#')).collect();
    assert!(!lines.is_empty(), "at least one seed is played");
    for line in lines {
        let (options, bug) = line.split_once(": ").expect("options, a colon, what was wrong");
        println!("{options}: {bug}");
        let text = printed(&words(options));
        assert!(text.contains("\nclean: "), "{line}");
    }
}

/// Red if an error does not name what was wrong, and what would be right.
#[test]
fn what_is_refused_is_refused_in_one_line() {
    for (arguments, word, accepted) in [
        ("--seed x", "'x'", "--seed"),
        ("--requests 0", "0", "1.."),
        ("--minutes 0", "'0'", "above 0"),
        ("--minutes x", "'x'", "0.5"),
        ("--minutes -1", "'-1'", "above 0"),
        ("--seed -1", "'-1'", "--seed"),
        ("--requests -1", "'-1'", "--requests"),
        ("-1", "'-1'", "--seed"),
        ("--cpus 65", "65", "1..=64"),
        ("--minutes 1 --requests 1", "--minutes", "--requests"),
        ("--cpus 0", "0", "1..=64"),
        ("--threads 0", "0", "1.."),
        ("--scheduler no-such-scheduler", "'no-such-scheduler'", "mq-deadline"),
        ("--locking no-such-locking", "'no-such-locking'", "any, single"),
        ("--plant bug", "'bug'", "lost-kick"),
        ("--replay --minutes 1", "--replay", "--minutes"),
        ("--replay --as-found", "--replay", "--as-found"),
        ("--replay --requests 5001", "5001", "5000"),
        ("--list-mutants --json", "--list-mutants", "cannot be used"),
        ("--jsn", "'--jsn'", "--json"),
    ] {
        let text = refused(&words(arguments));
        assert!(text.contains(word) && text.contains(accepted), "{arguments}: {text}");
    }
}

/// Red if the help does not name a bug that can be planted, or if the list does not say what the bug is.
#[test]
fn help_and_the_list_of_bugs_name_what_there_is() {
    let help = printed(&["--help"]);
    assert!(help.contains("Examples:") && help.contains("Exit codes:"), "{help}");
    let list = printed(&["--list-mutants"]);
    assert!(list.lines().count() >= 12, "{list}");
    for line in list.lines() {
        let (name, what) = line.split_once(' ').expect("a name and a sentence");
        assert!(what.trim().len() > 20 && help.contains(name), "{line}");
    }
}
