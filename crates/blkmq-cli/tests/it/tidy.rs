//! The rules of the repository that a compiler does not check, over every file that git tracks. Each rule is a function
//! from text to findings, tested first on text that it must reject.

use std::fs;
use std::path::{Component, Path, PathBuf};
use std::process::Command;

/// Most lines of a file under `crates/*/src`.
const MAX_SOURCE_LINES: usize = 600;
/// Most columns of a comment, which no formatter breaks.
const MAX_COMMENT_COLUMNS: usize = 120;
/// Most lines of README.md: one that is longer is no longer read.
const MAX_README_LINES: usize = 100;
/// How far above an atomic ordering its reason may end.
const ORDERING_REASON_LINES: usize = 4;
/// This file, which has to spell what it forbids.
const SELF: &str = "crates/blkmq-cli/tests/it/tidy.rs";

/// What is wrong, and at which line, counted from 1.
pub(crate) type Finding = (usize, String);

pub(crate) fn lines(text: &str) -> impl Iterator<Item = (usize, &str)> {
    text.lines().enumerate().map(|(index, line)| (index + 1, line))
}

fn too_long(text: &str, most: usize) -> Vec<Finding> {
    let count = text.lines().count();
    if count <= most { Vec::new() } else { vec![(count, format!("{count} lines; at most {most}"))] }
}

/// A finding for each of the lines that is bad.
fn bad_lines<'t>(
    lines: impl Iterator<Item = (usize, &'t str)>,
    is_bad: impl Fn(&str) -> bool,
    what: &str,
) -> Vec<Finding> {
    lines.filter(|(_, line)| is_bad(line)).map(|(number, _)| (number, what.to_owned())).collect()
}

fn words(line: &str) -> impl Iterator<Item = &str> {
    line.split(|c: char| !c.is_alphanumeric())
}

fn unfinished(text: &str) -> Vec<Finding> {
    let is_unfinished = |line: &str| words(line).any(|word| ["TODO", "FIXME", "XXX"].contains(&word));
    bad_lines(lines(text), is_unfinished, "a mark of unfinished work: finish it, or open an issue")
}

/// A comment that begins with a run of one drawing character, alone or as the left half of a boxed heading.
fn banners(text: &str) -> Vec<Finding> {
    let is_banner = |line: &str| {
        let comment = line.trim_start();
        let Some(body) = comment.strip_prefix("//").or_else(|| comment.strip_prefix('#')) else { return false };
        let body = body.trim_start_matches(['!', ' ']);
        let body = if body.starts_with("////") { body } else { body.trim_start_matches(['/', ' ']) };
        ["====", "----", "****", "####", "////", "~~~~", "____"].iter().any(|run| body.starts_with(run))
    };
    bad_lines(lines(text), is_banner, "a banner: a module or a function's name says it")
}

/// Lines of comments that are too wide.
fn wide_comments(text: &str) -> Vec<Finding> {
    let is_wide = |line: &str| line.trim_start().starts_with("//") && line.chars().count() > MAX_COMMENT_COLUMNS;
    bad_lines(lines(text), is_wide, &format!("a comment wider than {MAX_COMMENT_COLUMNS} columns"))
}

/// Lines of Markdown prose that are too wide. Tables, code, headings, and lines that a link makes wide may be wider.
fn wide_prose(text: &str) -> Vec<Finding> {
    let is_prose = |line: &str| !line.starts_with(['|', '#']) && !line.starts_with("    ") && !line.contains("](");
    let is_wide = |line: &str| is_prose(line) && line.chars().count() > MAX_COMMENT_COLUMNS;
    bad_lines(outside_code(text), is_wide, &format!("prose wider than {MAX_COMMENT_COLUMNS} columns"))
}

/// Lines of Markdown that call an actor "who".
fn unnamed_actors(text: &str) -> Vec<Finding> {
    let is_unnamed = |line: &str| words(line).any(|word| ["who", "whoever"].contains(&&*word.to_lowercase()));
    let what = "an actor without a name: submitter, combiner, publisher, completer, client?";
    bad_lines(outside_code(text), is_unnamed, what)
}

