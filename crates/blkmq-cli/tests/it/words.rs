//! The words of the project: names in the sources, and pages, use the field's term and not a word of the project's own.

use std::path::Path;

use crate::tidy::{Finding, check, has_extension, is_source, lines, product_source};

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
fn private_names(text: &str) -> Vec<Finding> {
    let code = |line: &str| {
        let code = line.split("//").next().unwrap_or_default();
        code.split('"').step_by(2).collect::<Vec<_>>().join(" ")
    };
    let found = |number: usize, name: &str| {
        let words = format!("_{}_", words_of(name));
        let word = NAMES.iter().find(|(word, _)| words.contains(&format!("_{word}_")))?;
        Some((number, format!("`{name}`: the field says {}", word.1)))
    };
    let of_line = |(number, line)| {
        let code = code(line);
        let names = code.split(|c: char| !c.is_alphanumeric() && c != '_');
        names.filter_map(|name| found(number, name)).collect::<Vec<_>>()
    };
    lines(product_source(text)).flat_map(of_line).collect()
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
    let is_product = |path: &Path| is_source(path) && !path.to_string_lossy().contains("/tests");
    check(is_product, |path, text| {
        let stem = path.file_stem().and_then(|stem| stem.to_str()).expect("paths are text");
        [private_names(stem), private_names(text)].concat()
    });
}

/// Red if a page has a phrase that only this project would use. Records are as they were written.
#[test]
fn pages_speak_as_the_field_does() {
    let is_page = |path: &Path| has_extension(path, "md") && path.iter().all(|part| part != "records");
    let found = |(number, line): (usize, &str)| {
        let (phrase, term) = PHRASES.iter().find(|(phrase, _)| line.to_lowercase().contains(phrase))?;
        Some((number, format!("\"{phrase}\": say {term}")))
    };
    check(is_page, |_, text| lines(text).filter_map(found).collect());
}
