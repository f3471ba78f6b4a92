//! The modules of a crate import one another in one direction, so no module is in a cycle. A module and its descendants
//! may use one another; a cycle is reported if it remains without their common ancestor.
//!
//! Sources are read as tokens. Comments and strings hold no imports; macros are read like other code. Items under
//! `#[cfg(test)]` are left out, and so are the files of test modules. A name that a module declares by `use` counts as
//! an import of the module that the `use` names, also where another module imports the name from there.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use proc_macro2::{Delimiter, Group, Spacing, TokenStream, TokenTree};

/// The folders of crates, or of a folder within a crate, that have an order: each imports only from those before it.
const FOLDERS: [(&str, &str); 3] = [
    ("blkmq", "request driver queue dispatcher submit control"),
    (
        "blkmq::queue",
        "schedulers error experiments locking settings scheduler_choice attached watch accounting limits topology \
         tenants threads ordered state builder handle",
    ),
    (
        "blkmq-engine",
        "failure files ask log clients stop placement export memory engine idle_timeout wait acceptor session harness",
    ),
];

/// How often a name is re-exported at most.
const REEXPORTS: usize = 8;

/// A module by its path within the crate; the root is empty.
type Module = Vec<String>;

/// The imports of each module.
type Imports = BTreeMap<Module, BTreeSet<Module>>;

/// A path in a source.
#[derive(Clone)]
struct SourcePath {
    /// The module that the path is relative to: that of the file, or one inside it whose body is in the same file.
    scope: Module,
    segments: Vec<String>,
    /// The name that the path declares if it is in a `use`; `*` for all names.
    name: String,
}

/// The contents of a source that matter for imports.
#[derive(Default)]
struct Source {
    paths: Vec<SourcePath>,
    /// Those of the paths that are in a `use`.
    uses: Vec<SourcePath>,
    /// The modules that exist only in unit tests.
    tests: Vec<Module>,
}

impl Source {
    fn new(module: &[String], text: &str) -> Self {
        let mut source = Self::default();
        let tokens: TokenStream = text.parse().expect("a source consists of tokens");
        source.read(module, &tokens.into_iter().collect::<Vec<_>>());
        source
    }

    fn read(&mut self, scope: &[String], tokens: &[TokenTree]) {
        let mut rest = tokens;
        while let [first, behind @ ..] = rest {
            rest = match (first, behind) {
                (TokenTree::Punct(hash), [TokenTree::Group(attribute), item @ ..])
                    if hash.as_char() == '#' && needs_test(&trees(attribute)) =>
                {
                    self.skip(scope, item)
                }
                (TokenTree::Ident(word), [TokenTree::Ident(name), TokenTree::Group(body), behind @ ..])
                    if word == "mod" =>
                {
                    self.read(&[scope, &[name.to_string()]].concat(), &trees(body));
                    behind
                }
                (TokenTree::Ident(word), _) if word == "use" => {
                    let nr = self.paths.len();
                    let behind = self.path(scope, Vec::new(), behind);
                    self.uses.extend_from_slice(&self.paths[nr..]);
                    behind
                }
                (TokenTree::Ident(_), _) if is_separator(behind) => self.path(scope, Vec::new(), rest),
                // A path from another crate, or from a type.
                _ if is_separator(rest) => Self::default().path(scope, Vec::new(), &rest[2..]),
                (TokenTree::Group(group), _) => {
                    self.read(scope, &trees(group));
                    behind
                }
                _ => behind,
            };
        }
    }