/// Lines with a list of at least three of `names`, but not of all. Strings are a list in Rust if nothing but commas is
/// between them, and words in a script if they are on one line.
fn incomplete_lists(text: &str, names: &[&str], is_rust: bool) -> Vec<Finding> {
    let names_in = |list: &str| -> Vec<String> {
        let is_part = |c: char| c.is_alphanumeric() || c == '-';
        list.split(|c| !is_part(c)).filter(|word| !word.is_empty()).map(str::to_owned).collect()
    };
    let lists = |line: &str| -> Vec<Vec<String>> {
        if !is_rust {
            return vec![names_in(line)];
        }
        if line.contains("const PUBLISHED:") {
            return Vec::new();
        }
        let brackets = line.split('[').map(|text| text.split(']').next().unwrap_or_default());
        brackets.filter(|list| list.split(", ").all(|item| item.starts_with('"'))).map(names_in).collect()
    };
    let missing = |list: &Vec<String>| {
        let missing: Vec<_> = names.iter().filter(|name| !list.iter().any(|word| word == *name)).collect();
        (names.len() - missing.len() >= 3 && !missing.is_empty()).then(|| format!("a list without {missing:?}"))
    };
    lines(text).filter_map(|(number, line)| Some((number, lists(line).iter().find_map(missing)?))).collect()
}

fn machine_paths(text: &str) -> Vec<Finding> {
    let has_path = |line: &str| ["/work/", "/root/", "/home/"].iter().any(|path| line.contains(path));
    bad_lines(lines(text), has_path, "a path of one machine")
}

/// The source without its unit tests, which this code base keeps at the end of a file.
pub(crate) fn product_source(text: &str) -> &str {
    text.split("\n#[cfg(test)]\nmod tests {").next().unwrap_or(text)
}

/// A line's code and its comment.
fn split(line: &str) -> (&str, &str) {
    line.split_once("//").unwrap_or((line, ""))
}

/// Orderings stronger than Relaxed without a comment that says what they order.
fn unexplained_orderings(text: &str) -> Vec<Finding> {
    const STRONG: [&str; 4] = ["Acquire", "Release", "AcqRel", "SeqCst"];
    let source: Vec<&str> = product_source(text).lines().collect();
    let is_strong = |line| STRONG.iter().any(|order| split(line).0.contains(&format!("Ordering::{order}")));
    let is_reason = |line: &&str| {
        let comment = split(line).1.to_lowercase();
        ["acquire", "release", "acqrel", "seqcst", "order", "pairs", "fence", "publish"]
            .iter()
            .any(|word| comment.contains(word))
    };
    // The orderings of one exchange may stand on lines of their own: what counts is where the statement begins.
    let begins_here = |index: usize| {
        let above = split(source[index - 1]).0.trim_end();
        above.is_empty() || above.ends_with([';', '{', '}'])
    };
    let mut findings = Vec::new();
    for (index, &line) in source.iter().enumerate() {
        let code = split(line).0;
        let imports = code.trim_start().starts_with("use ") && (is_strong(line) || code.contains("atomic::Ordering::"));
        if imports {
            findings.push((index + 1, "an ordering is written in full where it is used, not imported".into()));
        } else if is_strong(line) {
            let begin = (1..=index).rev().find(|&index| begins_here(index)).unwrap_or(0);
            if !source[begin.saturating_sub(ORDERING_REASON_LINES)..=index].iter().any(is_reason) {
                let what = "an ordering without a comment: what does it publish, with what does it pair?";
                findings.push((index + 1, what.into()));
            }
        }
    }
    findings
}

/// The lines of a Markdown text outside fenced code.
fn outside_code(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let mut in_code = false;
    lines(text).filter(move |(_, line)| {
        let is_fence = line.trim_start().starts_with("```");
        in_code ^= is_fence;
        !in_code && !is_fence
    })
}

