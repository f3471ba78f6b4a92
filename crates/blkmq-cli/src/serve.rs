//! `blkmq serve`: devices behind queues, for clients outside this process.
//!
//! This page goes through the steps of a server from its arguments to its end, and each step is a module of the folder:
//! `plan` and `config` say what is served, `queue` opens the devices, `nbd` the server in front of them, `sandbox`
//! gives up rights, `drain` ends it all. `ublk` has the block devices beside that server. Nothing else calls in there.

mod allow;
mod check;
mod command;
mod config;
mod descriptors;
mod drain;
mod given;
mod group;
mod health;
mod limits;
mod machine;
mod metrics;
mod nbd;
mod notify;
mod placed;
mod placement;
mod plan;
mod priority;
mod queue;
mod ram;
mod reload;
mod replace;
mod sandbox;
mod standby;
mod ublk;
mod warnings;

use std::io::{self, Write};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::process::ExitStatus;
use std::sync::Arc;
use std::sync::mpsc;

use blkmq::RequestQueue;
use blkmq_export::{Address, handed};
use clap::Args;

use crate::control::folder;
use crate::control::name::shown;
use crate::control::{self, Served, State, handover, sampler};
use crate::operator;
use blkmq_program::interrupt::{self, Hangups};
use blkmq_program::{Failure, file, notice};
use command::Running;
use config::{Disk, Export};
use drain::Shutdown;
use health::Watch;
use nbd::Nbd;
use placed::Placements;
use plan::Plan;
use reload::Reload;
use sandbox::Needs;
use standby::Standby;
use warnings::shares;

/// Serve devices behind queues to clients outside this process.
#[derive(Debug, Clone, Args)]
#[command(after_help = blkmq_program::after_help(include_str!("help/serve.txt")))]
pub(crate) struct Serve {
    /// The device of the default export: a file's path, or a name and parameters, as in ram,size=1G.
    #[arg(value_name = "DEVICE")]
    word: Option<PathBuf>,
    /// The same as DEVICE.
    #[arg(long, value_name = "DEVICE", conflicts_with = "word")]
    device: Option<String>,
    /// Where NBD clients connect: the path of a Unix socket, or tcp:HOST:PORT. May be repeated.
    #[arg(long, value_name = "SOCKET|tcp:HOST:PORT")]
    nbd: Vec<String>,
    /// Make a block device of this machine, /dev/ublkbN, by the kernel's ublk. With 'recover' and an id it outlives the
    /// server, and the next one takes it over. With 'zero_copy' the data of its requests is not copied. May be
    /// repeated.
    #[arg(
        long,
        value_name = "[export=NAME,][id=N,][queues=N,][depth=N,][recover,][zero_copy]",
        num_args = 0..=1,
        default_missing_value = ""
    )]
    ublk: Vec<String>,
    /// Where the front-end of a virtual machine finds its disk: a Unix socket, and parameters. May be repeated.
    #[arg(long, value_name = "SOCKET[,queues=N][,threads=N][,export=NAME][,prio=guest]")]
    vhost_user: Vec<String>,
    /// The scheduler in front of the devices [default: fair if clients or groups have weights, else
    /// mq-deadline for a device with one hardware queue, else none].
    #[arg(long, value_name = "NAME")]
    scheduler: Option<String>,
    #[arg(long, value_name = "LOCKING", help = crate::target::locking_help())]
    locking: Option<String>,
    /// Whether requests may pass a scheduler in which nothing waits [default: 1 with the locking combining, else 0].
    #[arg(long, value_name = "0|1")]
    bypass: Option<String>,
    /// Change a setting: NAME=VALUE for the queues, iosched/NAME=VALUE for their schedulers. May be repeated.
    #[arg(long, value_name = "NAME=VALUE")]
    set: Vec<String>,
    /// Clients can only read.
    #[arg(long)]
    read_only: bool,
    /// Serve a device under a name. May be repeated.
    #[arg(long, value_name = "NAME=DEVICE")]
    export: Vec<String>,
    /// The socket for commands such as 'blkmq stat'.
    #[arg(long, value_name = "SOCKET")]
    control: Option<PathBuf>,
    /// Serve the metrics by HTTP at this TCP port too, and nothing else there. Without HOST only this machine reaches
    /// it.
    #[arg(long, value_name = "[HOST:]PORT")]
    metrics: Option<String>,
    /// Run a command by the shell, with $uri and $unixsocket set. The server ends when the command ends, with its exit
    /// code.
    #[arg(long, value_name = "COMMAND")]
    run: Option<String>,
    /// Whether NBD clients may (on) or must (require) encrypt by TLS [default: off].
    #[arg(long, value_name = "off|on|require")]
    tls: Option<String>,
    /// The folder with server-cert.pem and server-key.pem, and ca-cert.pem for --tls-verify-peer.
    #[arg(long, value_name = "DIR")]
    tls_certificates: Option<String>,
    /// Clients that encrypt must show a certificate signed by an authority in ca-cert.pem.
    #[arg(long)]
    tls_verify_peer: bool,
    /// The clients that may use exports without a list of their own: any, certificate=NAME or user=NAME. These two may
    /// be followed by access=read or access=write, and by priority= with rt/0 to be/7 or idle. May be repeated.
    #[arg(long, value_name = "CLIENT[,access=write][,priority=CLASS]")]
    allow: Vec<String>,
    /// Become this user, by name or number, once sockets and devices are open. The groups are the user's, unless
    /// --group names one.
    #[arg(long, value_name = "USER")]
    user: Option<String>,
    /// Become this group, by name or number.
    #[arg(long, value_name = "GROUP")]
    group: Option<String>,
    /// Whether the server gives up files and system calls that it does not need, with Landlock and seccomp [default:
    /// on].
    #[arg(long, value_name = "on|off")]
    sandbox: Option<String>,
    /// The most NBD clients at a time that have chosen an export; a further one gets an error [default: 256, or as many
    /// as there is memory for].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    max_connections: Option<u16>,
    /// Memory for all clients together, as in 500M or 4G [default: a quarter of the memory, at most half of the free
    /// memory].
    #[arg(long, value_name = "SIZE")]
    memory: Option<String>,
    /// How long a server that ends waits for its clients, as in 500ms or 1m, or off for no limit [default: 20s].
    #[arg(long, value_name = "TIME|off")]
    drain_timeout: Option<String>,
    /// How long a client may read nothing of its replies before its connection is closed, or off [default: 5m].
    #[arg(long, value_name = "TIME|off")]
    stall_timeout: Option<String>,
    /// A TOML file; its settings have the names of these options.
    #[arg(long, value_name = "FILE.toml")]
    config: Option<PathBuf>,
    /// Check a file for --config, with the other options, and serve nothing.
    #[arg(long, value_name = "FILE.toml", conflicts_with = "config")]
    check: Option<PathBuf>,
    /// Take the place of the server with this control socket: get its sockets, and serve when it has ended.
    #[arg(long, value_name = "SOCKET")]
    replace: Option<PathBuf>,
}

