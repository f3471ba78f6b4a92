//! Device specs: `null,submit_queues=4,irqmode=2`, a device's name and then its parameters. A comma within a value,
//! such as the path of a file, is written twice.
//!
//! The tables that the parser reads are public, so that a program can print them.

use super::Driver;
use super::cloud::Cloud;
use super::hdd::Hdd;
use super::model::{Model, Profile};
use super::null::Null;
use super::parameter::join;
pub use super::parameter::{Accepts, Fault, Opener, Parameter, SpecError, Value, Values, words, write_word};
use super::ram::Ram;
use super::ssd::Ssd;
use blkmq_sync::Arc;

/// A device that a spec can name.
#[derive(Debug, Clone, Copy)]
pub struct DeviceDescription {
    /// The name, which begins the spec.
    pub name: &'static str,
    /// One sentence on what it is.
    pub about: &'static str,
    /// Its parameters.
    pub parameters: &'static [Parameter],
    open: fn(&Values<'_>) -> Result<Arc<dyn Driver>, SpecError>,
    offers: Option<fn() -> String>,
}

impl DeviceDescription {
    /// A device that `open` makes from the values of its parameters, or says in one sentence why it cannot.
    #[must_use]
    pub const fn new(
        name: &'static str,
        about: &'static str,
        parameters: &'static [Parameter],
        open: fn(&Values<'_>) -> Result<Arc<dyn Driver>, SpecError>,
    ) -> Self {
        Self { name, about, parameters, open, offers: None }
    }

    /// The same device, with a function that says in one sentence what this system offers it.
    #[must_use]
    pub const fn with_offers(self, offers: fn() -> String) -> Self {
        Self { offers: Some(offers), ..self }
    }

    /// What this system offers the device, in one sentence. `None` if the device needs nothing of the system.
    #[must_use]
    pub fn offers(&self) -> Option<String> {
        self.offers.map(|offers| offers())
    }
}

impl<C: Profile> Model<C> {
    /// The device as a spec names it.
    const fn description(about: &'static str) -> DeviceDescription {
        DeviceDescription::new(C::NAME, about, C::PARAMETERS, |values| Ok(Arc::new(Self::new(C::from_values(values)?))))
    }
}

/// Every device of this crate.
pub const DEVICES: &[DeviceDescription] = &[
    Null::description(
        "completes every request without doing anything, at once or after a fixed time; may keep the data",
    ),
    Hdd::description(
        "the model of a hard disk: seeks, rotation, a queue with the shortest access first, a write cache",
    ),
    Ram::description("a RAM disk: keeps the data and completes every request at once"),
    Ssd::description(
        "the model of an SSD: channels, dies with read and program times, a write buffer, garbage collection",
    ),
    Cloud::description(
        "the model of a cloud's volume: a ceiling for operations and one for bytes, saved credit, held operations",
    ),
];

/// Opens the device of this crate that `spec` describes.
///
/// # Errors
/// What is wrong with the spec.
pub fn open(spec: &str) -> Result<Arc<dyn Driver>, SpecError> {
    let is_known = DEVICES.iter().any(|device| Some(device.name) == spec.split(',').next());
    open_one_of(DEVICES, spec, &Opener::SILENT).map_err(|error| match is_known {
        true => error,
        false => error.and("file, nbd and rbd come with the crate blkmq-drivers, by blkmq_drivers::open"),
    })
}

/// Opens the one of `devices` that `spec` describes, for `opener`.
///
/// # Errors
/// What is wrong with the spec.
pub fn open_one_of(
    devices: &[DeviceDescription],
    spec: &str,
    opener: &Opener<'_>,
) -> Result<Arc<dyn Driver>, SpecError> {
    with_values(devices, spec, |device, values| (device.open)(&values.with_opener(*opener)))
}

/// Looks whether `spec` names one of `devices` and gives its parameters values that they take. Nothing is opened, so
/// what only the device itself can tell is not checked.
///
/// # Errors
/// What is wrong with the spec.
pub fn check_one_of(devices: &[DeviceDescription], spec: &str) -> Result<(), SpecError> {
    with_values(devices, spec, |_, _| Ok(()))
}

/// Gives `then` the device that a spec names, and the values of its parameters.
fn with_values<R>(
    devices: &[DeviceDescription],
    spec: &str,
    then: impl FnOnce(&DeviceDescription, Values<'_>) -> Result<R, SpecError>,
) -> Result<R, SpecError> {
    let mut words = words(spec).into_iter();
    let name = words.next().unwrap_or_default();
    let Some(device) = devices.iter().find(|device| device.name == name) else {
        let known = join(devices.iter().map(|device| device.name));
        return Err(SpecError::new(match name.as_str() {
            "" => format!("a device spec begins with the name of a device: {known}"),
            _ => format!("there is no device {name:?}; there are: {known}"),
        }));
    };
    Values::parse(device.parameters, words)
        .and_then(|values| then(device, values))
        .map_err(|error| error.at(format_args!("device {name}")))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn error_of(spec: &str) -> String {
        open(spec).expect_err("the spec is wrong").to_string()
    }

    #[test]
    fn every_default_is_acceptable_and_every_device_opens_without_parameters() {
        for device in DEVICES {
            for Parameter { name, accepts, default, .. } in device.parameters {
                assert!(default.is_empty() || accepts.parse(default).is_ok(), "{} {name}={default}", device.name);
            }
            assert_eq!(open(device.name).unwrap().name(), device.name);
        }
    }

    #[test]
    fn an_error_names_the_offending_word_and_what_would_be_right() {
        let others = "file, nbd and rbd come with the crate blkmq-drivers, by blkmq_drivers::open";
        let known = "there are: null, hdd, ram, ssd, cloud";
        for (spec, expected) in [
            ("", format!("a device spec begins with the name of a device: null, hdd, ram, ssd, cloud; {others}")),
            ("nul,bs=512", format!("there is no device \"nul\"; {known}; {others}")),
            ("file,bs=512", format!("there is no device \"file\"; {known}; {others}")),
        ] {
            assert_eq!(error_of(spec), expected);
        }
        for (parameters, expected) in [
            ("", "\"\" is not of the form name=value"),
            ("bs", "\"bs\" is not of the form name=value"),
            ("irqmode=1,irqmode=1", "irqmode is given twice"),
            ("irqmode=", "irqmode=\"\": a number is missing"),
            ("irqmode=3", "irqmode=\"3\": give a number from 0 to 2"),
            (
                "submit_queues=99999999999999999999",
                "submit_queues=\"99999999999999999999\": give a number from 1 to 1024",
            ),
            ("completion_nsec=1h", "completion_nsec=\"1h\": \"h\" is no unit; there are: ns, us, ms, s"),
        ] {
            assert_eq!(error_of(&format!("null,{parameters}")), format!("device null: {expected}"));
        }
        let unknown = error_of("null,depth=1");
        assert!(unknown.starts_with("device null: there is no parameter \"depth\"; there are: submit_q"), "{unknown}");
        assert_eq!(error_of("null,irqmode=1,x=\n"), error_of("null,x=1"), "names are checked before values");
        assert!(!error_of("null,bs=5\n12").contains('\n'));
    }

    /// Red before, when a size in KiB was shown in bytes and without a unit, and some parameters were not shown.
    #[test]
    fn a_device_shows_its_parameters_as_a_spec_of_the_same_device() {
        let shown = |spec: &str| {
            let mut shown = String::new();
            open(spec).unwrap().show(&mut shown).unwrap();
            shown.lines().next().unwrap().to_owned()
        };
        let given =
            "null,size=3M,memory_backed=1,cache_size=512K,max_sectors=64,discard=1,badblocks=7-9,timeout=1,2,3,4";
        for spec in DEVICES.iter().map(|device| device.name).chain([given, "hdd,size=2000000K,bs=4K,fua=0"]) {
            let first = shown(spec);
            assert_eq!(shown(&first.replace(' ', ",")), first);
            for word in words(spec).iter().filter(|word| word.contains('=') && *word != "timeout=1") {
                assert!(first.contains(word), "{word} of {first}");
            }
        }
    }

    #[test]
    fn the_commas_of_a_fault_belong_to_it() {
        let driver = open("null,timeout=1,50,0,-1,irqmode=2,requeue=2,100,3,4").unwrap();
        let mut shown = String::new();
        driver.show(&mut shown).unwrap();
        assert!(shown.contains("timeout=1,50,0,-1"), "{shown}");
        assert!(shown.contains("requeue=2,100,3,4"), "{shown}");
        assert_eq!(error_of("null,bs=512,1,2"), "device null: \"1\" is not of the form name=value");
    }

    /// Red if a path or text cannot have a comma, or if a word that is cut off by one is not shown as it should be.
    #[test]
    fn a_comma_within_a_value_is_written_twice() {
        for (spec, expected) in [
            ("", &[][..]),
            ("a", &["a"]),
            ("a,", &["a", ""]),
            ("a,,b", &["a,b"]),
            ("a,,,b", &["a,", "b"]),
            ("a,,,,b,c", &["a,,b", "c"]),
            ("a,b=,,,c=d,,", &["a", "b=,", "c=d,"]),
        ] {
            assert_eq!(words(spec), expected, "{spec}");
        }
        const PARAMETERS: &[Parameter] = &[
            Parameter::new("path", Accepts::Path, "", "a file"),
            Parameter::new("size", Accepts::Switch, "0", "a switch"),
        ];
        let device = DeviceDescription::new("file", "a file", PARAMETERS, |values| {
            assert_eq!(values.get("path"), Some(Value::Path("a,b=,c".into())));
            open("ram,size=1M")
        });
        let path = format!("file,path={},size=1", write_word("a,b=,c"));
        open_one_of(&[device], &path, &Opener::SILENT).expect("the path has commas");
        let error = |spec: &str| check_one_of(&[device], spec).expect_err("the spec is wrong").to_string();
        assert_eq!(
            error("file,size=1,path=/tmp/a,b.img"),
            "device file: \"b.img\" is not of the form name=value; a comma within a value is written twice: \
             path=/tmp/a,,b.img"
        );
        assert_eq!(error("file,path=a,size=1,b"), "device file: \"b\" is not of the form name=value");
        assert_eq!(error("file,path=a,b\n"), "device file: \"b\\n\" is not of the form name=value", "one line");
    }

    proptest! {
        #![proptest_config(crate::driver::tests::random_cases(512))]

        #[test]
        fn words_are_read_as_they_were_written(written in prop::collection::vec("[a-z]=[,b]{0,5}", 0..5)) {
            let spec = written.iter().map(|word| write_word(word)).collect::<Vec<_>>().join(",");
            prop_assert_eq!(words(&spec), written);
        }
    }

    /// Specs that are almost right: words from the tables, with values from all over.
    fn almost_spec() -> impl Strategy<Value = String> {
        let names: Vec<_> =
            DEVICES.iter().flat_map(|device| device.parameters).map(|parameter| parameter.name).collect();
        let value = prop_oneof!["[0-9]{1,3}", "[0-9]{1,20}[KMGTnus]{0,2}", "[0-9,-]{0,9}", "\\PC{0,4}"];
        let word = (prop::sample::select(names), value).prop_map(|(name, value)| format!(",{name}={value}"));
        let device = prop::sample::select(DEVICES.iter().map(|device| device.name).collect::<Vec<_>>());
        let device = prop_oneof![4 => device.prop_map(str::to_owned), 1 => "[a-z]{0,4}"];
        (device, prop::collection::vec(word, 0..6)).prop_map(|(device, words)| device + &words.concat())
    }

    proptest! {
        #![proptest_config(crate::driver::tests::random_cases(512))]

        #[test]
        fn no_input_panics_and_every_error_is_one_line(spec in prop_oneof!["\\PC*", almost_spec()]) {
            if let Err(error) = open(&spec) {
                let text = error.to_string();
                prop_assert!(!text.is_empty() && !text.contains('\n'), "{text:?}");
            }
        }
    }
}
