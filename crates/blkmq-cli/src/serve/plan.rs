//! What a server has to do: what the command line says, and for everything else the file that it names. `serve` makes a
//! plan, and the modules of its folder read it.

use std::path::{Path, PathBuf};

use blkmq_workbench::{TextError, assignment};
use toml::Spanned;

use super::config::{self, Disk, Export, File, Settings, Tls};
use super::given::Given;
use super::placement::Placements;
use super::sandbox::user::Identity;
use super::{Serve, allow};

/// The device that is served by default.
const RAM_DISK: &str = "ram,size=1G";

/// Everything that a server is told.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Plan {
    pub(super) nbd: Vec<Given>,
    /// The block devices of this machine.
    pub(super) ublk: Vec<Given>,
    /// The disks of virtual machines.
    pub(super) vhost_user: Vec<Given>,
    /// `None`: connections are not encrypted.
    pub(super) tls: Option<Tls>,
    pub(super) exports: Vec<Export>,
    /// The groups of each queue, and which clients belong to them.
    pub(super) placements: Placements,
    pub(super) control: Option<PathBuf>,
    /// The address at which the metrics are read by TCP.
    pub(super) metrics: Option<Given>,
    pub(super) run: Option<String>,
    /// The user that the server becomes, if one was given.
    pub(super) identity: Option<Identity>,
    /// Whether the server gives up what it does not need.
    pub(super) sandbox: bool,
    pub(super) max_connections: Option<u16>,
    pub(super) memory: Option<Given>,
    pub(super) drain_timeout: Option<Given>,
    pub(super) stall_timeout: Option<Given>,
}

/// The device that the command line names without an option.
fn of_word(word: &Path) -> Result<Given, TextError> {
    let place = word.display().to_string();
    let Some(text) = word.to_str() else {
        let what = "a path that is not UTF-8 cannot be served; give it another name".to_owned();
        return Err(TextError { place, what });
    };
    Ok(Given { text: text.to_owned(), place })
}

/// The device in its long form, by which the other modules know it.
fn in_full(device: Given) -> Given {
    Given { text: blkmq_drivers::canonical(&device.text).into_owned(), ..device }
}

impl Plan {
    /// Reads the command line, and by `read` the file that it names. If both say something, the command line counts.
    pub(super) fn new(
        options: &Serve,
        read: impl FnOnce(&Path) -> Result<String, TextError>,
    ) -> Result<Self, TextError> {
        let file = match options.config.as_ref().or(options.check.as_ref()) {
            Some(path) => File::parse(path, &read(path)?)?,
            None => File::default(),
        };
        Self::merge(options, file)
    }

    /// Whether clients come through block devices of this machine alone, beside the socket that every server has.
    pub(super) fn is_for_block_devices(&self) -> bool {
        // Without `..`, so that a front-end that comes in is not forgotten here.
        let Self {
            ublk,
            nbd,
            vhost_user,
            run,
            tls: _,
            exports: _,
            placements: _,
            control: _,
            metrics: _,
            identity: _,
            sandbox: _,
            max_connections: _,
            memory: _,
            drain_timeout: _,
            stall_timeout: _,
        } = self;
        !ublk.is_empty() && nbd.is_empty() && vhost_user.is_empty() && run.is_none()
    }

    /// Whether this queue gets the scheduler `fair` because its clients have weights and no scheduler is named.
    pub(super) fn takes_fair(&self, queue: &str) -> bool {
        let mut exports = self.exports.iter().filter(|export| export.queue() == queue);
        let names_scheduler = |disk: &Disk| matches!(disk, Disk::Own { settings, .. } if settings.scheduler.is_some());
        let has_weights = self.placements.set_weights() || exports.clone().any(|export| export.weight.is_some());
        has_weights && !exports.any(|export| names_scheduler(&export.disk))
    }

