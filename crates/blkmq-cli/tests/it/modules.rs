//! The modules of a crate import one another in one direction, so no module is in a cycle. A module and the modules
//! inside it count as one group, whose members may use one another. Unit tests at the end of a file are not checked.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

/// The folders of crates that have an order: each imports only from those before it.
const FOLDERS: [(&str, &[&str]); 2] = [
    ("blkmq", &["request", "driver", "queue", "device", "order", "path", "submit", "control"]),
    (
        "blkmq-engine",
        &[
            "failure",
            "ask",
            "log",
            "clients",
            "stop",
            "placement",
            "export",
            "memory",
            "engine",
            "patience",
            "wait",
            "desk",
        ],
    ),
];

/// A module by its path within the crate; the root is empty.
type Module = Vec<String>;

/// The imports of each module.
type Imports = BTreeMap<Module, BTreeSet<Module>>;

/// The paths that a source names from the root of its crate (`crate::`) or from the modules that it is in (`super::`).
fn paths(module: &[String], source: &str) -> Vec<Module> {
    let source = source.split("#[cfg(test)]").next().unwrap_or_default();
    let source = source.split("#[cfg(all(test").next().unwrap_or_default();
    let code: Vec<_> = source.lines().map(|line| line.split("//").next().unwrap_or_default()).collect();
    let code = code.join("\n");
    let mut found = Vec::new();
    for (at, _) in code.match_indices("crate::") {
        expand(&[], &code[at + "crate::".len()..], &mut found);
    }
    for (at, _) in code.match_indices("super::") {
        if code[..at].ends_with("super::") {
            continue;
        }
        let mut base = module;
        let mut rest = &code[at..];
        while let Some(outer) = rest.strip_prefix("super::") {
            base = &base[..base.len().saturating_sub(1)];
            rest = outer;
        }
        expand(base, rest, &mut found);
    }
    found
}

/// Adds the names in a use tree, such as `a::{b, c::D}`. Returns the text after the tree.
fn expand<'t>(base: &[String], text: &'t str, found: &mut Vec<Module>) -> &'t str {
    let mut path = base.to_vec();
    let mut rest = text.trim_start();
    loop {
        if let Some(group) = rest.strip_prefix('{') {
            rest = group;
            loop {
                rest = expand(&path, rest, found).trim_start();
                match rest.strip_prefix(',') {
                    Some(more) => rest = more,
                    None => return rest.strip_prefix('}').unwrap_or(rest),
                }
            }
        }
        let end = rest.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(rest.len());
        if end > 0 {
            path.push(rest[..end].to_owned());
        }
        rest = &rest[end..];
        match rest.strip_prefix("::") {
            Some(more) => rest = more,
            None => {
                found.push(path);
                return rest;
            }
        }
    }
}

fn sources(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).expect("a folder of the repository can be read").flatten();
    let paths = entries.map(|entry| entry.path());
    paths.flat_map(|path| if path.is_dir() { sources(&path) } else { vec![path] }).collect()
}

fn imports(folder: &Path) -> Imports {
    let mut texts = BTreeMap::new();
    for file in sources(folder) {
        let inside = file.strip_prefix(folder).expect("it was found there").with_extension("");
        let mut module: Module = inside.iter().map(|part| part.to_string_lossy().into_owned()).collect();
        if module.last().is_some_and(|last| ["mod", "lib", "main"].contains(&last.as_str())) {
            module.pop();
        }
        texts.insert(module, fs::read_to_string(&file).expect("a source is text"));
    }
    let known =
        |path: &Module| (1..=path.len()).rev().map(|len| path[..len].to_vec()).find(|path| texts.contains_key(path));
    let of = |(module, text): (&Module, &String)| {
        let named = paths(module, text).iter().filter_map(known).collect::<BTreeSet<_>>();
        let others = named.into_iter().filter(|other| !other.starts_with(module)).collect();
        (module.clone(), others)
    };
    texts.iter().map(of).collect()
}

/// The modules that can be reached from one by its imports.
fn reached(imports: &Imports, from: &Module) -> BTreeSet<Module> {
    let (mut seen, mut next) = (BTreeSet::new(), vec![from]);
    while let Some(module) = next.pop() {
        for other in imports.get(module).into_iter().flatten() {
            if seen.insert(other.clone()) {
                next.push(other);
            }
        }
    }
    seen
}

