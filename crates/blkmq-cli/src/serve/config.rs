//! The contents of a TOML file that says what is served. The names in the file are those of the options.

use std::collections::BTreeMap;
use std::ops::Range;
use std::path::{Path, PathBuf};

use blkmq::{IoPriority, is_hidden};
use blkmq_export::Allow;
use blkmq_workbench::{TextError, nearest};
use serde::Deserialize;
use toml::Spanned;

use super::allow;
use super::given::{Given, Word};
use super::group::WrittenGroup;
use super::placement::{self, Placements, WrittenRule};
use super::priority::priority;
use crate::control::name::{DEFAULT, shown};

/// What a queue is built from.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Settings {
    pub(super) scheduler: Option<Given>,
    pub(super) locking: Option<Given>,
    pub(super) bypass: Option<Given>,
    /// Knobs and their values, in the order in which they are set.
    pub(super) set: Vec<(String, Given)>,
}

impl Settings {
    /// These settings. For those that are missing, the settings of `others`.
    pub(super) fn or(mut self, others: &Self) -> Self {
        self.scheduler = self.scheduler.or_else(|| others.scheduler.clone());
        self.locking = self.locking.or_else(|| others.locking.clone());
        self.bypass = self.bypass.or_else(|| others.bypass.clone());
        // The last value of a knob counts.
        self.set.splice(0..0, others.set.clone());
        self
    }
}

/// What is behind an export.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Disk {
    /// A device with a queue of its own.
    Own { device: Given, settings: Settings },
    /// The queue of another export, which is named here and has a queue of its own.
    Shared(Given),
}

/// What clients find under a name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Export {
    /// The name that clients ask for. Empty for the default export.
    pub(super) name: Given,
    pub(super) disk: Disk,
    pub(super) read_only: bool,
    pub(super) description: String,
    /// The share of each of its clients, relative to other clients: 1 to 1000. `None`: the default weight.
    pub(super) weight: Option<u16>,
    /// The priority of its clients' operations.
    pub(super) priority: IoPriority,
    /// The clients that may use it, if there is a list.
    pub(super) allow: Option<Allow>,
}

impl Export {
    /// An export with a queue of its own.
    pub(super) fn new(name: Given, device: Given, settings: Settings, read_only: bool) -> Self {
        Self::of(name, Disk::Own { device, settings }, read_only)
    }

    fn of(name: Given, disk: Disk, read_only: bool) -> Self {
        let description = String::new();
        Self { name, disk, read_only, description, weight: None, priority: IoPriority::default(), allow: None }
    }

    /// The name that commands use for its queue.
    pub(super) fn queue(&self) -> &str {
        match &self.disk {
            Disk::Own { .. } => shown(&self.name.text),
            Disk::Shared(queue) => &queue.text,
        }
    }
}

/// How the connections of clients are encrypted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Tls {
    /// The folder with the certificates.
    pub(super) folder: Given,
    /// Whether clients that do not encrypt get nothing.
    pub(super) is_required: bool,
    /// Whether clients must have certificates of their own.
    pub(super) verifies_peer: bool,
}

/// Combines the settings of TLS.
pub(super) fn tls(mode: Option<Given>, folder: Option<Given>, verifies_peer: bool) -> Result<Option<Tls>, TextError> {
    let is_required = match mode.as_ref().map(|mode| mode.text.as_str()) {
        // The other settings are ignored, so that they can stay in the file until TLS is switched on again.
        Some("off") => return Ok(None),
        Some("on") => false,
        Some("require") => true,
        Some(text) => {
            let what = format!("'{text}' is not accepted; accepted: off, on, require");
            return Err(mode.unwrap_or_default().fault(what));
        }
        None => {
            let place = match (folder, verifies_peer) {
                (Some(folder), _) => folder.place,
                (None, true) => "--tls-verify-peer".to_owned(),
                (None, false) => return Ok(None),
            };
            let what = "no connection would be encrypted; say --tls on, or --tls require, too".to_owned();
            return Err(TextError { place, what });
        }
    };
    let Some(folder) = folder else {
        let what = "a certificate and its key are needed; say --tls-certificates DIR, with server-cert.pem and \
                    server-key.pem in it";
        return Err(mode.unwrap_or_default().fault(what));
    };
    Ok(Some(Tls { folder, is_required, verifies_peer }))
}

/// Checks that each export has a name that differs from the others' names, for clients and for commands.
pub(super) fn check_names(exports: &[Export]) -> Result<(), TextError> {
    for (index, Export { name, .. }) in exports.iter().enumerate() {
        let text = &name.text;
        if text == DEFAULT {
            return Err(name.fault(format!("'{DEFAULT}' is what commands call the export without a name")));
        }
        if text.contains(is_hidden) || text.len() > 255 {
            let what =
                "an export's name has at most 255 bytes, and no characters that control a line or cannot be seen";
            return Err(name.fault(format!("'{text}': {what}")));
        }
        if exports[..index].iter().any(|export| export.name.text == *text) {
            return Err(
                name.fault(format!("the export '{}' is there already; each has a name of its own", shown(text)))
            );
        }
    }
    Ok(())
}