    /// Adds the path, or each path of a use tree with braces, that begins with the segments of `path` and continues in
    /// `rest`. Returns the tokens behind it.
    fn path<'t>(&mut self, scope: &[String], mut path: Vec<String>, mut rest: &'t [TokenTree]) -> &'t [TokenTree] {
        loop {
            match rest {
                [TokenTree::Ident(name), behind @ ..] => {
                    path.push(name.to_string());
                    rest = behind;
                }
                [TokenTree::Group(tree), behind @ ..] if tree.delimiter() == Delimiter::Brace => {
                    let branches = trees(tree);
                    for branch in branches.split(is_comma).filter(|branch| !branch.is_empty()) {
                        self.path(scope, path.clone(), branch);
                    }
                    return behind;
                }
                _ => break,
            }
            if !is_separator(rest) {
                break;
            }
            rest = &rest[2..];
        }
        if path.len() > 1 {
            path.pop_if(|last| last == "self");
        }
        let name = match rest {
            [TokenTree::Ident(word), TokenTree::Ident(name), ..] if word == "as" => name.to_string(),
            [TokenTree::Punct(mark), ..] if mark.as_char() == '*' => "*".to_owned(),
            _ => path.last().cloned().unwrap_or_default(),
        };
        self.paths.push(SourcePath { scope: scope.to_vec(), segments: path, name });
        rest
    }

    /// Skips the item that an attribute applies to: up to and including a body in braces, or else up to the end of the
    /// statement, field or match arm. Returns the tokens behind it.
    fn skip<'t>(&mut self, scope: &[String], item: &'t [TokenTree]) -> &'t [TokenTree] {
        let mut generics = 0;
        for (at, token) in item.iter().enumerate() {
            let is_end = match token {
                TokenTree::Group(group) => group.delimiter() == Delimiter::Brace,
                TokenTree::Punct(mark) => {
                    let is_arrow = at > 0
                        && matches!(&item[at - 1], TokenTree::Punct(line) if ['-', '='].contains(&line.as_char()));
                    generics += match mark.as_char() {
                        '<' => 1,
                        '>' if !is_arrow => -1,
                        _ => 0,
                    };
                    mark.as_char() == ';' || mark.as_char() == ',' && generics == 0
                }
                TokenTree::Ident(word) if word == "mod" => {
                    if let Some(TokenTree::Ident(name)) = item.get(at + 1) {
                        self.tests.push([scope, &[name.to_string()]].concat());
                    }
                    false
                }
                _ => false,
            };
            if is_end {
                return &item[at + 1..];
            }
        }
        &[]
    }
}

/// The tokens in a group.
fn trees(group: &Group) -> Vec<TokenTree> {
    group.stream().into_iter().collect()
}

fn is_comma(token: &TokenTree) -> bool {
    matches!(token, TokenTree::Punct(mark) if mark.as_char() == ',')
}

/// Returns true if the tokens begin with `::`.
fn is_separator(tokens: &[TokenTree]) -> bool {
    let [TokenTree::Punct(first), TokenTree::Punct(second), ..] = tokens else { return false };
    first.as_char() == ':' && first.spacing() == Spacing::Joint && second.as_char() == ':'
}

/// Returns true if a predicate such as `cfg(test)` or `cfg(all(test, unix))` can hold in unit tests only.
fn needs_test(predicate: &[TokenTree]) -> bool {
    match predicate {
        [TokenTree::Ident(name)] => name == "test",
        [TokenTree::Ident(name), TokenTree::Group(all)] if name == "cfg" || name == "all" => {
            trees(all).split(is_comma).any(needs_test)
        }
        _ => false,
    }
}

/// Resolves a path from the root of the crate. Returns `None` if the path begins neither with a keyword nor with a
/// child of its scope.
fn from_root(scope: &[String], path: &[String], is_module: &dyn Fn(&[String]) -> bool) -> Option<Module> {
    let (first, behind) = path.split_first()?;
    match first.as_str() {
        "crate" => Some(behind.to_vec()),
        "self" | "super" => {
            let outer = if first == "super" { &scope[..scope.len().saturating_sub(1)] } else { scope };
            let goes_on = behind.first().is_some_and(|next| next == "super");
            if goes_on { from_root(outer, behind, is_module) } else { Some([outer, behind].concat()) }
        }
        _ => is_module(&[scope, &path[..1]].concat()).then(|| [scope, path].concat()),
    }
}

