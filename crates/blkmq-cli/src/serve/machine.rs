//! The disks of virtual machines, in front of the same queues as the NBD server.

use std::path::absolute;

use blkmq_vhost_user::{Bound, Device, StartError};
use blkmq_workbench::{TextError, assignment};

use super::config::Export;
use super::given::Given;
use super::plan::Plan;
use crate::control::name::shown;
use blkmq_program::Failure;

/// Reads `PATH[,queues=N][,threads=N][,export=NAME][,prio=guest][,serial=TEXT][,read_only=1][,packed=1]
/// [,any_memory=1]`. Without an export the disk is the first one.
fn read(given: &Given, exports: &[Export]) -> Result<Device, TextError> {
    let wrong = |what: String| given.fault(format!("{what}, as in /run/vm.sock,queues=4,threads=2"));
    let mut parts = given.text.split(',');
    let socket = parts.next().unwrap_or_default();
    if socket.is_empty() || socket.contains('=') {
        return Err(wrong(format!("'{}' does not begin with the path of a socket", given.text)));
    }
    let mut device = Device::new(socket);
    for part in parts {
        let (name, value) = assignment(part).map_err(|_| wrong(format!("'{part}' is not of the form NAME=VALUE")))?;
        let number = || value.parse().map_err(|_| wrong(format!("{name}: '{value}' is no number up to 65535")));
        match (name, value) {
            ("queues", _) => device.nr_queues = number()?,
            ("threads", _) => device.nr_threads = number()?,
            ("export", _) => {
                let found = exports.iter().position(|export| shown(&export.name.text) == value);
                device.export = found.ok_or_else(|| {
                    let names: Vec<_> = exports.iter().map(|export| shown(&export.name.text)).collect();
                    given.fault(format!("there is no export '{value}'; exports: {}", names.join(", ")))
                })?;
            }
            ("serial", _) => value.clone_into(&mut device.serial),
            ("prio", "guest" | "export") => device.guest_priority = value == "guest",
            ("prio", _) => return Err(wrong(format!("prio: '{value}' is not accepted; accepted: export, guest"))),
            ("read_only", "0" | "1") => device.read_only = value == "1",
            ("packed", "0" | "1") => device.packed = value == "1",
            ("any_memory", "0" | "1") => device.any_memory = value == "1",
            ("read_only" | "packed" | "any_memory", _) => {
                return Err(wrong(format!("{name}: '{value}' is not accepted; accepted: 0, 1")));
            }
            _ => {
                let known = "queues, threads, export, prio, serial, read_only, packed, any_memory";
                return Err(wrong(format!("there is no parameter '{name}'; known: {known}")));
            }
        }
    }
    let Device { nr_queues, nr_threads, serial, .. } = &device;
    Device::check_numbers(*nr_queues, *nr_threads, serial).map_err(|error| wrong(error.to_string()))?;
    Ok(device)
}

/// Checks what was asked for, as far as that can be told without starting anything.
pub(super) fn check(plan: &Plan) -> Result<(), TextError> {
    check_all(&plan.vhost_user, &plan.exports)
}

fn check_all(machines: &[Given], exports: &[Export]) -> Result<(), TextError> {
    let mut sockets = Vec::new();
    for given in machines {
        let path = read(given, exports)?.socket;
        // Only a path from an unknown folder has no answer, and such a socket cannot be listened at.
        let socket = absolute(&path).unwrap_or_default();
        if sockets.contains(&socket) {
            return Err(given.fault(format!("{} is the socket of another machine too", path.display())));
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
    let devices = plan.vhost_user.iter().map(|given| read(given, &plan.exports)).collect::<Result<_, _>>()?;
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

    fn given(text: &str) -> Given {
        Given::option("vhost-user", text)
    }

    /// Reads a machine of a server with the exports `a` and `b`.
    fn read(text: &str) -> Result<Device, String> {
        let export = |name: &str| Export::new(given(name), given("ram"), Default::default(), false);
        super::read(&given(text), &["a", "b"].map(export)).map_err(|error| error.to_string())
    }

    /// Red if a parameter is lost, or one that is not known is ignored; or before a machine that names no export had
    /// the first one, and not one that is called `default`.
    #[test]
    fn a_machine_is_a_socket_and_parameters() {
        let shown = |device: &Device| format!("{device:?}");
        assert_eq!(shown(&read("/run/a,prio=export").unwrap()), shown(&Device::new("/run/a")));
        let all = read("a b,queues=4,threads=2,export=b,prio=guest,serial=s,read_only=1,packed=1,any_memory=1");
        let mut expected = Device::new("a b");
        (expected.nr_queues, expected.nr_threads, expected.export, expected.serial) = (4, 2, 1, "s".to_owned());
        (expected.guest_priority, expected.read_only, expected.packed, expected.any_memory) = (true, true, true, true);
        assert_eq!(shown(&all.unwrap()), shown(&expected));
        let few = read("a,queues=4,read_only=1,packed=0").unwrap();
        assert_eq!((few.read_only, few.packed, few.any_memory, few.guest_priority), (true, false, false, false));
        for (bad, why) in [
            ("", "path"),
            ("queues=2", "path"),
            ("a,queues", "NAME=VALUE"),
            ("a,queues=x", "no number"),
            ("a,prio=rt", "accepted: export, guest"),
            ("a,read_only=yes", "accepted: 0, 1"),
            ("a,any_memory=yes", "accepted: 0, 1"),
            ("a,size=1", "known: queues"),
            ("a,export=default", "exports: a, b"),
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

    /// Red before two machines could not have one socket.
    #[test]
    fn machines_have_sockets_of_their_own() {
        let exports = [Export::new(given("a"), given("ram"), Default::default(), false)];
        assert_eq!(check_all(&[given("/run/1"), given("/run/2,queues=2")], &exports), Ok(()));
        let error = check_all(&[given("/run/1"), given("/run/./1,queues=2")], &exports).unwrap_err();
        assert!(error.to_string().contains("another machine"), "{error}");
    }
}