/// The modules from which imports lead back to the module itself, each with its imports of the other modules.
fn cycles(imports: &Imports) -> Vec<String> {
    let turns: BTreeSet<_> = imports.keys().filter(|module| reached(imports, module).contains(*module)).collect();
    let name = |module: &Module| module.join("::");
    let line = |module: &&Module| {
        let others: Vec<_> = imports[*module].iter().filter(|other| turns.contains(other)).map(name).collect();
        format!("{} imports {}", name(module), others.join(", "))
    };
    turns.iter().map(line).collect()
}

fn module(path: &str) -> Module {
    path.split("::").map(str::to_owned).collect()
}

/// Red if `expand` stops at the first name of a group, or if `paths` reads comments, unit tests, or `super` as if it
/// were the root.
#[test]
fn use_trees_are_read_whole() {
    let source = "use crate::a::{B, c::{D, E}};\nuse super::f::G;\nfn x() { crate::h::i() } // crate::no\n#[cfg(test)]\ncrate::no";
    let expected = ["a::B", "a::c::D", "a::c::E", "h::i", "p::f::G"].map(module);
    assert_eq!(paths(&module("p::q"), source), expected);
}

/// Red if `cycles` misses a cycle that a module outside of it imports, or names a module that is in none.
#[test]
fn a_cycle_is_found_and_named() {
    let imports = |edges: &[(&str, &str)]| {
        let mut imports = Imports::new();
        for (from, to) in edges {
            imports.entry(module(from)).or_default().insert(module(to));
            imports.entry(module(to)).or_default();
        }
        imports
    };
    assert!(cycles(&imports(&[("a", "b"), ("b", "c"), ("a", "c")])).is_empty());
    let found = cycles(&imports(&[("a", "b"), ("b", "c"), ("c", "b")]));
    assert_eq!(found, ["b imports c", "c imports b"]);
}

/// The crates that have sources of their own, with these.
fn crates() -> Vec<(String, PathBuf)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("it is one of several");
    let entries = fs::read_dir(folder).expect("a folder of the repository can be read").flatten();
    let named = entries.map(|entry| (entry.file_name().to_string_lossy().into_owned(), entry.path().join("src")));
    named.filter(|(_, sources)| sources.is_dir()).collect()
}

/// Red if two modules of any crate import each other, also by way of further modules.
#[test]
fn no_module_stands_in_a_cycle() {
    let crates = crates();
    assert!(crates.iter().any(|(name, _)| name == "blkmq"), "{crates:?}");
    let mut found = BTreeMap::new();
    for (name, sources) in &crates {
        let imports = imports(sources);
        assert!(imports.len() > 1, "{name} has modules");
        let cycles = cycles(&imports);
        if !cycles.is_empty() {
            found.insert(name, cycles);
        }
    }
    assert_eq!(found, BTreeMap::new(), "what several modules need belongs into one below them");
}

/// The imports, as `a::b imports c::d`, of a folder from one that stands behind it, or from one that has no place.
fn against(order: &[&str], imports: &Imports) -> Vec<String> {
    let place = |module: &Module| order.iter().position(|folder| module.first().is_some_and(|first| first == folder));
    let mut found = Vec::new();
    for (module, imported) in imports.iter().filter(|(module, _)| !module.is_empty()) {
        for other in imported {
            if place(module).is_none() || place(other).is_none() || place(other) > place(module) {
                found.push(format!("{} imports {}", module.join("::"), other.join("::")));
            }
        }
    }
    found
}

/// Red if `against` accepts an import of a later folder, or a module outside of all folders.
#[test]
fn the_check_finds_an_import_against_the_order() {
    let module = |name: &str| name.split("::").map(str::to_owned).collect::<Module>();
    let imports = Imports::from([
        (module("b::x"), [module("a"), module("b::y")].into()),
        (module("a"), [module("b::y")].into()),
        (module("c"), [module("a")].into()),
    ]);
    assert_eq!(against(&["a", "b"], &imports), ["a imports b::y", "c imports a"]);
}

/// Red if a folder of a crate imports from a later one, or if the order names a folder that does not exist.
#[test]
fn folders_import_in_one_direction() {
    let crates = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("it is one of several");
    for (name, order) in FOLDERS {
        let imports = imports(&crates.join(name).join("src"));
        for folder in order {
            assert!(
                imports.keys().any(|module| module.first().is_some_and(|first| first == folder)),
                "{name}: {folder}"
            );
        }
        assert_eq!(against(order, &imports), [""; 0], "{name}: what two folders need belongs into the first of them");
    }
}
