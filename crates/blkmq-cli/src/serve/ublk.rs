//! Block devices of this machine, by the kernel's ublk.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::Sender;
use std::sync::{Arc, Mutex, PoisonError};

use blkmq::RequestQueue;
use blkmq_export::Engine;
use blkmq_ublk::{Abandoner, Added, Control, Device, Error, Options};
use blkmq_workbench::TextError;

use super::Event;
use super::config::Export;
use super::given::Given;
use super::plan::Plan;
use crate::control::name::shown;
use crate::operator;
use blkmq_program::Failure;

/// A block device that is to be.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Wish {
    /// The number of the export that it stands in front of.
    export: usize,
    options: Options,
}

const FORM: &str = "words are export=NAME, id=N, queues=N, depth=N, recover and zero_copy, as in --ublk id=0,queues=2";

/// Reads what each `--ublk` says.
pub(super) fn wishes(plan: &Plan) -> Result<Vec<Wish>, TextError> {
    if let (Some(given), true) = (plan.ublk.first(), plan.identity.is_some()) {
        return Err(
            given.fault("the kernel takes commands for block devices from root alone; leave out --user and --group")
        );
    }
    plan.ublk.iter().map(|given| wish(given, &plan.exports)).collect()
}

fn wish(given: &Given, exports: &[Export]) -> Result<Wish, TextError> {
    let mut wish = Wish { export: 0, options: Options::default() };
    for word in given.text.split(',').filter(|word| !word.is_empty()) {
        let wrong = |what: &str| given.fault(format!("'{word}': {what}; {FORM}"));
        let (name, value) = word.split_once('=').unwrap_or((word, ""));
        let number = || value.parse::<u32>().map_err(|_| wrong("a number is missing"));
        let small = || number()?.try_into().map_err(|_| wrong("so many cannot be"));
        match name {
            "export" => {
                let found = exports.iter().position(|export| shown(&export.name.text) == value);
                wish.export = found.ok_or_else(|| wrong("there is no such export"))?;
            }
            "id" => wish.options.id = Some(number()?),
            "queues" => wish.options.queues = small()?,
            "depth" => wish.options.depth = small()?,
            "recover" if value.is_empty() => wish.options.recover = true,
            "zero_copy" if value.is_empty() => wish.options.zero_copy = true,
            _ => return Err(wrong("there is no such word")),
        }
    }
    if wish.options.recover && wish.options.id.is_none() {
        return Err(given.fault("recover needs id=N, by which the next server finds the device"));
    }
    wish.options.read_only = exports[wish.export].read_only;
    Ok(wish)
}

/// What the block device is to be like, with the name of the data behind this queue. The words by which the data was
/// asked for are no name: a relative path is another file in another folder.
fn named(options: &Options, q: &RequestQueue) -> Result<Options, Failure> {
    match q.driver().identity() {
        None if options.recover => Err(Failure::Input(format!(
            "--ublk: recover: the data of the device '{}' ends with its server, and users of the block device would go \
             on with other data; leave out recover, or serve a device that keeps it: file, nbd, rbd",
            q.driver().name()
        ))),
        identity => Ok(Options { name: identity.unwrap_or_default(), ..options.clone() }),
    }
}

fn failure(error: Error) -> Failure {
    if error.is_bad_configuration() { Failure::Input(error.to_string()) } else { Failure::Running(error.to_string()) }
}

/// Makes the devices, which have no thread yet.
pub(super) fn add(wishes: &[Wish], queues: &[RequestQueue]) -> Result<Vec<Added>, Failure> {
    let add = |wish: &Wish| {
        let q = &queues[wish.export];
        if q.limits().no_flush {
            operator::say("ublk: the device cannot be flushed: what users of the block device flush may be lost");
        }
        Added::new(Control::open().map_err(failure)?, q, &named(&wish.options, q)?).map_err(failure)
    };
    wishes.iter().map(add).collect()
}

/// Block devices that are served.
pub(super) struct Devices {
    list: Vec<Device>,
    /// What failed first while they were served.
    failure: Arc<Mutex<Option<String>>>,
}

/// Says that a device is not served any more, and keeps why if that is a failure.
fn note(first: &Mutex<Option<String>>, id: u32, error: Option<Error>) {
    let mut line = format!("ublk: device {id} is not served any more");
    if let Some(error) = error {
        line += &format!(": {error}");
        first.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(line.clone());
    }
    operator::say(&line);
}

/// Begins to serve the devices, as clients of this engine beside those of NBD. If clients come in no other way, the
/// server ends with the last of the devices.
pub(super) fn start(
    engine: &Arc<Engine>,
    wishes: &[Wish],
    added: Vec<Added>,
    is_alone: bool,
    tell: &Sender<Event>,
) -> Result<Devices, Failure> {
    let nr_left = Arc::new(AtomicUsize::new(added.len()));
    let first = Arc::default();
    let start = |(wish, added): (&Wish, Added)| {
        let id = added.id();
        let (tell, nr_left, first) = (Mutex::new(tell.clone()), Arc::clone(&nr_left), Arc::clone(&first));
        let ended = move |error: Option<Error>| {
            note(&first, id, error);
            let is_last = nr_left.fetch_sub(1, Ordering::Relaxed) == 1;
            if let (true, true, Ok(tell)) = (is_alone, is_last, tell.lock()) {
                let _ = tell.send(Event::Stop);
            }
        };
        added.start(engine, wish.export, ended)
    };
    let list = wishes.iter().zip(added).map(start).collect::<Result<_, _>>().map_err(failure)?;
    Ok(Devices { list, failure: first })
}