/// Checks that every shared queue is the own queue of another export.
pub(super) fn check_shared(exports: &[Export]) -> Result<(), TextError> {
    for Export { disk, .. } in exports {
        let Disk::Shared(queue) = disk else { continue };
        let owner = exports.iter().find(|export| shown(&export.name.text) == queue.text);
        if owner.is_none_or(|owner| matches!(owner.disk, Disk::Shared(_))) {
            let own = exports.iter().filter(|export| matches!(export.disk, Disk::Own { .. }));
            let names: Vec<_> = own.map(|export| shown(&export.name.text)).collect();
            let what = match &names[..] {
                [] => "no export has a device of its own".to_owned(),
                names => format!("exports with a device of their own: {}", names.join(", ")),
            };
            return Err(queue.fault(format!("there is no queue '{}'; {what}", queue.text)));
        }
    }
    Ok(())
}

/// A file as it is written.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, expecting = "a table")]
pub(super) struct Written {
    pub(super) device: Option<Spanned<String>>,
    pub(super) nbd: Option<Spanned<Addresses>>,
    pub(super) vhost_user: Option<Spanned<Addresses>>,
    pub(super) ublk: Option<Spanned<Addresses>>,
    pub(super) scheduler: Option<Spanned<String>>,
    pub(super) locking: Option<Spanned<String>>,
    pub(super) bypass: Option<Spanned<Word>>,
    #[serde(default)]
    pub(super) set: BTreeMap<String, Spanned<Word>>,
    #[serde(default)]
    pub(super) read_only: bool,
    #[serde(default)]
    export: Vec<WrittenExport>,
    #[serde(default)]
    groups: BTreeMap<Spanned<String>, WrittenGroup>,
    #[serde(default)]
    clients: Vec<Spanned<WrittenRule>>,
    pub(super) control: Option<PathBuf>,
    pub(super) metrics: Option<Spanned<Word>>,
    pub(super) run: Option<String>,
    pub(super) max_connections: Option<Spanned<u16>>,
    pub(super) memory: Option<Spanned<Word>>,
    pub(super) drain_timeout: Option<Spanned<String>>,
    pub(super) stall_timeout: Option<Spanned<String>>,
    pub(super) tls: Option<Spanned<String>>,
    pub(super) tls_certificates: Option<Spanned<String>>,
    #[serde(default)]
    pub(super) tls_verify_peer: bool,
    allow: Option<Spanned<allow::Written>>,
    pub(super) user: Option<Spanned<Word>>,
    pub(super) group: Option<Spanned<Word>>,
    pub(super) sandbox: Option<Spanned<String>>,
}

/// An export as it is written.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, expecting = "a table, as in [[export]] with name and device beneath it")]
struct WrittenExport {
    name: Spanned<String>,
    device: Option<Spanned<String>>,
    queue: Option<Spanned<String>>,
    scheduler: Option<Spanned<String>>,
    locking: Option<Spanned<String>>,
    bypass: Option<Spanned<Word>>,
    #[serde(default)]
    set: BTreeMap<String, Spanned<Word>>,
    #[serde(default)]
    read_only: bool,
    #[serde(default)]
    description: String,
    weight: Option<Spanned<i64>>,
    priority: Option<Spanned<String>>,
    allow: Option<Spanned<allow::Written>>,
}

#[derive(Debug, Deserialize)]
#[serde(untagged, expecting = "expected one text or a list of them")]
pub(super) enum Addresses {
    One(String),
    Many(Vec<String>),
}

/// A parsed file: its values as written, and those that are checked together.
#[derive(Debug, Default)]
pub(super) struct File {
    pub(super) source: Source,
    pub(super) written: Written,
    pub(super) exports: Vec<Export>,
    pub(super) placements: Placements,
    pub(super) allow: Option<Allow>,
}

/// The text of a file, used to say where in it something is.
#[derive(Debug, Default)]
pub(super) struct Source {
    path: PathBuf,
    text: String,
}

impl Source {
    fn place(&self, span: Range<usize>) -> String {
        let before = self.text.get(..span.start).unwrap_or(&self.text);
        format!("{}: line {}", self.path.display(), before.matches('\n').count() + 1)
    }

    fn given(&self, word: &Spanned<impl ToString>) -> Given {
        Given { text: word.get_ref().to_string(), place: self.place(word.span()) }
    }