/// Resolves the paths of each module to the modules that they lead to. Modules of unit tests are left out.
fn imports(mut sources: BTreeMap<Module, Source>) -> Imports {
    let tests: Vec<_> = sources.values().flat_map(|source| source.tests.clone()).collect();
    sources.retain(|module, _| !tests.iter().any(|test| module.starts_with(test)));
    let is_module = |path: &[String]| sources.contains_key(path);
    let named = |source: &Source, SourcePath { scope, segments, .. }: &SourcePath| {
        if let Some(path) = from_root(scope, segments, &is_module) {
            return vec![path];
        }
        let Some((first, behind)) = segments.split_first() else { return Vec::new() };
        let declared = source.uses.iter().filter_map(|used| {
            let path = from_root(&used.scope, &used.segments, &is_module)?;
            let inner = [&path[..], &segments[..1]].concat();
            match used.name.as_str() {
                "*" => is_module(&inner).then(|| [&inner[..], behind].concat()),
                name => (name == first).then(|| [&path[..], behind].concat()),
            }
        });
        declared.collect()
    };
    // The path under which the last module of `path` declares the next name by `use`.
    let declared = |path: &Module| -> Option<Module> {
        let len = (0..path.len()).rev().find(|len| is_module(&path[..*len]) || *len == 0)?;
        let (owner, name) = (&path[..len], &path[len]);
        let mut uses = sources.get(owner)?.uses.iter();
        let used = uses.find(|used| used.scope == owner && used.name == *name)?;
        let declared = from_root(&used.scope, &used.segments, &is_module)?;
        let followed = [&declared[..], &path[len + 1..]].concat();
        (!is_module(path) && followed != *path).then_some(followed)
    };
    let origin =
        |path| (0..REEXPORTS).try_fold(path, |path, _| declared(&path).ok_or(path)).unwrap_or_else(|path| path);
    let of = |(module, source): (&Module, &Source)| {
        let named = source.paths.iter().flat_map(|path| named(source, path)).map(origin);
        let owners = named.filter_map(|path| {
            let owner = (1..=path.len()).rev().map(|len| &path[..len]).find(|path| is_module(path));
            owner.map(<[String]>::to_vec)
        });
        (module.clone(), owners.filter(|other| other != module).collect())
    };
    sources.iter().map(of).collect()
}

fn files(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).expect("a folder of the repository can be read").flatten();
    let paths = entries.map(|entry| entry.path());
    paths.flat_map(|path| if path.is_dir() { files(&path) } else { vec![path] }).collect()
}

fn imports_in(folder: &Path) -> Imports {
    let source = |file: PathBuf| {
        let inside = file.strip_prefix(folder).expect("it was found there").with_extension("");
        let mut module: Module = inside.iter().map(|part| part.to_string_lossy().into_owned()).collect();
        module.pop_if(|last| ["mod", "lib", "main"].contains(&last.as_str()));
        let source = Source::new(&module, &fs::read_to_string(&file).expect("a source is text"));
        (module, source)
    };
    let is_source = |file: &PathBuf| file.extension().is_some_and(|extension| extension == "rs");
    imports(files(folder).into_iter().filter(is_source).map(source).collect())
}

/// The modules that can be reached from one by imports, through no others than `modules`.
fn reached<'m>(imports: &'m Imports, modules: &BTreeSet<&'m Module>, from: &'m Module) -> BTreeSet<&'m Module> {
    let (mut seen, mut next) = (BTreeSet::new(), vec![from]);
    while let Some(module) = next.pop() {
        let others = imports.get(module).into_iter().flatten();
        next.extend(others.filter(|other| modules.contains(other) && seen.insert(*other)));
    }
    seen
}

/// The cycles through `modules` that remain without the common ancestor of each.
fn cycles_among<'m>(imports: &'m Imports, modules: &BTreeSet<&'m Module>) -> BTreeSet<BTreeSet<&'m Module>> {
    let reached: BTreeMap<_, _> = modules.iter().map(|module| (*module, reached(imports, modules, module))).collect();
    let cycle = |from: &&'m Module| reached[from].iter().copied().filter(|to| reached[to].contains(from)).collect();
    let all: BTreeSet<BTreeSet<_>> = modules.iter().map(cycle).filter(|cycle: &BTreeSet<_>| cycle.len() > 1).collect();
    let without_ancestor = |mut cycle: BTreeSet<&'m Module>| {
        let ancestor = cycle.iter().copied().find(|first| cycle.iter().all(|other| other.starts_with(first)));
        let Some(ancestor) = ancestor else { return BTreeSet::from([cycle]) };
        cycle.remove(ancestor);
        cycles_among(imports, &cycle)
    };
    all.into_iter().flat_map(without_ancestor).collect()
}

/// The modules that are in a cycle, each with its imports of others in the cycle.
fn cycles(imports: &Imports) -> Vec<String> {
    let name = |module: &Module| module.join("::");
    let mut found = Vec::new();
    for cycle in cycles_among(imports, &imports.keys().collect()) {
        for module in &cycle {
            let others: Vec<_> = imports[*module].iter().filter(|other| cycle.contains(other)).map(name).collect();
            found.push(format!("{} imports {}", name(module), others.join(", ")));
        }
    }
    found
}

fn module(path: &str) -> Module {
    path.split("::").map(str::to_owned).collect()
}

fn sources(texts: &[(&str, &str)]) -> BTreeMap<Module, Source> {
    texts.iter().map(|(path, text)| (module(path), Source::new(&module(path), text))).collect()
}

