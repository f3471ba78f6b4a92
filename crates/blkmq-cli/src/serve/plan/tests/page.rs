//! The table of options in docs/serve.md, which is made from the parsers, and the example in docs/shares.md.

use clap::CommandFactory;

use super::*;

const BEGIN: &str =
    "<!-- The table is made from the parsers: see the test `the_page_has_each_option_with_its_key_and_default`. -->";

/// The keys of a file for `--config`, as the parser lists them.
fn keys() -> Vec<String> {
    let message = error(&[], "no-such-key = 1");
    let (_, expected) = message.split_once("expected one of ").expect("the parser lists the keys");
    expected.split('`').skip(1).step_by(2).map(str::to_owned).collect()
}

/// The text of a cell.
fn cell(text: &str) -> String {
    text.trim().replace('|', "\\|")
}

/// The table, and the keys that have a row.
fn table() -> (String, Vec<String>) {
    let (keys, mut used) = (keys(), Vec::new());
    let mut out = "| option | key in the file | default | |\n|---|---|---|---|\n".to_owned();
    for argument in Line::command().get_arguments() {
        let Some(long) = argument.get_long().filter(|long| *long != "help") else { continue };
        let takes_value = argument.get_action().takes_values();
        let help = argument.get_help().map(ToString::to_string).unwrap_or_default();
        let (about, default) = match help.split_once(" [default: ") {
            Some((about, rest)) => {
                let (default, end) = rest.rsplit_once(']').expect("a default ends");
                (format!("{about}{end}"), default.to_owned())
            }
            None if !takes_value => (help, "no".to_owned()),
            None => (help, String::new()),
        };
        let values = argument.get_value_names().filter(|_| takes_value).map(|names| format!(" {}", names.join(" ")));
        let key = keys.iter().find(|key| **key == long.replace('-', "_"));
        used.extend(key.cloned());
        let key = key.map(|key| format!("`{key}`")).unwrap_or_default();
        let option = cell(&format!("--{long}{}", values.unwrap_or_default()));
        out += &format!("| `{option}` | {key} | {} | {} |\n", cell(&default), cell(&about));
    }
    (out, used)
}

/// With UPDATE_PAGES=1 in the environment the test writes the table. Red if an option, its key, its default or its help
/// is another than the page says, and if a key of the file is neither an option's nor explained in a section of its
/// own.
#[test]
fn the_page_has_each_option_with_its_key_and_default() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/serve.md");
    let read = || std::fs::read_to_string(path).unwrap();
    let page = read();
    let (before, rest) = page.split_once(BEGIN).expect("the page has the table");
    let (_, after) = rest.split_once("\n\n##").expect("a section follows the table");
    let (table, used) = table();
    let made = format!("{before}{BEGIN}\n\n{}\n\n##{after}", table.trim_end());
    if std::env::var_os("UPDATE_PAGES").is_some() {
        std::fs::write(path, &made).unwrap();
    }
    assert!(read() == made, "docs/serve.md is not what the parsers say: run this test with UPDATE_PAGES=1");
    for key in keys().iter().filter(|key| !used.contains(key)) {
        assert!(after.contains(&format!("{key}]")) || after.contains(&format!("{key}.")), "no section explains {key}");
    }
}

/// Red if the example of shares, with the file or with the model in its place, is refused, or does not get `fair`.
#[test]
fn the_example_of_shares_takes_fair() {
    let page = include_str!("../../../../../../docs/shares.md");
    let mut blocks =
        page.split("```toml\n").skip(1).filter_map(|block| block.split_once("```")).map(|(block, _)| block);
    let (example, model) = (blocks.next().expect("the example"), blocks.next().expect("the model"));
    let (_, rest) = example.split_once('\n').expect("the first line is the device");
    for (text, device) in [(example.to_owned(), "file,path=disk.img"), (format!("{model}{rest}"), "cloud,iops=8000")] {
        let plan = merged(&[], &text).unwrap();
        let [default, alice, bob] = &plan.exports[..] else { panic!("{plan:?}") };
        assert!(
            spec(default).starts_with(device) && alice.queue() == "default" && bob.queue() == "default",
            "{plan:?}"
        );
        assert!(plan.takes_fair("default"));
    }
}
