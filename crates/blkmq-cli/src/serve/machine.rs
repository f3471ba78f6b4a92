//! The disks of virtual machines, in front of the same queues as the NBD server.

use std::path::absolute;

use blkmq_vhost_user::{Bound, Device, StartError};
use blkmq_workbench::{TextError, assignment};

use super::config::Export;
use super::given::Given;
use super::name::shown;
use super::plan::Plan;
use blkmq_program::Failure;

/// A disk of a machine, as it was asked for.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Wanted {
    socket: String,
    /// The export whose queue it is; the first one if none is named.
    export: Option<String>,
    queues: u16,
    threads: u16,
    read_only: bool,
    guest_priority: bool,
    packed: bool,
    any_memory: bool,
    serial: Option<String>,
}

impl Wanted {
    /// Reads `PATH[,queues=N][,threads=N][,export=NAME][,prio=guest][,serial=TEXT][,read_only=1][,packed=1]
    /// [,any_memory=1]`.
    fn read(given: &Given) -> Result<Self, TextError> {
        let wrong = |what: String| given.fault(format!("{what}, as in /run/vm.sock,queues=4,threads=2"));
        let mut parts = given.text.split(',');
        let socket = parts.next().unwrap_or_default().to_owned();
        if socket.is_empty() || socket.contains('=') {
            return Err(wrong(format!("'{}' does not begin with the path of a socket", given.text)));
        }
        let mut wanted = Self {
            socket,
            export: None,
            queues: 1,
            threads: 1,
            read_only: false,
            guest_priority: false,
            packed: false,
            any_memory: false,
            serial: None,
        };
        for part in parts {
            let (name, value) =
                assignment(part).map_err(|_| wrong(format!("'{part}' is not of the form NAME=VALUE")))?;
            let number = || value.parse().map_err(|_| wrong(format!("{name}: '{value}' is no number up to 65535")));
            match (name, value) {
                ("queues", _) => wanted.queues = number()?,
                ("threads", _) => wanted.threads = number()?,
                ("export", _) => wanted.export = Some(value.to_owned()),
                ("serial", _) => wanted.serial = Some(value.to_owned()),
                ("prio", "guest") => wanted.guest_priority = true,
                ("prio", "export") => wanted.guest_priority = false,
                ("prio", _) => return Err(wrong(format!("prio: '{value}' is not accepted; accepted: export, guest"))),
                ("read_only", "0" | "1") => wanted.read_only = value == "1",
                ("packed", "0" | "1") => wanted.packed = value == "1",
                ("any_memory", "0" | "1") => wanted.any_memory = value == "1",
                ("read_only" | "packed" | "any_memory", _) => {
                    return Err(wrong(format!("{name}: '{value}' is not accepted; accepted: 0, 1")));
                }
                _ => {
                    let known = "queues, threads, export, prio, serial, read_only, packed, any_memory";
                    return Err(wrong(format!("there is no parameter '{name}'; known: {known}")));
                }
            }
        }
        let serial = wanted.serial.as_deref().unwrap_or_default();
        Device::check_numbers(wanted.queues, wanted.threads, serial).map_err(|error| wrong(error.to_string()))?;
        Ok(wanted)
    }

    /// The place of the export in the plan.
    fn export(&self, given: &Given, exports: &[Export]) -> Result<usize, TextError> {
        let Some(name) = &self.export else { return Ok(0) };
        exports.iter().position(|export| shown(&export.name.text) == *name).ok_or_else(|| {
            let names: Vec<_> = exports.iter().map(|export| shown(&export.name.text)).collect();
            given.fault(format!("there is no export '{name}'; exports: {}", names.join(", ")))
        })
    }

    /// The disk, of the export with this place.
    fn device(self, export: usize) -> Device {
        let mut device = Device::new(self.socket);
        device.export = export;
        (device.nr_queues, device.nr_threads) = (self.queues, self.threads);
        device.read_only = self.read_only;
        (device.guest_priority, device.packed) = (self.guest_priority, self.packed);
        device.any_memory = self.any_memory;
        if let Some(serial) = self.serial {
            device.serial = serial;
        }
        device
    }
}

/// Checks what was asked for, as far as that can be told without starting anything.
pub(super) fn check(plan: &Plan) -> Result<(), TextError> {
    check_all(&plan.vhost_user, &plan.exports)
}

fn check_all(machines: &[Given], exports: &[Export]) -> Result<(), TextError> {
    let mut sockets = Vec::new();
    for given in machines {
        let wanted = Wanted::read(given)?;
        wanted.export(given, exports)?;
        // Only a path from an unknown folder has no answer, and such a socket cannot be listened at.
        let socket = absolute(&wanted.socket).unwrap_or_default();
        if sockets.contains(&socket) {
            return Err(given.fault(format!("{} is the socket of another machine too", wanted.socket)));
        }
        sockets.push(socket);
    }
    Ok(())
}