/// The imports of the module `p::q` with this source, in a crate with a few more modules.
fn imports_of(text: &str) -> String {
    let others = [
        ("a", "mod b; pub use b::Exported;"),
        ("a::b", ""),
        ("p", "use crate::a::Exported as Again;"),
        ("p::r", ""),
        ("p::q::child", ""),
    ];
    let imports = imports(sources(&[&others[..], &[("p::q", text)]].concat()));
    imports[&module("p::q")].iter().map(|other| other.join("::")).collect::<Vec<_>>().join(" ")
}

/// Red if a form of path is not followed, or leads to another module than the compiler's.
#[test]
fn paths_lead_to_modules() {
    for (text, expected) in [
        ("use crate::a::{X, b::{Y, Z}};", "a a::b"),
        ("use crate::{a::{self, X as Y}, p::r};", "a p::r"),
        ("use {crate::a::X, super::r};", "a p::r"),
        ("use super::r::X; use super::super::a::Y;", "a p::r"),
        ("fn f() -> crate::a::X { super::r::g::<crate::a::b::Y>() }", "a a::b p::r"),
        ("fn f(_: super::super::a::X) { <crate::a::b::X as super::r::Y>::g() }", "a a::b p::r"),
        // Children, with and without `self`.
        ("mod child; pub use self::child::X;", "p::q::child"),
        ("mod child; pub use child::{X, Y};", "p::q::child"),
        ("mod child; fn f() { child::g(1) }", "p::q::child"),
        // Modules in the same file have another `super`, and no children of the file.
        ("mod inner { use super::child::X; fn f() { super::super::r::g() } }", "p::q::child p::r"),
        ("mod inner { mod deep { use super::super::super::super::a::X; } fn f() { child::g() } }", "a"),
        // Modules under the names that `use` declares.
        ("use crate::a; fn f() { a::b::g() }", "a a::b"),
        ("use crate::a as other; fn f() { other::b::g() }", "a a::b"),
        ("use crate::a::*; fn f() { b::g() }", "a a::b"),
        // A name that is re-exported there.
        ("use crate::a::Exported;", "a::b"),
        ("use super::Again; fn f() { super::Unknown::g() }", "a::b p"),
        ("pub use crate::a::X;", "a"),
        // Macros and attributes.
        ("fn f() { assert!(crate::a::X > 0, \"{}\", super::r::Y) }", "a p::r"),
        ("macro_rules! m { () => { $crate::a::f() } }", "a"),
        ("#[arg(value_parser = crate::a::parse)] struct S;", "a"),
    ] {
        assert_eq!(imports_of(text), expected, "{text}");
    }
}

/// Red if text that is no import is read as one.
#[test]
fn comments_strings_and_other_names_are_no_imports() {
    for text in [
        "// crate::a::X\n/* /* */ crate::a::X */ /// [`X`](crate::a::X)\nfn f() {}",
        "const X: &str = \"// \\\" crate::a::X\"; const Y: &str = r#\"\" crate::a::X\"#; const Z: char = '\"';",
        "use ::a::X; fn f() { ::a::b::g(); other::a::g(); Y::<u8>::a::g() }",
        "use a::X; fn f() { a::g() }",
        "fn f(child: u8) -> u8 { child.a(Self::child()) }",
    ] {
        assert_eq!(imports_of(text), "", "{text}");
    }
    assert_eq!(imports_of("const X: &str = \"// \"; use crate::a::X; // \""), "a");
}

/// Red if `#[cfg(test)]` hides more than what it applies to, or less.
#[test]
fn unit_tests_are_left_out_and_the_rest_is_seen() {
    for (text, expected) in [
        ("#[cfg(test)] mod tests; use super::r::X;", "p::r"),
        ("#[cfg(test)] use crate::a::{X, Y}; use super::r::X;", "p::r"),
        ("#[cfg(test)] mod tests { mod deep {} use crate::a; } use super::r::X;", "p::r"),
        ("#[cfg(all(unix, test))] #[inline] fn f<A, B>(_: A) -> [u8; 3] { crate::a::g() } use super::r;", "p::r"),
        ("impl X { #[cfg(test)] fn f() { crate::a::g() } fn g() { super::r::g() } }", "p::r"),
        ("fn f() { #[cfg(test)] crate::a::g(1, 2); super::r::g() }", "p::r"),
        ("struct X { #[cfg(test)] x: Map<u8, crate::a::X>, y: super::r::Y }", "p::r"),
        ("struct X { #[cfg(test)] x: fn(u8) -> u8, y: super::r::Y }", "p::r"),
        // What exists in other builds too.
        ("#[cfg(any(test, unix))] use crate::a::X;", "a"),
        ("#[cfg(not(test))] use crate::a::X;", "a"),
        ("#[cfg_attr(test, derive(Debug))] struct X(crate::a::X);", "a"),
    ] {
        assert_eq!(imports_of(text), expected, "{text}");
    }
    let texts = [("a", "#[cfg(test)] mod tests;"), ("a::tests", "use crate::b;"), ("b", "use crate::a::X;")];
    assert!(cycles(&imports(sources(&texts))).is_empty(), "{texts:?}");
}

