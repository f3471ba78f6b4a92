//! The words of the project: names in the sources, and pages, use the field's term and not a word of the project's own.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Words that no name of the product has, with the field's term. A name is split at underscores and capitals.
const NAMES: [(&str, &str); 26] = [
    ("look_again", "re-check"),
    ("in_vain", "spurious poll"),
    ("news", "pending event"),
    ("brought", "external, for buffers; notify"),
    ("leaver", "publisher"),
    ("hand_on", "defer"),
    ("hand_through", "dispatch on the fast path"),
    ("handed_through", "dispatched on the fast path"),
    ("parked", "on the dispatch list"),
    ("loan", "borrowed request"),
    ("loans", "borrowed requests"),
    ("runner", "dispatch context"),
    ("desk", "session"),
    ("clerk", "adapter"),
    ("door", "acceptor"),
    ("fitness", "certificate validation"),
    ("parting", "shutdown"),
    ("manners", "polling heuristic"),
    ("patience", "retry policy"),
    ("crew", "thread pool"),
    ("dial", "connector"),
    ("fate", "exit policy"),
    ("suitor", "merge candidate"),
    ("betrothed", "pending merge target"),
    ("heir", "successor"),
    ("habits", "think time"),
];

/// Phrases that no page has, with the field's term.
const PHRASES: [(&str, &str); 7] = [
    ("looks in vain", "a spurious poll"),
    ("hands on", "defers"),
    ("handed through", "dispatched on the fast path"),
    ("what was left", "published requests"),
    ("leaver", "publisher"),
    ("parked request", "request on the dispatch list"),
    ("the loan", "the borrowed request"),
];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// Every tracked file with one of these endings.
fn files(endings: &[&str]) -> Vec<String> {
    let listed = Command::new("git").arg("-C").arg(root()).args(["ls-files", "-z"]).output().expect("git runs");
    let listed = String::from_utf8(listed.stdout).expect("paths are text");
    let is_wanted = |path: &&str| endings.iter().any(|ending| path.ends_with(ending));
    listed.split('\0').filter(is_wanted).map(str::to_owned).collect()
}

/// A name in lower case with an underscore between its words: `TlsSession` is `tls_session`.
fn words_of(name: &str) -> String {
    let mut words = String::new();
    let mut was_lower = false;
    for c in name.chars() {
        if c.is_uppercase() && was_lower {
            words.push('_');
        }
        was_lower = c.is_lowercase() || c.is_ascii_digit();
        words.extend(c.to_lowercase());
    }
    words
}

/// The words that a text's names have and must not have, with their lines. Comments and strings do not count.
fn private_names(text: &str) -> Vec<(usize, String)> {
    let code = |line: &str| {
        let code = line.split("//").next().unwrap_or_default();
        code.split('"').step_by(2).collect::<Vec<_>>().join(" ")
    };
    let found = |number: usize, name: &str| {
        let words = format!("_{}_", words_of(name));
        let word = NAMES.iter().find(|(word, _)| words.contains(&format!("_{word}_")))?;
        Some((number, format!("`{name}`: the field says {}", word.1)))
    };
    let lines = text.split("\n#[cfg(test)]\nmod tests {").next().unwrap_or_default().lines();
    lines
        .enumerate()
        .flat_map(|(index, line)| {
            let code = code(line);
            let names = code.split(|c: char| !c.is_alphanumeric() && c != '_');
            names.filter_map(|name| found(index + 1, name)).collect::<Vec<_>>()
        })
        .collect()
}

#[test]
fn the_check_finds_a_private_name() {
    let text =
        "/// A loan.\nfn look_again(q: &Queue) {\n    let news = \"the clerk\";\n    LastHeir::new(on_loan)\n}\n";
    let lines: Vec<usize> = private_names(text).into_iter().map(|(line, _)| line).collect();
    assert_eq!(lines, [2, 3, 4, 4]);
    assert_eq!(private_names("let newspaper = loaned.heirloom();"), []);
}

/// Red if a name of the product or of the rig has a word that only this project would use.
#[test]
fn names_are_the_fields() {
    let is_product = |path: &String| path.contains("/src/") && !path.contains("/tests");
    let sources = files(&[".rs"]).into_iter().filter(is_product);
    let mut findings = Vec::new();
    for path in sources {
        let stem = Path::new(&path).file_stem().and_then(|stem| stem.to_str()).expect("paths are text");
        findings.extend(private_names(stem).into_iter().map(|(_, what)| format!("{path}: {what}")));
        let text = fs::read_to_string(root().join(&path)).expect("a tracked file can be read");
        findings.extend(private_names(&text).into_iter().map(|(line, what)| format!("{path}:{line}: {what}")));
    }
    assert!(findings.is_empty(), "\n{}", findings.join("\n"));
}

/// Red if a page has a phrase that only this project would use. Records are as they were written.
#[test]
fn pages_speak_as_the_field_does() {
    let mut findings = Vec::new();
    for path in files(&[".md"]).into_iter().filter(|path| !path.contains("/records/")) {
        let text = fs::read_to_string(root().join(&path)).expect("a tracked file can be read");
        for (index, line) in text.lines().enumerate() {
            let found = PHRASES.iter().find(|(phrase, _)| line.to_lowercase().contains(phrase));
            findings.extend(found.map(|(phrase, term)| format!("{path}:{}: \"{phrase}\": say {term}", index + 1)));
        }
    }
    assert!(findings.is_empty(), "\n{}", findings.join("\n"));
}