    /// The value of the option `name`: that of the command line, or else that of the file.
    pub(super) fn or(
        &self,
        name: &str,
        option: &Option<String>,
        written: &Option<Spanned<impl ToString>>,
    ) -> Option<Given> {
        let option = option.as_ref().map(|text| Given::option(name, text));
        option.or_else(|| written.as_ref().map(|word| self.given(word)))
    }

    /// The same with addresses, of which there may be several.
    pub(super) fn any_or(&self, name: &str, options: &[String], written: &Option<Spanned<Addresses>>) -> Vec<Given> {
        let (true, Some(written)) = (options.is_empty(), written) else {
            return options.iter().map(|text| Given::option(name, text)).collect();
        };
        let texts = match written.get_ref() {
            Addresses::One(address) => std::slice::from_ref(address),
            Addresses::Many(addresses) => addresses,
        };
        texts.iter().map(|text| Given { text: text.clone(), place: self.place(written.span()) }).collect()
    }

    /// Knobs and their values.
    pub(super) fn set(&self, set: &BTreeMap<String, Spanned<Word>>) -> Vec<(String, Given)> {
        set.iter().map(|(name, value)| (name.clone(), self.given(value))).collect()
    }

    fn export(&self, written: &WrittenExport) -> Result<Export, TextError> {
        let settings = Settings {
            scheduler: written.scheduler.as_ref().map(|text| self.given(text)),
            locking: written.locking.as_ref().map(|text| self.given(text)),
            bypass: written.bypass.as_ref().map(|word| self.given(word)),
            set: self.set(&written.set),
        };
        let name = self.given(&written.name);
        let disk = match (&written.device, &written.queue) {
            (Some(device), None) => Disk::Own { device: self.given(device), settings },
            (None, Some(queue)) if settings == Settings::default() => Disk::Shared(self.given(queue)),
            (None, Some(_)) => {
                let what = "scheduler, locking, bypass and set belong to the export whose queue this is";
                return Err(name.fault(what));
            }
            _ => return Err(name.fault("an export has a device, as in 'ram,size=1G', or the queue of another export")),
        };
        let plain = Export::of(name, disk, written.read_only);
        let weight = placement::weight(written.weight.as_ref(), |span| self.place(span))?;
        let priority = match &written.priority {
            Some(text) => priority(text.get_ref()).map_err(|what| self.given(text).fault(what))?,
            None => plain.priority,
        };
        let allow = self.allow(written.allow.as_ref())?;
        Ok(Export { description: written.description.clone(), weight, priority, allow, ..plain })
    }

    fn allow(&self, written: Option<&Spanned<allow::Written>>) -> Result<Option<Allow>, TextError> {
        let read = |written: &Spanned<allow::Written>| {
            written.get_ref().read().map_err(|what| TextError { place: self.place(written.span()), what })
        };
        written.map(read).transpose()
    }
}

/// The message of a parser in one line, in the words in which files are described, and without names of types.
fn in_words(message: &str) -> String {
    let message = message.replace('\n', " ");
    if let Some(text) = misspelt(&message) {
        return text;
    }
    let Some((what, expected)) = message.rsplit_once(", expected ") else { return message };
    let expected = match expected {
        "i64" => "a whole number",
        "u16" => "a whole number from 0 to 65535",
        "a sequence" => "a list",
        "a map" => "a table",
        other => other,
    };
    format!("{what}, expected {expected}")
}

/// What is said of an unknown table or key that is near to a known one.
fn misspelt(message: &str) -> Option<String> {
    let (what, expected) = message.split_once(", expected ")?;
    let name = what.strip_prefix("unknown field `")?.strip_suffix('`')?;
    // Every other part between the quotes is a name.
    let near = nearest(name, expected.split('`').skip(1).step_by(2))?;
    Some(format!("{what}; did you mean `{near}`? Expected {expected}"))
}

impl File {
    /// Reads the text of a file. `path` is the name of the file in errors.
    pub(super) fn parse(path: &Path, text: &str) -> Result<Self, TextError> {
        let source = Source { path: path.to_owned(), text: text.to_owned() };
        let written: Written = toml::from_str(text).map_err(|error| TextError {
            place: error.span().map_or_else(|| path.display().to_string(), |span| source.place(span)),
            what: in_words(error.message()),
        })?;
        if let Some(number) = written.max_connections.as_ref().filter(|number| *number.get_ref() == 0) {
            let what = "max_connections: 0 is not within 1..65535".to_owned();
            return Err(TextError { place: source.place(number.span()), what });
        }
        let exports = written.export.iter().map(|export| source.export(export)).collect::<Result<_, _>>()?;
        let placements = Placements::read(&written.groups, &written.clients, &|span| source.place(span))?;
        let allow = source.allow(written.allow.as_ref())?;
        Ok(Self { source, written, exports, placements, allow })
    }
}