/// Red if `cycles` misses a cycle that a module outside of it imports, or names a module that is in none.
#[test]
fn a_cycle_is_found_and_named() {
    let cycles = |texts: &[(&str, &str)]| cycles(&imports(sources(texts)));
    let (to_b, to_c) = ("use crate::b::X;", "use crate::c::X;");
    assert_eq!(cycles(&[("a", "use crate::{b::X, c::Y};"), ("b", to_c), ("c", "")]), [""; 0]);
    assert_eq!(cycles(&[("a", to_b), ("b", to_c), ("c", to_b)]), ["b imports c", "c imports b"]);
    // By way of a name that the parent re-exports.
    let to_a = "use crate::a::Y;";
    let found = cycles(&[("a", "mod x; pub use x::Y;"), ("a::x", to_b), ("b", to_a)]);
    assert_eq!(found, ["a::x imports b", "b imports a::x"]);
    // By way of a child, and between children whose parent imports both.
    let found = cycles(&[("a", "mod x; use x::Z;"), ("a::x", to_b), ("b", to_a)]);
    assert_eq!(found, ["a imports a::x", "a::x imports b", "b imports a"]);
    let parent = ("a", "mod x; mod y; use self::{x::X, y::Y};");
    let found = cycles(&[parent, ("a::x", "use super::y::Y;"), ("a::y", "use crate::a::{Z, x::X};")]);
    assert_eq!(found, ["a::x imports a::y", "a::y imports a::x"]);
    // A module and its descendants may use one another.
    assert_eq!(cycles(&[parent, ("a::x", "use super::Z; use super::y::Y;"), ("a::y", "use crate::a::Z;")]), [""; 0]);
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
        let imports = imports_in(sources);
        assert!(imports.len() > 1, "{name} has modules");
        let cycles = cycles(&imports);
        if !cycles.is_empty() {
            found.insert(name, cycles);
        }
    }
    assert_eq!(found, BTreeMap::new(), "move what they share to a module below them");
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

/// The imports between the modules below one, by their paths from there.
fn below(root: &[String], imports: &Imports) -> Imports {
    let inner = |module: &Module| module.strip_prefix(root).filter(|path| !path.is_empty()).map(<[String]>::to_vec);
    let of = |(module, imported): (&Module, &BTreeSet<Module>)| {
        Some((inner(module)?, imported.iter().filter_map(inner).collect()))
    };
    imports.iter().filter_map(of).collect()
}

/// Red if `against` accepts an import of a later folder, or a module outside of all folders.
#[test]
fn the_check_finds_an_import_against_the_order() {
    let imports = Imports::from([
        (module("b::x"), [module("a"), module("b::y")].into()),
        (module("a"), [module("b::y")].into()),
        (module("c"), [module("a")].into()),
    ]);
    assert_eq!(against(&["a", "b"], &imports), ["a imports b::y", "c imports a"]);
    let inside = below(&module("b"), &Imports::from([(module("b::x"), [module("a"), module("b::y")].into())]));
    assert_eq!(against(&["x", "y"], &inside), ["x imports y"], "of a folder within a crate");
}

/// Red if a folder of a crate imports from a later one, or if the order names a folder that does not exist.
#[test]
fn folders_import_in_one_direction() {
    let crates = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("it is one of several");
    for (name, order) in FOLDERS {
        let (path, order) = (module(name), order.split(' ').collect::<Vec<_>>());
        let imports = below(&path[1..], &imports_in(&crates.join(&path[0]).join("src")));
        let is_there = |folder: &&str| imports.keys().any(|module| module.first().is_some_and(|first| first == folder));
        assert!(order.iter().all(is_there), "{name}: {order:?}");
        assert_eq!(against(&order, &imports), [""; 0], "{name}: move what two folders share to the first of them");
    }
}
