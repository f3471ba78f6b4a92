//! Any text is refused in one line that says where, or says what a server is to serve under names that differ.
#![no_main]

#[macro_use]
mod reach;

// The program has no library, so these files of it are compiled here once more.
#[allow(dead_code, reason = "the rest is the program's")]
#[path = "../../crates/blkmq-cli/src/serve/allow.rs"]
mod allow;
#[allow(dead_code, reason = "the rest is the program's")]
#[path = "../../crates/blkmq-cli/src/serve/config.rs"]
mod config;
#[allow(dead_code, reason = "the rest is the program's")]
#[path = "../../crates/blkmq-cli/src/serve/given.rs"]
mod given;
#[path = "../../crates/blkmq-cli/src/serve/group.rs"]
mod group;
#[path = "../../crates/blkmq-cli/src/control"]
mod control {
    pub(crate) mod name;
}
#[allow(dead_code, reason = "the rest is the program's")]
#[path = "../../crates/blkmq-cli/src/serve/placement.rs"]
mod placement;
#[path = "../../crates/blkmq-cli/src/serve/priority.rs"]
mod priority;

use std::path::Path;

use blkmq_export::{Allow, WEIGHTS};
use config::{Export, File};
use given::Given;
use reach::Reached;

fn run(text: &str, reached: &mut Reached) {
    let checked = File::parse(Path::new("a.toml"), text).and_then(|file| {
        let File { source, written, exports, placements, .. } = file;
        let settings = config::Settings {
            scheduler: source.or("scheduler", &None, &written.scheduler),
            locking: source.or("locking", &None, &written.locking),
            bypass: source.or("bypass", &None, &written.bypass),
            set: source.set(&written.set),
        };
        let default = source.or("device", &None, &written.device).map(|device| {
            let name = Given { text: String::new(), place: device.place.clone() };
            Export::new(name, device, settings, written.read_only)
        });
        let exports: Vec<_> = default.into_iter().chain(exports).collect();
        config::check_names(&exports)?;
        config::check_shared(&exports)?;
        let tls = [("tls", &written.tls), ("tls-certificates", &written.tls_certificates)];
        let [mode, folder] = tls.map(|(name, written)| source.or(name, &None, written));
        let verifies = config::tls(mode, folder, written.tls_verify_peer)?.is_some_and(|tls| tls.verifies_peer);
        let names: Vec<&str> = exports.iter().map(|export| export.name.text.as_str()).collect();
        placements.check(&names, verifies)?;
        Ok((exports, placements.layout()))
    });
    match checked {
        Ok((exports, layout)) => {
            reached.add("groups", layout.groups.len());
            reached.add("rules", layout.rules.len());
            for (index, export) in exports.iter().enumerate() {
                let is_weight = export.weight.is_none_or(|weight| WEIGHTS.contains(&weight));
                assert!(is_weight && export.priority.level <= 7);
                assert!(exports[..index].iter().all(|other| other.name.text != export.name.text));
                assert!(export.name.place.starts_with("a.toml: line "), "{}", export.name.place);
            }
            let listed = exports.iter().filter(|export| matches!(export.allow, Some(Allow::Listed(_))));
            reached.add("lists of clients", listed.count());
            reached.add("files", 1);
            reached.add("exports", exports.len());
        }
        Err(error) => {
            let line = error.to_string();
            assert!(!line.contains(blkmq::is_hidden), "{line:?}");
            reached.add("refused", 1);
        }
    }
}

const LEAST: [(&str, u64); 6] =
    [("files", 6), ("exports", 10), ("lists of clients", 2), ("groups", 4), ("rules", 4), ("refused", 10)];

target!("config", run, LEAST, &str);