/// The targets of the links of a Markdown text, outside code.
fn links(text: &str) -> Vec<(usize, &str)> {
    let mut links = Vec::new();
    for (number, line) in outside_code(text) {
        let mut rest = line;
        while let Some((_, after)) = rest.split_once("](") {
            let end = after.find([')', ' ']).unwrap_or(after.len());
            links.push((number, &after[..end]));
            rest = &after[end..];
        }
    }
    links
}

/// Links that lead nowhere, from a Markdown file at `from`. `exists` answers for paths in the repository.
fn broken_links(from: &Path, text: &str, exists: impl Fn(&Path) -> bool) -> Vec<Finding> {
    let resolve = |link: &str| -> Option<PathBuf> {
        let mut path = from.parent()?.to_path_buf();
        for part in Path::new(link).components() {
            match part {
                Component::Normal(name) => path.push(name),
                Component::ParentDir if !path.pop() => return None,
                Component::ParentDir | Component::CurDir => (),
                Component::RootDir | Component::Prefix(_) => return None,
            }
        }
        Some(path)
    };
    links(text)
        .into_iter()
        .filter(|(_, link)| !link.contains("://") && !link.starts_with("mailto:"))
        .map(|(number, link)| (number, link.split('#').next().unwrap_or(link)))
        .filter(|(_, link)| !link.is_empty() && !resolve(link).is_some_and(|path| exists(&path)))
        .map(|(number, link)| (number, format!("a link to {link}, which is not in the repository")))
        .collect()
}

/// The targets of every `make` command that a text shows as code.
fn make_commands(text: &str) -> Vec<&str> {
    let is_name = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
    text.split(['`', '\n'])
        .filter_map(|code| code.trim_start_matches(['$', '#', ' ']).strip_prefix("make "))
        .filter_map(|arguments| arguments.split_whitespace().next())
        .filter(|target| target.chars().all(is_name))
        .collect()
}

/// The targets that a Makefile declares with `.PHONY`, variables of the form `NAME := words` replaced.
fn make_targets(makefile: &str) -> Vec<&str> {
    let variable = |name: &str| {
        makefile.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(" := ")).unwrap_or_default()
    };
    makefile
        .lines()
        .filter_map(|line| line.strip_prefix(".PHONY:"))
        .flat_map(str::split_whitespace)
        .flat_map(|word| match word.strip_prefix("$(").and_then(|word| word.strip_suffix(')')) {
            Some(name) => variable(name).split_whitespace().collect(),
            None => vec![word],
        })
        .collect()
}

/// The words of a line `NAME=(WORD WORD ...)` of a shell script.
fn array<'s>(script: &'s str, name: &str) -> Vec<&'s str> {
    let words = script.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix("=(")?.strip_suffix(')'));
    words.unwrap_or_default().split_whitespace().collect()
}

/// The names in code in the first column of the tables of a Markdown text.
fn first_column(text: &str) -> Vec<&str> {
    text.lines()
        .filter_map(|line| line.strip_prefix("| ")?.split(" |").next())
        .flat_map(|cell| cell.split('`').skip(1).step_by(2))
        .collect()
}

/// Whether a module's text includes a file of this name as a module, in every build.
fn includes(text: &str, name: &str) -> bool {
    let mut before = "";
    text.lines().any(|line| {
        let is_conditional = before.starts_with("#[cfg");
        before = line;
        let module = ["pub ", "pub(crate) ", "pub(super) "].iter().find_map(|word| line.strip_prefix(word));
        module.unwrap_or(line) == format!("mod {name};") && !is_conditional
    })
}

