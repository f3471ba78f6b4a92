//! The tables of parameters in the documentation are those that the parser reads.

use std::path::Path;

use blkmq::driver::spec::{DEVICES, Parameter};

/// The table of a device, as the documentation of its `PARAMETERS` shows it.
fn table(parameters: &[Parameter]) -> String {
    let mut table = "| parameter | accepts | default | what it does |\n|---|---|---|---|\n".to_owned();
    for Parameter { name, accepts, default, about, .. } in parameters {
        let default = if default.is_empty() { String::new() } else { format!("`{default}`") };
        table += &format!("| `{name}` | {accepts} | {default} | {about} |\n");
    }
    table
}

/// Red if a parameter is added, or changes what it accepts or does by default, and the documentation does not tell.
#[test]
fn the_documentation_lists_every_parameter() {
    let mut stale = Vec::new();
    for device in blkmq_drivers::devices() {
        let is_of_core = DEVICES.iter().any(|known| known.name == device.name);
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join(if is_of_core { "../blkmq/docs" } else { "docs" });
        let path = folder.join(format!("{}.md", device.name));
        let (written, right) = (std::fs::read_to_string(&path).unwrap_or_default(), table(device.parameters));
        if written != right {
            let fresh = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{}.md", device.name));
            std::fs::write(&fresh, right).expect("the folder is for that");
            stale.push(format!("cp {} {}", fresh.display(), path.display()));
        }
    }
    assert!(stale.is_empty(), "the tables are not what PARAMETERS says:\n{}", stale.join("\n"));
}
