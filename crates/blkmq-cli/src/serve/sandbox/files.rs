//! Which files a server can still open, and where it can connect: Landlock.

use std::path::{Path, PathBuf};

use landlock::{
    ABI, Access, AccessFs, AccessNet, Ruleset, RulesetAttr, RulesetCreated, RulesetCreatedAttr, RulesetError,
    RulesetStatus, Scope, path_beneath_rules,
};

use super::Needs;

/// The newest rights that are asked for. A kernel that has fewer rights gives those that it has.
const NEWEST: ABI = ABI::V6;
/// The files in which names of machines are looked up.
const OF_NAMES: [&str; 5] = ["/etc/hosts", "/etc/host.conf", "/etc/resolv.conf", "/etc/nsswitch.conf", "/etc/gai.conf"];

/// Rules that are not in force yet.
pub(super) struct Rules(RulesetCreated);

impl Rules {
    pub(super) fn new(needs: &Needs) -> Result<Self, String> {
        Self::make(needs).map_err(|error| error.to_string())
    }

    fn make(needs: &Needs) -> Result<Self, RulesetError> {
        let mut rules = Ruleset::default().handle_access(AccessFs::from_all(NEWEST))?.scope(Scope::Signal)?;
        if !needs.connects {
            rules = rules.handle_access(AccessNet::ConnectTcp)?;
        }
        let rules = rules
            .create()?
            .add_rules(path_beneath_rules(&needs.read, AccessFs::ReadFile | AccessFs::ReadDir))?
            .add_rules(path_beneath_rules(&needs.remove, AccessFs::RemoveFile))?;
        Ok(Self(rules))
    }

    /// Puts the rules in force, for this thread and those that it starts.
    pub(super) fn enter(self) -> Result<(), String> {
        let status = self.0.restrict_self().map_err(|error| error.to_string())?;
        match status.ruleset {
            RulesetStatus::FullyEnforced | RulesetStatus::PartiallyEnforced => Ok(()),
            RulesetStatus::NotEnforced => Err("the kernel does not have it, or it is switched off".to_owned()),
        }
    }
}

/// The folders of files, and the folders that links at these paths lead to. A rule for a file ends with that file:
/// another one that is renamed over it is not readable. A rule for the folder holds for both.
pub(super) fn folders_of(files: &[PathBuf]) -> Vec<PathBuf> {
    let real = files.iter().filter_map(|path| path.canonicalize().ok());
    let parents = real.chain(files.iter().cloned()).filter_map(|path| path.parent().map(Path::to_owned));
    let mut folders: Vec<_> = parents.collect();
    folders.sort();
    folders.dedup();
    folders
}

/// The folders with the files for TLS: the folder itself, and those that links in it lead to. The names of files change
/// in these when certificates are renewed.
pub(super) fn of_tls(folder: &Path) -> Vec<PathBuf> {
    let Ok(entries) = std::fs::read_dir(folder) else { return Vec::new() };
    let is_pem = |path: &PathBuf| path.extension().is_some_and(|extension| extension == "pem");
    folders_of(&entries.flatten().map(|entry| entry.path()).filter(is_pem).collect::<Vec<_>>())
}

/// The folders in which names of machines are looked up. Programs that configure networks replace the files there when
/// an address changes.
pub(super) fn of_names() -> Vec<PathBuf> {
    let mut folders = folders_of(&OF_NAMES.map(PathBuf::from));
    folders.push("/run/systemd/resolve".into());
    folders
}

/// The folders and files that are read again with the file of `--config`.
pub(super) fn of_config(config: &Path) -> Vec<PathBuf> {
    let mut files: Vec<_> = ["/etc/passwd", "/etc/group", "/etc/nsswitch.conf"].map(PathBuf::from).into();
    files.push(config.to_owned());
    // Most editors put another file in the place of the one that they change. So the folder is read, if it is one for
    // this program; another folder may have secrets in it.
    files.extend(folder_of(config).filter(|folder| is_own(folder)));
    files
}

/// Whether another file may take the place of the file of `--config`, and be read in the sandbox.
pub(super) fn is_replaceable(config: &Path) -> bool {
    folder_of(config).is_some_and(|folder| is_own(&folder))
}

fn folder_of(file: &Path) -> Option<PathBuf> {
    file.canonicalize().ok()?.parent().map(Path::to_owned)
}

/// Whether a folder is there for this program: its name says so, as that of `/etc/blkmq` does.
fn is_own(folder: &Path) -> bool {
    folder.file_name().is_some_and(|name| name.to_string_lossy().contains("blkmq"))
}