/// The Rust files of a folder and those below, each with the file that has to include it: the folder's `main.rs` or
/// `mod.rs`, or the file that is named after the folder.
fn included_by(folder: &Path, files: &mut Vec<(PathBuf, PathBuf)>) {
    let heads = ["main.rs", "mod.rs"].map(|name| folder.join(name));
    let head = heads.iter().find(|path| path.exists()).cloned().unwrap_or_else(|| folder.with_extension("rs"));
    for path in fs::read_dir(folder).expect("the folder is there").flatten().map(|entry| entry.path()) {
        if path.is_dir() {
            let parent = path.join("mod.rs");
            if parent.exists() {
                files.push((path.clone(), head.clone()));
            }
            included_by(&path, files);
        } else if has_extension(&path, "rs") && !heads.contains(&path) {
            files.push((path, head.clone()));
        }
    }
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).expect("a crate lies two folders deep").to_path_buf()
}

/// Every text file that git tracks, as path from the root and content; `None` where there is no git checkout.
fn tracked() -> Option<Vec<(PathBuf, String)>> {
    let root = root();
    let listing = Command::new("git").args(["ls-files", "-z"]).current_dir(&root).output().ok()?;
    if !listing.status.success() {
        return None;
    }
    let names = String::from_utf8(listing.stdout).expect("tracked names are UTF-8");
    let files = names.split_terminator('\0').filter_map(|name| {
        // A file that is not UTF-8 is a recording; one that is gone is being removed.
        Some((PathBuf::from(name), fs::read_to_string(root.join(name)).ok()?))
    });
    Some(files.collect())
}

/// Runs one rule over the tracked files that `applies` selects; panics with every finding.
pub(crate) fn check(applies: impl Fn(&Path) -> bool, rule: impl Fn(&Path, &str) -> Vec<Finding>) {
    let Some(files) = tracked() else {
        println!("SKIP this is no git checkout, so there is no list of the project's files");
        return;
    };
    let chosen: Vec<_> = files.iter().filter(|(path, _)| path != Path::new(SELF) && applies(path)).collect();
    assert!(!chosen.is_empty(), "the rule applies to no file");
    let findings: Vec<String> = chosen
        .iter()
        .flat_map(|(path, text)| {
            rule(path, text).into_iter().map(|(line, what)| format!("{}:{line}: {what}", path.display()))
        })
        .collect();
    assert!(findings.is_empty(), "\n{}", findings.join("\n"));
}

pub(crate) fn is_source(path: &Path) -> bool {
    path.starts_with("crates") && path.iter().nth(2).is_some_and(|part| part == "src") && has_extension(path, "rs")
}

pub(crate) fn has_extension(path: &Path, extension: &str) -> bool {
    path.extension().is_some_and(|found| found == extension)
}

fn read(name: &str) -> String {
    fs::read_to_string(root().join(name)).unwrap_or_else(|error| panic!("{name}: {error}"))
}

#[test]
fn sources_are_short() {
    assert_eq!(too_long("a\nb\n", 2), []);
    assert_eq!(too_long("a\nb\nc", 2).len(), 1);
    check(is_source, |_, text| too_long(text, MAX_SOURCE_LINES));
}

/// Red if a comment is wider than 120 columns, or if `wide_comments` takes a wide line of code for one.
#[test]
fn comments_are_no_wider_than_a_screen() {
    let wide = format!("let x = \"{0}\";\n    /// {0}", "x".repeat(MAX_COMMENT_COLUMNS - 8));
    assert_eq!(wide_comments(&wide), []);
    assert_eq!(wide_comments(&(wide + "x")).iter().map(|f| f.0).collect::<Vec<_>>(), [2]);
    check(|path| has_extension(path, "rs"), |_, text| wide_comments(text));
}

/// Red if a line of prose in a Markdown file is too wide.
#[test]
fn pages_are_no_wider_than_a_screen() {
    let word = "x".repeat(MAX_COMMENT_COLUMNS);
    let wide = format!("{word}y\n| {word}\n```\n{word}y\n```\n{word}\n    {word}\n[a]({word})\n- {word}");
    assert_eq!(wide_prose(&wide).iter().map(|f| f.0).collect::<Vec<_>>(), [1, 9]);
    check(|path| has_extension(path, "md"), |_, text| wide_prose(text));
}