/// The sockets of the machines, as paths from the root.
pub(super) fn sockets(plan: &Plan) -> Vec<std::path::PathBuf> {
    let path = |given: &Given| absolute(given.text.split(',').next().unwrap_or_default()).ok();
    plan.vhost_user.iter().filter_map(path).collect()
}

/// Makes the sockets of all machines.
pub(super) fn bind(plan: &Plan) -> Result<Bound, Failure> {
    let device = |given: &Given| {
        let wanted = Wanted::read(given)?;
        let export = wanted.export(given, &plan.exports)?;
        Ok(wanted.device(export))
    };
    let devices = plan.vhost_user.iter().map(device).collect::<Result<Vec<_>, TextError>>()?;
    Bound::new(devices).map_err(failure)
}

pub(super) fn failure(error: StartError) -> Failure {
    match error {
        StartError::Device(..) => Failure::Input(format!("--vhost-user: {error}")),
        error => Failure::Running(format!("--vhost-user: {error}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<Wanted, String> {
        let given = Given { text: text.to_owned(), place: "--vhost-user".to_owned() };
        Wanted::read(&given).map_err(|error| error.to_string())
    }

    /// Red if a parameter is lost, or one that is not known is ignored.
    #[test]
    fn a_machine_is_a_socket_and_parameters() {
        let plain = read("/run/a").unwrap();
        assert_eq!((plain.queues, plain.threads, plain.export.as_deref(), plain.guest_priority), (1, 1, None, false));
        let all =
            read("a b,queues=4,threads=2,export=x,prio=guest,serial=s,read_only=1,packed=1,any_memory=1").unwrap();
        let expected = Wanted {
            socket: "a b".to_owned(),
            export: Some("x".to_owned()),
            queues: 4,
            threads: 2,
            read_only: true,
            guest_priority: true,
            packed: true,
            any_memory: true,
            serial: Some("s".to_owned()),
        };
        assert_eq!(all, expected);
        for (bad, why) in [
            ("", "path"),
            ("queues=2", "path"),
            ("a,queues", "NAME=VALUE"),
            ("a,queues=x", "no number"),
            ("a,prio=rt", "accepted: export, guest"),
            ("a,read_only=yes", "accepted: 0, 1"),
            ("a,any_memory=yes", "accepted: 0, 1"),
            ("a,size=1", "known: queues"),
            // Red before these were found: `--check` said that they were good, and with --replace the server before
            // this one had ended already.
            ("a,queues=0", "0 queues"),
            ("a,queues=300,threads=2", "300 queues"),
            ("a,queues=2,threads=3", "3 threads for 2 queues"),
            ("a,threads=0", "0 threads"),
            ("a,serial=123456789012345678901", "serial number"),
        ] {
            let error = read(bad).unwrap_err();
            assert!(error.starts_with("--vhost-user: ") && error.contains(why), "{bad}: {error}");
        }
    }

    /// Red if a parameter is read, and the device that is served does not have it.
    #[test]
    fn what_was_asked_for_reaches_the_device() {
        let given = |text: &str| Given::option("vhost-user", text);
        let device = |text: &str| Wanted::read(&given(text)).unwrap().device(3);
        let found = |device: Device| {
            let Device { nr_queues, nr_threads, guest_priority, packed, any_memory, .. } = device;
            assert_eq!(device.export, 3);
            (nr_queues, nr_threads, guest_priority, packed, any_memory, device.read_only, device.serial)
        };
        let expected = (4, 2, true, false, false, true, "s".to_owned());
        assert_eq!(found(device("/run/a,queues=4,threads=2,prio=guest,serial=s,read_only=1")), expected);
        let expected = (1, 1, false, true, true, false, "blkmq".to_owned());
        assert_eq!(found(device("/run/a,packed=1,any_memory=1")), expected);
    }

    /// Red before a machine that names no export had the first one, and not one that is called `default`, and before
    /// two machines could not have one socket.
    #[test]
    fn machines_have_exports_and_sockets_of_their_own() {
        let given = |text: &str| Given::option("vhost-user", text);
        let export = |name: &str| Export::new(given(name), given("ram"), Default::default(), false);
        let exports = [export("a"), export("b")];
        let place = |text: &str| Wanted::read(&given(text)).unwrap().export(&given(text), &exports);
        assert_eq!((place("/run/1"), place("/run/1,export=b")), (Ok(0), Ok(1)));
        assert!(place("/run/1,export=default").unwrap_err().to_string().contains("exports: a, b"));
        assert_eq!(check_all(&[given("/run/1"), given("/run/2,queues=2")], &exports), Ok(()));
        let error = check_all(&[given("/run/1"), given("/run/./1,export=b")], &exports).unwrap_err();
        assert!(error.to_string().contains("another machine"), "{error}");
    }
}