/// What happens to a server.
enum Event {
    /// An operator asked through the control socket for the end.
    Stop,
    /// A signal asked for the end.
    Signal,
    /// The command of `--run` has ended.
    Ended(io::Result<ExitStatus>),
    /// Every client has its answers and is gone.
    Drained,
    /// Block devices of this machine are gone, or left to the next server.
    ShutDown(Result<(), Failure>),
}

impl Serve {
    pub(crate) fn run(&self, out: &mut dyn Write) -> Result<(), Failure> {
        operator::end(self.serve(out))
    }

    fn serve(&self, out: &mut dyn Write) -> Result<(), Failure> {
        // This comes before anything else opens descriptors, which could get the numbers of those that are handed over.
        let handed = handed::take().map_err(|error| Failure::Input(error.to_string()))?;
        let plan = Plan::new(self, file::read)?;
        let wishes = ublk::wishes(&plan)?;
        if self.check.is_some() {
            let warnings = check::check(&plan)?;
            check::approve(&plan, out)?;
            warnings.iter().for_each(|warning| notice(warning));
            return Ok(());
        }
        // A reload that is asked for while the server starts, or waits for its predecessor, comes when it is ready.
        let hangups = Hangups::keep().map_err(|error| Failure::Running(format!("serve: {error}")))?;
        if let (Some(nbd), false) = (plan.nbd.first(), handed.is_empty()) {
            let what =
                "LISTEN_FDS hands over sockets to listen at; leave out this address, or start the server without them";
            return Err(nbd.fault(what).into());
        }
        // If lists name users, other users may open the socket, and the lists decide. Without such lists, only the
        // server's own user may open it.
        let is_for_users = allow::is_for_users(plan.exports.iter().map(|export| export.allow.as_ref()));
        let mode = if is_for_users { 0o666 } else { 0o600 };
        let addresses = plan.nbd.iter().map(|given| nbd::address(given, mode)).collect::<Result<Vec<_>, _>>()?;
        let scraped = plan.metrics.as_ref().map(metrics::address).transpose()?;
        let tls = plan.tls.as_ref().map(nbd::tls).transpose()?;
        machine::check(&plan)?;
        let drain_timeout = limits::drain_timeout(plan.drain_timeout.as_ref())?;
        let (handed, addresses) = match &self.replace {
            Some(control) => {
                let (taken, addresses) = take_place(&plan, control, &handed, addresses)?;
                (taken.into_iter().map(|socket| (socket, Some(mode))).collect(), addresses)
            }
            None => (handed.into_iter().map(|socket| (socket, None)).collect::<Vec<_>>(), addresses),
        };
        let queues = queue::build_all(&plan)?;
        let placements = placed::placements(&plan, &queues)?;
        let is_alone = plan.is_for_block_devices() && handed.is_empty();
        let added = ublk::add(&wishes, &queues)?;
        let needs_own = addresses.is_empty() && handed.is_empty();
        let own = if needs_own || plan.control.is_none() { Some(folder::make()?) } else { None };
        let [nbd, control] = own.as_deref().map(folder::own).unwrap_or_default();
        let control = plan.control.clone().unwrap_or(control);
        let (listener, _file) = folder::listen(&control)?;
        let scraped = plan.metrics.as_ref().zip(scraped).map(|(given, at)| metrics::listen(given, at)).transpose()?;
        let addresses = if needs_own { vec![Address::unix(nbd)] } else { addresses };
        // No sandbox with a command: the command would inherit it, and could not do what it is for.
        let is_boxed = plan.sandbox && plan.run.is_none();
        let reload = Reload { options: self.clone(), tls: tls.clone(), placements: placements.clone(), is_boxed };
        let machines = machine::bind(&plan)?;
        let (needs, mut held) = (Needs::of(&plan, self.config.as_deref(), &addresses, &control), String::new());
        let give_up = || {
            held = sandbox::enter(&needs, plan.identity.as_ref(), is_boxed)?;
            Ok(())
        };
        let server = Nbd::start(&plan, &queues, &placements, &addresses, handed, tls, give_up)?;
        operator::begin().map_err(|error| Failure::Running(format!("serve: {error}")))?;
        server.serve_beside(machines)?;
        warnings::warnings(&plan, &queues, &placements).iter().for_each(|warning| operator::say(warning));
        if let Some(line) = descriptors::provide(plan.max_connections.unwrap_or(blkmq_export::MAX_CONNECTIONS).into()) {
            operator::say(&line);
        }

        let (tell, events) = mpsc::channel();
        let failed = |error: io::Error| Failure::Running(format!("serve: {error}"));
        let uris: Vec<_> = (0..queues.len()).map(|index| server.uris(index)).collect();
        let devices = ublk::start(server.engine(), &wishes, added, is_alone, &tell)?;
        let (stop, signal) = (tell.clone(), tell.clone());
        let state = State {
            queues: served(&plan.exports, &queues, &placements, &uris),
            exports: server.exports(&plan),
            stop: Box::new(move || drop(stop.send(Event::Stop))),
        };
        let url = scraped.as_ref().map(metrics::url);
        let has_shares = state.queues.iter().any(Served::has_shares);
        let watched = state.queues.iter().map(|queue| (queue.name.clone(), queue.q.clone())).collect();
        let histories = state.queues.iter().map(|queue| (queue.q.clone(), Arc::clone(&queue.history))).collect();
        sampler::start(histories).map_err(failed)?;
        control::start(listener, scraped, state).map_err(failed)?;
        let _watch = Watch::start(watched, operator::say).map_err(failed)?;
        interrupt::tell(move || drop(signal.send(Event::Signal))).map_err(failed)?;
        hangups.tell(move || reload.run().iter().for_each(|line| operator::say(line))).map_err(failed)?;
        let command = match &plan.run {
            Some(text) => {
                let socket = addresses.iter().find_map(nbd::socket).unwrap_or_default();
                let ended = tell.clone();
                let ended = move |status| drop(ended.send(Event::Ended(status)));
                Some(Running::start(text, &uris[0][0], &socket, ended).map_err(failed)?)
            }
            None => {
                let ublk = devices.lines(&plan.exports, &wishes);
                operator::show(greeting(&plan, &uris, url.as_deref(), &control, &held, &ublk, has_shares));
                None
            }
        };
        let (devices_left, abandon) = (server.devices(), devices.abandoner());
        let standby = Standby::start("leave").map_err(failed)?;
        let mut shutdown = Shutdown::new(&tell, || devices.end()).map_err(failed)?;
        notify::ready();
        let (outcome, nr_signals) = drain::until_the_end(&server, command, drain_timeout, &mut shutdown, &events);
        let shut_down = drain::part(nr_signals, shutdown, &events, devices_left, abandon);
        if let (Err(_), Err(Failure::Running(text))) = (&outcome, &shut_down) {
            // The first error is what the server ends with. What block devices have lost is told beside it.
            operator::say(text);
        }
        let outcome = outcome.and(shut_down);
        drain::take_leave(&queues, &standby);
        outcome
    }
}

