//! What tests change of the system, where they may: mounts, and filters of system calls.

use std::path::{Path, PathBuf};
use std::process::Command;

use seccompiler::{BpfProgram, SeccompAction, SeccompFilter};

/// Runs a command. Returns whether it succeeded.
pub(crate) fn succeeds(program: &str, arguments: &[&str]) -> bool {
    Command::new(program).args(arguments).output().is_ok_and(|output| output.status.success())
}

/// A mounted file system, which is unmounted when the test ends.
pub(crate) struct Mount(pub(crate) PathBuf);

impl Mount {
    /// Mounts with these arguments at a folder. `None` without the rights for it.
    pub(crate) fn new(arguments: &[&str], folder: &Path) -> Option<Self> {
        let place = folder.display().to_string();
        succeeds("mount", &[arguments, &[&place]].concat()).then(|| Self(folder.to_owned()))
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("--lazy").arg(&self.0).status();
    }
}

/// A filter with which the kernel refuses a system call.
pub(crate) fn filter_of(call: i64) -> BpfProgram {
    let rules = [(call, Vec::new())].into_iter().collect();
    let arch = std::env::consts::ARCH.try_into().expect("the crate knows this processor");
    let refuse = SeccompAction::Errno(libc::EPERM as u32);
    let filter = SeccompFilter::new(rules, SeccompAction::Allow, refuse, arch).expect("it makes sense");
    filter.try_into().expect("it is short")
}