/// Red if a page says who where it means a thread or a client.
#[test]
fn pages_name_their_actors() {
    let text = "the publisher, who goes\nWhoever\nwhose\n```\nwho\n```\n`a-who`";
    assert_eq!(unnamed_actors(text).iter().map(|f| f.0).collect::<Vec<_>>(), [1, 2, 7]);
    check(|path| has_extension(path, "md"), |_, text| unnamed_actors(text));
}

/// Red if a locking or a scheduler was added and no page for users names it.
#[test]
fn every_locking_and_scheduler_has_its_place() {
    let (page, readme, judge) = (read("docs/locking.md"), read("README.md"), read("docs/judge.md"));
    let (lockings, _) = page.split_once("## How `combining` works").expect("the table of lockings comes first");
    for locking in blkmq::Locking::ALL {
        let row = format!("| `{locking}` | ");
        assert!(lockings.contains(&row), "docs/locking.md has no row '{row}'");
    }
    let (_, here) = readme.split_once("## What is here").expect("README.md says what is here");
    for scheduler in blkmq::scheduler_names() {
        assert!(here.contains(&format!("`{scheduler}`")), "README.md does not name `{scheduler}` under 'What is here'");
        let row = format!("| `{scheduler}` | ");
        assert!(scheduler == "none" || judge.contains(&row), "docs/judge.md has no row '{row}' of what it promises");
    }
}

/// Red if a front-end was added that a page does not name which lists them.
#[test]
fn every_front_end_is_on_the_pages_that_list_them() {
    for page in ["README.md", "ARCHITECTURE.md", "docs/control.md", "docs/deploy.md", "docs/serve.md"] {
        let text = read(page).to_lowercase();
        for front_end in blkmq_export::FrontEnd::ALL.map(blkmq_export::FrontEnd::word) {
            assert!(text.contains(front_end), "{page} does not name the front-end '{front_end}'");
        }
    }
}

/// Red if a scheduler of blkmq-sched has no entry in its registry.
#[test]
fn every_scheduler_is_registered() {
    let Some(files) = tracked() else { return println!("SKIP this is no git checkout") };
    let of_schedulers = files.iter().filter(|(path, _)| path.starts_with("crates/blkmq-sched/src"));
    let found: usize = of_schedulers.map(|(_, text)| text.matches("\nimpl Scheduler for ").count()).sum();
    assert_eq!(found, blkmq_sched::SCHEDULERS.len(), "an `impl Scheduler` has no entry in `SCHEDULERS`");
}