/// Gets the sockets of the server with this control socket, and waits until that server has ended and released its
/// devices. What can be checked in advance has been checked: the other server does not continue if this one fails.
fn take_place(
    plan: &Plan,
    control: &Path,
    handed: &[OwnedFd],
    addresses: Vec<Address>,
) -> Result<(Vec<OwnedFd>, Vec<Address>), Failure> {
    if !handed.is_empty() {
        let what = "--replace: LISTEN_FDS hands over sockets to listen at, so no other server's are needed";
        return Err(Failure::Input(what.to_owned()));
    }
    check::check(plan)?;
    let (sockets, predecessor) = handover::take_over(control, |sockets| replace::check_files(sockets, &addresses))?;
    predecessor.wait(operator::say).map_err(|error| Failure::Running(format!("--replace: {error}")))?;
    Ok(replace::choose(sockets, addresses))
}

/// Every queue, with all the URIs at which clients find it.
fn served(exports: &[Export], queues: &[RequestQueue], placements: &Placements, uris: &[Vec<String>]) -> Vec<Served> {
    let own = exports.iter().zip(queues).filter_map(|(export, q)| {
        let Disk::Own { device, .. } = &export.disk else { return None };
        let name = export.queue();
        let here = exports.iter().zip(uris).filter(|(export, _)| export.queue() == name);
        Some(Served {
            name: name.to_owned(),
            device: device.text.clone(),
            description: export.description.clone(),
            read_only: export.read_only,
            uris: here.flat_map(|(_, uris)| uris).cloned().collect(),
            shares: shares(exports, name),
            q: q.clone(),
            placement: Arc::clone(&placements[name]),
            history: sampler::Shared::default(),
        })
    });
    own.collect()
}