    fn merge(options: &Serve, file: File) -> Result<Self, TextError> {
        let File { source, written, exports: others, placements, allow } = file;
        // The last value of a knob counts.
        let mut set = source.set(&written.set);
        set.extend(options.set.iter().map(knob).collect::<Result<Vec<_>, TextError>>()?);
        let settings = Settings {
            scheduler: source.or("scheduler", &options.scheduler, &written.scheduler),
            locking: source.or("locking", &options.locking, &written.locking),
            bypass: source.or("bypass", &options.bypass, &written.bypass),
            set,
        };
        let read_only = options.read_only || written.read_only;
        let mut exports = Vec::new();
        let word = options.word.as_deref().map(of_word).transpose()?;
        let device = source.or("device", &options.device, &written.device);
        let device = word.or(device).map(in_full);
        if let Some(device) = device {
            let name = Given { text: String::new(), place: device.place.clone() };
            exports.push(Export::new(name, device, settings.clone(), read_only));
        }
        for export in others {
            let disk = match export.disk {
                Disk::Own { device, settings: own } => {
                    Disk::Own { device: in_full(device), settings: own.or(&settings) }
                }
                shared => shared,
            };
            exports.push(Export { disk, read_only: read_only || export.read_only, ..export });
        }
        for text in &options.export {
            let (name, device) = assignment(text).map_err(|_| {
                let what = format!("'{text}' is not of the form NAME=DEVICE, as in 'disk=ram,size=1G'");
                Given::option("export", text).fault(what)
            })?;
            let [name, device] = [name, device].map(|text| Given::option("export", text));
            exports.push(Export::new(name, in_full(device), settings.clone(), read_only));
        }
        if exports.is_empty() {
            let [name, device] = ["", RAM_DISK].map(|text| Given::option("device", text));
            exports.push(Export::new(name, device, settings, read_only));
        }
        let allow = allow::of_options(&options.allow)?.or(allow);
        exports.iter_mut().filter(|export| export.allow.is_none()).for_each(|export| export.allow = allow.clone());
        config::check_names(&exports)?;
        config::check_shared(&exports)?;
        let tls = config::tls(
            source.or("tls", &options.tls, &written.tls),
            source.or("tls-certificates", &options.tls_certificates, &written.tls_certificates),
            options.tls_verify_peer || written.tls_verify_peer,
        )?;
        let names_clients = tls.as_ref().is_some_and(|tls| tls.verifies_peer);
        for Export { name, allow, .. } in &exports {
            allow::check(allow.as_ref(), names_clients).map_err(|what| name.fault(what))?;
        }
        let names: Vec<&str> = exports.iter().map(|export| export.name.text.as_str()).collect();
        placements.check(&names, names_clients)?;
        Ok(Self {
            nbd: source.any_or("nbd", &options.nbd, &written.nbd),
            ublk: source.any_or("ublk", &options.ublk, &written.ublk),
            vhost_user: source.any_or("vhost-user", &options.vhost_user, &written.vhost_user),
            tls,
            exports,
            placements,
            control: options.control.clone().or(written.control),
            metrics: source.or("metrics", &options.metrics, &written.metrics),
            identity: Identity::find(
                source.or("user", &options.user, &written.user).as_ref(),
                source.or("group", &options.group, &written.group).as_ref(),
            )?,
            sandbox: sandbox(source.or("sandbox", &options.sandbox, &written.sandbox).as_ref())?,
            run: options.run.clone().or(written.run),
            max_connections: options.max_connections.or(written.max_connections.map(Spanned::into_inner)),
            memory: source.or("memory", &options.memory, &written.memory),
            drain_timeout: source.or("drain-timeout", &options.drain_timeout, &written.drain_timeout),
            stall_timeout: source.or("stall-timeout", &options.stall_timeout, &written.stall_timeout),
        })
    }
}

/// Reads whether the server enters a sandbox.
fn sandbox(given: Option<&Given>) -> Result<bool, TextError> {
    match given.map(|given| (given, given.text.as_str())) {
        None | Some((_, "on")) => Ok(true),
        Some((_, "off")) => Ok(false),
        Some((given, text)) => Err(given.fault(format!("'{text}' is not accepted; accepted: on, off"))),
    }
}

/// A knob and its value, as `--set` gives them.
fn knob(text: &String) -> Result<(String, Given), TextError> {
    let (name, value) = assignment(text)?;
    Ok((name.to_owned(), Given { text: value.to_owned(), place: format!("--set {text}") }))
}

#[cfg(test)]
mod tests;
