//! What a server gives up once it has opened what it needs: the rights of other users, files that it does not use, and
//! system calls that no server makes.
//!
//! Landlock and the filter of system calls hold for the thread that asks for them, and for all threads that it starts
//! later. So the server asks for both after sockets and devices are open, and before the first thread of the server.

mod calls;
mod files;
pub(super) mod user;

use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};

use blkmq_export::Address;
use rustix::thread::set_no_new_privs;

use super::config::Disk;
use super::given::Given;
use super::machine;
use super::plan::Plan;
use blkmq_program::Failure;
use user::Identity;

/// Added to the message for each restriction that cannot be had, and for each error that a restriction may have caused.
const ADVICE: &str = "--sandbox off does without";

/// What a server still needs of the file system and the network.
#[derive(Debug, Default)]
pub(super) struct Needs {
    /// Folders and files that are read.
    pub(super) read: Vec<PathBuf>,
    /// Folders in which the files of sockets are removed at the end.
    pub(super) remove: Vec<PathBuf>,
    /// Whether connections to TCP servers are made.
    pub(super) connects: bool,
}

impl Needs {
    /// The needs of a server that does as planned. `config`: the file that says so. `control`: its control socket.
    pub(super) fn of(plan: &Plan, config: Option<&Path>, addresses: &[Address], control: &Path) -> Self {
        let sockets = addresses.iter().filter_map(|address| match address {
            Address::Unix { path, .. } => Some(path.as_path()),
            _ => None,
        });
        let folder = |path: &Path| std::path::absolute(path).ok()?.parent().map(Path::to_owned);
        let machines = machine::sockets(plan);
        let sockets = sockets.chain(machines.iter().map(PathBuf::as_path));
        let remove = sockets.chain([control]).filter_map(folder).collect();
        // How much memory and how many processors there are.
        let mut read: Vec<PathBuf> =
            ["/proc/meminfo", "/proc/self", "/sys/fs/cgroup", "/sys/devices/system"].map(PathBuf::from).into();
        if let Some(tls) = &plan.tls {
            read.extend(files::of_tls(Path::new(&tls.folder.text)));
        }
        read.extend(config.into_iter().flat_map(files::of_config));
        let is_tcp = |device: &Given| match device.text.split_once(',') {
            Some(("nbd", more)) => !more.contains("+unix:"),
            Some(("rbd", _)) => true,
            _ => false,
        };
        let devices = || {
            plan.exports.iter().filter_map(|export| match &export.disk {
                Disk::Own { device, .. } => Some(device),
                Disk::Shared(_) => None,
            })
        };
        let connects = devices().any(is_tcp);
        // A server that was away may have another address when it is back, and SIGHUP checks every address again.
        let is_named = |given: &Given| names_host(given.text.strip_prefix("tcp:").unwrap_or(&given.text));
        let addresses = || plan.nbd.iter().filter(|given| given.text.starts_with("tcp:")).chain(&plan.metrics);
        if devices().any(looks_up) || config.is_some() && addresses().any(is_named) {
            read.extend(files::of_names());
        }
        Self { read, remove, connects }
    }
}

/// Whether a host and a port name the host, so that its address has to be looked up.
fn names_host(text: &str) -> bool {
    let is_port = text.parse::<u16>().is_ok();
    let is_address = text.parse::<SocketAddr>().is_ok() || text.trim_matches(['[', ']']).parse::<IpAddr>().is_ok();
    !is_port && !is_address
}

/// Whether a device looks up the name of a host.
fn looks_up(device: &Given) -> bool {
    match device.text.split_once("uri=nbd://") {
        Some((_, place)) => place.split(['/', ',']).next().is_some_and(names_host),
        None => device.text.starts_with("rbd,"),
    }
}

/// Gives up what is not needed any more. Returns a text that says what is in force.
///
/// # Errors
/// The system refuses the user or group that was asked for.
pub(super) fn enter(needs: &Needs, identity: Option<&Identity>, is_on: bool) -> Result<String, Failure> {
    // The rules are made before the user changes, because another user may not be able to open their files.
    let files = is_on.then(|| files::Rules::new(needs));
    if let Some(identity) = identity {
        identity.take()?;
    }
    let Some(files) = files else { return Ok("off".to_owned()) };
    let parts = [
        ("Landlock", files.and_then(files::Rules::enter)),
        ("no_new_privs", set_no_new_privs(true).map_err(|error| error.to_string())),
        ("seccomp", calls::refuse()),
    ];
    let held: Vec<_> = parts.iter().filter(|(_, result)| result.is_ok()).map(|(name, _)| *name).collect();
    let mut text = if held.is_empty() { "nothing".to_owned() } else { held.join(", ") };
    for (name, error) in parts.iter().filter_map(|(name, result)| Some((name, result.as_ref().err()?))) {
        text.push_str(&format!("; {name} is not to be had here: {error} ({ADVICE})"));
    }
    Ok(text)
}

/// Adds to an error what may help if the sandbox is the cause. `config`: the file of `--config`.
pub(super) fn explain(error: &str, config: Option<&Path>, is_on: bool) -> String {
    let is_unread = |path: &Path| error.starts_with(&format!("{}: ", path.display())) && !files::is_replaceable(path);
    if !is_on || !error.contains("Permission denied") {
        error.to_owned()
    } else if config.is_some_and(is_unread) {
        format!(
            "{error}; 'sed -i' and most editors put a new file in the place of the old one, and the sandbox lets the \
             server read a new file only in a folder whose name contains 'blkmq', as /etc/blkmq: write into the old \
             file, or move it to such a folder and start the server anew; or {ADVICE}"
        )
    } else {
        format!(
            "{error}; the sandbox leaves to the server the folders and files that it began with: start it anew if they have \
             moved, or {ADVICE}"
        )
    }
}

#[cfg(test)]
mod tests;
