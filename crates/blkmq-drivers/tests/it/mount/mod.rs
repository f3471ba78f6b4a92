//! File systems that tests mount, where they may.

use std::process::Command;

/// A file system that is mounted at this folder, and unmounted when the test ends.
pub(crate) struct Mount(pub(crate) String);

impl Mount {
    /// Runs `mount` with these arguments and a folder. `None` without the rights to do so. Then a message says that the
    /// test is skipped.
    pub(crate) fn new(arguments: &[&str], folder: &str) -> Option<Self> {
        let output = Command::new("mount").args(arguments).arg(folder).output();
        if !output.is_ok_and(|output| output.status.success()) {
            println!("SKIP mounting takes the rights of root: mount {} {folder}", arguments.join(" "));
            return None;
        }
        Some(Self(folder.to_owned()))
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("--lazy").arg(&self.0).status();
    }
}