/// What the end of the devices comes to: an error at the end, or the first failure before it.
fn outcome(ended: Vec<Result<(), Error>>, first: Option<String>) -> Result<(), Failure> {
    ended.into_iter().collect::<Result<(), _>>().map_err(failure)?;
    first.map_or(Ok(()), |what| Err(Failure::Running(what)))
}

impl Devices {
    /// What is served, for the greeting.
    pub(super) fn lines(&self, exports: &[Export], wishes: &[Wish]) -> String {
        let line = |(wish, device): (&Wish, &Device)| {
            let (info, name) = (device.info(), shown(&exports[wish.export].name.text));
            let copies = if device.is_zero_copy() { ", zero copy" } else { "" };
            let keeps = if device.is_recoverable() { ", kept for the next server" } else { "" };
            let path = device.path();
            format!("{name}: {path}, {} x {} requests{copies}{keeps}\n", info.nr_hw_queues, info.queue_depth)
        };
        wishes.iter().zip(&self.list).map(line).collect()
    }

    /// What ends the service of all devices at once, while another thread ends them.
    pub(super) fn abandoner(&self) -> impl FnOnce() + use<> {
        let abandoners: Vec<_> = self.list.iter().map(Device::abandoner).collect();
        move || abandoners.iter().for_each(Abandoner::abandon)
    }

    /// Ends the devices: one that outlives its server is left to the next one.
    pub(super) fn end(self) -> Result<(), Failure> {
        let ended = self.list.into_iter().map(Device::leave).collect();
        outcome(ended, self.failure.lock().unwrap_or_else(PoisonError::into_inner).take())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<Wish, TextError> {
        let exports = ["", "b"].map(|name| {
            let given = |text: &str| Given::option("export", text);
            Export::new(given(name), given("ram"), Default::default(), name == "b")
        });
        wish(&Given::option("ublk", text), &exports)
    }

    #[test]
    fn words_say_what_the_device_is_like() {
        assert_eq!(read("").unwrap().options, Options::default());
        let wish = read("export=b,id=3,queues=2,depth=64,recover,zero_copy").unwrap();
        let (recover, zero_copy, read_only, name) = (true, true, true, String::new());
        let expected = Options { id: Some(3), queues: 2, depth: 64, recover, zero_copy, read_only, name };
        assert_eq!((wish.export, wish.options), (1, expected));
        assert_eq!(read("export=default").unwrap().export, 0);
    }

    #[test]
    fn what_cannot_be_is_refused_with_the_words_that_can() {
        for text in
            ["export=c", "queues=x", "queues=70000", "depth", "recovered", "recover=1", "recover", "zero_copy=1"]
        {
            let error = read(text).unwrap_err();
            assert!(error.place == "--ublk" && error.what.contains("id="), "{error:?}");
        }
    }

    /// Red before the words of `--device` were the name: by the same relative path in another folder, with `size=`, an
    /// empty file was made, and a file system that was mounted went on in it.
    #[test]
    fn a_block_device_that_stays_is_known_by_its_data() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name).display().to_string();
        let queue = |device: &str| RequestQueue::builder(blkmq_drivers::open(device).unwrap()).build().unwrap();
        let options = read("id=0,recover").unwrap().options;
        let name = |file: &str| named(&options, &queue(&format!("file,path={file},size=1M"))).unwrap().name;
        let [first, second, other_name] = ["a", "b", "c"].map(path);
        std::os::unix::fs::symlink(&first, &other_name).unwrap();
        assert_eq!([name(&first), name(&other_name)], [name(&first), name(&first)]);
        assert_ne!(name(&first), name(&second), "they are as large, and empty");
        let before = name(&first);
        std::fs::remove_file(&first).unwrap();
        // The clock of a file system may be a coarse one.
        std::thread::sleep(std::time::Duration::from_millis(20));
        assert_ne!(name(&first), before, "it was made anew");
        let Err(Failure::Input(error)) = named(&options, &queue("ram,size=1M")) else { panic!("its data is gone") };
        assert!(error.contains("'ram'"), "{error}");
        assert!(named(&read("id=0").unwrap().options, &queue("ram,size=1M")).is_ok());
        assert_eq!(named(&options, &queue("null")).unwrap().name, "null", "there is nothing to be lost");
    }

    /// Red if a server whose block device failed in the middle ends as if all was well.
    #[test]
    fn a_failure_before_the_end_is_the_outcome() {
        let first = Mutex::default();
        note(&first, 1, None);
        assert!(outcome(vec![Ok(())], first.lock().unwrap().clone()).is_ok());
        note(&first, 2, Some(Error::System(std::io::Error::other("lost"))));
        note(&first, 3, Some(Error::System(std::io::Error::other("later"))));
        let Err(Failure::Running(what)) = outcome(vec![Ok(()), Ok(())], first.into_inner().unwrap()) else { panic!() };
        assert_eq!(what, "ublk: device 2 is not served any more: ublk: lost");
        assert!(outcome(vec![Ok(()), Err(Error::NoDevice(1))], None).is_err());
    }
}