/// Red if a scheduler was added, and a list of schedulers in a source or a script lacks it: a list of three or more, on
/// one line. A list called `PUBLISHED` has the schedulers of which others published figures.
#[test]
fn lists_of_schedulers_are_complete() {
    let found = |text, is_rust| incomplete_lists(text, &["none", "kyber", "bfq", "mq-deadline"], is_rust).len();
    for (text, is_rust, nr_found) in [
        (r#"for s in ["none", "kyber", "bfq"] {"#, true, 1),
        ("for s in kyber bfq none", false, 1),
        (r#"[("none", 1), ("bfq", 2), ("kyber", 3)]"#, true, 0),
        ("kyber mq-deadline", false, 0),
        ("kyber none mq-deadline bfq", false, 0),
        (r#"const PUBLISHED: [&str; 3] = ["none", "kyber", "bfq"];"#, true, 0),
    ] {
        assert_eq!(found(text, is_rust), nr_found, "{text}");
    }
    let names = blkmq::scheduler_names();
    check(|path| has_extension(path, "rs"), |_, text| incomplete_lists(text, &names, true));
    let is_script = |path: &Path| path.starts_with("scripts") || path == Path::new("Makefile");
    check(is_script, |_, text| incomplete_lists(text, &names[1..], false));
}

#[test]
fn nothing_is_marked_unfinished() {
    assert_eq!(unfinished("// TODO: later\nfine\n# FIXME(me)\n").iter().map(|f| f.0).collect::<Vec<_>>(), [1, 3]);
    assert_eq!(unfinished("todo = \"deny\"\nTODOS\n"), []);
    check(|_| true, |_, text| unfinished(text));
}

#[test]
fn no_comment_is_a_banner() {
    for banner in ["// ======", "    // ---- tags ----", "//////////", "/// ****", "//! ~~~~~", "# -----", "########"] {
        assert_eq!(banners(banner).len(), 1, "{banner}");
    }
    for good in
        ["// a -- b", "//! | a |\n//! |-----|", "/// +----+", "let a = \"----\";", "#[derive(Debug)]", "// a == b"]
    {
        assert_eq!(banners(good), [], "{good}");
    }
    check(|path| !has_extension(path, "md"), |_, text| banners(text));
}

#[test]
fn no_path_belongs_to_one_machine() {
    assert_eq!(machine_paths("a\nsee /root/x").len(), 1);
    assert_eq!(machine_paths("b = \"/work/main\"").len(), 1);
    assert_eq!(machine_paths("../shared/design.md and /dev/null and a framework/x"), []);
    check(|_| true, |_, text| machine_paths(text));
}

#[test]
fn every_ordering_says_why() {
    for bad in [
        "a.load(Ordering::Acquire);",
        "// The next word.\na.store(1, Ordering::Release);",
        "// Release: too far away.\n\n\n\n\na.store(1, Ordering::Release);",
        "// Acquire: of another.\n\n\n\na.load(Ordering::Relaxed);\na.load(Ordering::Acquire);",
        "a.load(Ordering::Acquire);\na.load(Ordering::Acquire); // Acquire pairs with put.",
        "use std::sync::atomic::Ordering::*;",
        "use std::sync::atomic::Ordering::{Acquire, Relaxed};",
        "use std::sync::atomic::Ordering::SeqCst;",
    ] {
        assert_eq!(unexplained_orderings(bad).len(), 1, "{bad}");
    }
    for good in [
        "a.load(Ordering::Relaxed);",
        "use core::sync::atomic::{AtomicU64, Ordering};",
        "// Acquire pairs with the Release of put.\na.load(Ordering::Acquire);",
        "// Release publishes.\n\n\n\na.swap(\n1,\nOrdering::Relaxed)",
        "// AcqRel: pairs with itself.\na.compare_exchange(\n1,\n2,\nOrdering::AcqRel,\nOrdering::Acquire,\n);",
        "// Acquire sees the body.\na.b\n.compare_exchange(\n1,\n2,\n3,\nOrdering::Acquire,\n);",
        "fn f() {}\n\n#[cfg(test)]\nmod tests {\na.load(Ordering::SeqCst);\n}\n",
        "/// Not `Ordering::SeqCst`.\nfn f() {}",
    ] {
        assert_eq!(unexplained_orderings(good), [], "{good}");
    }
    check(|path| is_source(path) && !path.ends_with("tests.rs"), |_, text| unexplained_orderings(text));
}

#[test]
fn links_resolve() {
    let exists = |path: &Path| [Path::new("docs/a.md"), Path::new("LICENSE-MIT")].contains(&path);
    let broken = |text| broken_links(Path::new("docs/b.md"), text, exists).len();
    assert_eq!(broken("[a](a.md) [b](../LICENSE-MIT) [c](a.md#part) [d](#here) [e](https://example.org/x)"), 0);
    assert_eq!(broken("[a](gone.md) and [b](LICENSE-MIT)"), 2);
    assert_eq!(broken("[a](../../shared/a.md)"), 1);
    assert_eq!(broken("```\n[a](gone.md)\n```\n[b](/LICENSE-MIT)"), 1);
    let root = root();
    check(|path| has_extension(path, "md"), |path, text| broken_links(path, text, |link| root.join(link).exists()));
}

#[test]
fn readme_is_short_and_its_commands_exist() {
    let text = "`make demo`, make sense, `make`\n    make test\n$ make soak MINUTES=5\n";
    assert_eq!(make_commands(text), ["demo", "test", "soak"]);
    assert_eq!(make_targets("A := x y\n.PHONY: help $(A)\n"), ["help", "x", "y"]);
    let (readme, makefile) = (read("README.md"), read("Makefile"));
    assert_eq!(too_long(&readme, MAX_README_LINES), []);
    let (commands, targets) = (make_commands(&readme), make_targets(&makefile));
    for command in &commands {
        assert!(targets.contains(command), "README.md shows `make {command}`; the Makefile has {targets:?}");
    }
    assert!(commands.contains(&"demo") && commands.contains(&"test"), "README.md shows `make demo` and `make test`");
    let gate = read(".ci/run");
    assert!(gate.contains("make test") && gate.contains("make deep"), ".ci/run runs all steps");
}

/// Red if a page for contributors leaves out a step, has one that is gone, or has it under the other command.
#[test]
fn every_step_has_its_row() {
    assert_eq!(array("b=(x)\na=(y z)\n", "a"), ["y", "z"]);
    assert_eq!(array("a+=(y)\n", "a"), [""; 0]);
    assert_eq!(first_column("| a |\n|---|\n| `x`, `y z` | `no` |\n`no`\n"), ["x", "y z"]);
    let (page, script) = (read("CONTRIBUTING.md"), read("scripts/test"));
    let (head, deep) = page.split_once("The steps of `make deep`:\n").expect("the page tells the commands apart");
    let (_, test) = head.split_once("The steps of `make test`:\n").expect("the page tells the commands apart");
    let deep = deep.split("\n## ").next().unwrap_or_default();
    for (name, text) in [("steps", test), ("deep", deep)] {
        let (mut listed, mut rows) = (array(&script, name), first_column(text));
        assert!(listed.len() > 5, "scripts/test has no line '{name}=(...)': {listed:?}");
        listed.sort_unstable();
        rows.sort_unstable();
        assert_eq!(rows, listed, "CONTRIBUTING.md and scripts/test, {name}");
    }
}

/// Red if a target could refuse all that it is given, and nothing would tell. Red too if what a fuzzer has found were
/// kept as seeds: the fuzzer names each such file by 40 hexadecimal digits, and no reader knows what it is for.
#[test]
fn every_fuzz_target_has_seeds_and_says_what_they_reach() {
    let targets: Vec<_> = fs::read_dir(root().join("fuzz/fuzz_targets"))
        .expect("the folder is there")
        .flatten()
        .map(|file| file.path())
        .filter(|path| has_extension(path, "rs"))
        .collect();
    assert!(targets.len() > 5, "{targets:?}");
    for path in targets {
        let name = path.file_stem().and_then(|name| name.to_str()).expect("its name is text");
        let text = fs::read_to_string(&path).expect("it can be read");
        assert!(text.contains(&format!("target!(\"{name}\", ")), "{name} does not say what its seeds reach");
        let seeds: Vec<_> = fs::read_dir(root().join("fuzz/seeds").join(name))
            .expect("it has seeds")
            .flatten()
            .map(|seed| seed.file_name().into_string().expect("its name is text"))
            .collect();
        assert!(seeds.len() >= 3, "{name} has the seeds {seeds:?}");
        let found = seeds.iter().filter(|seed| seed.len() == 40 && seed.bytes().all(|byte| byte.is_ascii_hexdigit()));
        assert_eq!(found.collect::<Vec<_>>(), Vec::<&String>::new(), "{name} has seeds that have no name");
        assert!(read("fuzz/Cargo.toml").contains(&format!("name = \"{name}\"")), "{name} is not built");
    }
}

/// Red if a file of tests is in no program, so that no compiler reads it and its tests do not run.
#[test]
fn every_file_of_tests_is_a_module_of_its_program() {
    assert!(includes("//! mod b;\nmod a;\n", "a"));
    assert!(!includes("//! mod b;\n#[cfg(miri)]\nmod a;\n", "a") && !includes("//! mod b;\n", "b"));
    let crates = fs::read_dir(root().join("crates")).expect("the folder is there").flatten();
    let tests = crates.filter_map(|entry| fs::read_dir(entry.path().join("tests")).ok()).flatten().flatten();
    let mut files = Vec::new();
    let programs = tests.map(|entry| entry.path()).filter(|folder| folder.join("main.rs").exists());
    programs.for_each(|folder| included_by(&folder, &mut files));
    for (path, parent) in &files {
        let name = path.file_stem().and_then(|name| name.to_str()).expect("a module's name is UTF-8");
        let text = fs::read_to_string(parent).unwrap_or_else(|error| panic!("{}: {error}", parent.display()));
        assert!(includes(&text, name), "{} is not a module of {}", path.display(), parent.display());
    }
    assert!(files.len() > 100, "{}", files.len());
}

/// Functions and modules with a name by which the step `test` leaves out a test. The steps that run such tests run the
/// programs `it` alone.
fn left_out_by_name(text: &str) -> Vec<Finding> {
    let is_left_out = |line: &str| {
        let name = |keyword| line.split_once(keyword).map_or("", |(_, name)| name);
        let module = name("mod ").trim_end_matches([';', '{', ' ']);
        name("fn ").split('(').next().is_some_and(|name| name.contains("stress_"))
            || module.contains("stress_")
            || module.ends_with("long")
    };
    bad_lines(lines(text), |line| is_left_out(split(line).0), "a test that no step runs")
}

/// Red if a test outside of the programs `it` has a name that the filters of the step `test` skip.
#[test]
fn no_test_is_skipped_that_no_step_runs() {
    for text in
        ["fn stress_a() {", "fn a_stress_b() {", "mod long;", "pub mod long {", "mod prolong {", "mod stress_a;"]
    {
        assert_eq!(left_out_by_name(text).len(), 1, "{text}");
    }
    assert_eq!(left_out_by_name("fn a() { // fn stress_b()\nmod longer {\nlet a = \"the mod\";").len(), 0);
    // The rig's step skips no test.
    let is_elsewhere = |path: &Path| {
        let parts: Vec<_> = path.iter().filter_map(|part| part.to_str()).collect();
        has_extension(path, "rs") && parts[0] == "crates" && parts[1] != "blkmq-torture" && !parts.contains(&"it")
    };
    check(is_elsewhere, |_, text| left_out_by_name(text));
}

/// Red if a filter of a step that has several, such as `release`, matches no test any more: the others would hide that.
#[test]
fn every_filter_of_a_step_matches_tests() {
    let Some(files) = tracked() else { return println!("SKIP this is no git checkout") };
    let tests: Vec<_> =
        files.iter().filter(|(path, _)| has_extension(path, "rs") && path.starts_with("crates")).collect();
    let step = read("scripts/step");
    let filters: Vec<_> =
        step.lines().filter_map(|line| line.trim().strip_prefix("tests test ")?.split_once(" -- ")).collect();
    let words: Vec<_> =
        filters.iter().flat_map(|(_, words)| words.split(' ')).filter(|word| *word != "--skip").collect();
    assert!(words.contains(&"planted::"), "{words:?}");
    for word in words {
        let module = word.strip_suffix("::");
        let matches = |(path, text): &&&(PathBuf, String)| match module {
            Some(name) => path.file_stem().is_some_and(|stem| stem == name) || text.contains(&format!("mod {name} {{")),
            None => text.contains(&format!("fn {word}")),
        };
        assert!(tests.iter().any(|file| matches(&file)), "scripts/step: no test has a name with '{word}'");
    }
}