/// What is served, and what to type next. The text goes to standard error, because standard output belongs to the
/// program that starts a server.
fn greeting(
    plan: &Plan,
    uris: &[Vec<String>],
    metrics: Option<&str>,
    control: &Path,
    held: &str,
    ublk: &str,
    has_shares: bool,
) -> String {
    let mut text = String::new();
    for (export, uris) in plan.exports.iter().zip(uris) {
        let disk = match &export.disk {
            Disk::Own { device, .. } => &device.text,
            Disk::Shared(queue) => &format!("the queue '{}'", queue.text),
        };
        text += &format!("{}: {disk} at {}\n", shown(&export.name.text), uris.join(" and "));
    }
    text += ublk;
    for given in &plan.vhost_user {
        text += &format!("virtual machine: {}\n", given.text);
    }
    if let Some(url) = metrics {
        text += &format!("metrics: {url}\n");
    }
    text += &format!("control socket: {}\nsandbox: {held}\n", control.display());
    let queue = match &plan.exports[..] {
        [_] => "",
        [first, ..] => &format!("{} ", quoted(first.queue())),
        [] => "",
    };
    let at = match &plan.control {
        Some(control) => format!(" --control {}", quoted(&control.display().to_string())),
        None => String::new(),
    };
    text += "\nType in another terminal:\n";
    text += &format!("  nbdinfo {}\n", quoted(&uris[0][0]));
    text += &format!("  blkmq stat -w 1s{at}\n");
    // Without the scheduler the shares would be lost.
    text += &match has_shares {
        false => format!("  blkmq set {queue}scheduler none{at}\n"),
        true => format!("  blkmq clients{at}\n"),
    };
    text += "\nCtrl-C ends the server once the requests that it has are answered.\n";
    text
}

/// A word in the form in which a shell takes it.
fn quoted(word: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_./:,=+".contains(c);
    if word.chars().all(is_plain) { word.to_owned() } else { format!("'{}'", word.replace('\'', r"'\''")) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_quoted_for_the_shell_where_they_must_be() {
        assert_eq!(quoted("tcp:127.0.0.1:1"), "tcp:127.0.0.1:1");
        assert_eq!(quoted("nbd+unix:///?socket=/a b"), "'nbd+unix:///?socket=/a b'");
        assert_eq!(quoted("it's"), r"'it'\''s'");
    }
}
