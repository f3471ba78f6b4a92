//! A folder that holds a recording of Linux's BFQ.

use std::fs;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use flate2::read::GzDecoder;

use crate::blktrace::{Event, Merge};
use crate::order::{Decisions, Groups, Insertions, Line, Processes, Replayed, replay_bfq, steps};
use crate::{Settings, TextError};

/// A recording of Linux's BFQ.
#[derive(Debug)]
pub struct Recording {
    /// The folder's name.
    pub name: String,
    /// Where it is.
    pub folder: PathBuf,
    /// The settings under which it was made.
    pub settings: Settings,
    /// What Linux decided.
    pub decisions: Vec<Line>,
    /// Who asked.
    pub processes: Processes,
    /// The control groups; none where all processes belong to the root.
    pub groups: Groups,
    trace: Vec<u8>,
}

impl Recording {
    /// Reads a folder. Each file may be packed with gzip, and its name then ends with `.gz`.
    ///
    /// # Errors
    /// A file that is not there, or cannot be read.
    pub fn open(folder: &Path) -> Result<Self, TextError> {
        let text = |name: &str| text(folder, name);
        let groups = match text("groups.txt") {
            Ok(text) => Groups::parse("groups.txt", &text)?,
            Err(_) => Groups::default(),
        };
        let trace = file(folder, "trace.blktrace.0")?;
        events(&trace, folder).try_for_each(|event| event.map(drop))?;
        let decisions = file(folder, "decisions.txt")?;
        let decisions = Decisions::new("decisions.txt".to_owned(), &decisions[..]);
        Ok(Self {
            name: folder.file_name().unwrap_or(folder.as_os_str()).to_string_lossy().into_owned(),
            folder: folder.to_owned(),
            settings: Settings::parse("queue.txt", &text("queue.txt")?)?,
            decisions: decisions.collect::<Result<_, _>>()?,
            processes: Processes::parse("processes.txt", &text("processes.txt")?)?,
            groups,
            trace,
        })
    }

    /// The folders of recordings in a folder, by name; the folder alone, if it is one itself.
    ///
    /// # Errors
    /// The folder cannot be read, or holds no recording.
    pub fn folders(folder: &Path) -> Result<Vec<PathBuf>, TextError> {
        if is_recording(folder) {
            return Ok(vec![folder.to_owned()]);
        }
        let fault = |what| TextError { place: folder.display().to_string(), what };
        let entries = fs::read_dir(folder).map_err(|error| fault(error.to_string()))?;
        let mut folders: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).collect();
        folders.retain(|folder| is_recording(folder));
        folders.sort();
        if folders.is_empty() {
            return Err(fault("no recording is in there: a folder with decisions.txt and trace.blktrace.0".to_owned()));
        }
        Ok(folders)
    }

    /// Each step, and what our scheduler does at it.
    ///
    /// # Errors
    /// As [`replay_bfq`].
    pub fn replay(&self) -> Result<impl Iterator<Item = Result<Replayed, TextError>>, TextError> {
        let insertions = Insertions::count(events(&self.trace, &self.folder))?;
        let steps = steps(events(&self.trace, &self.folder), self.decisions.iter().copied().map(Ok));
        replay_bfq(steps, &insertions, &self.settings, &self.processes, &self.groups)
    }

    /// The names of its job files, sorted: `job.fio`, or one for each program that ran.
    ///
    /// # Errors
    /// The folder cannot be read.
    pub(super) fn job_files(&self) -> Result<Vec<String>, TextError> {
        let fault = |error: io::Error| TextError { place: self.folder.display().to_string(), what: error.to_string() };
        let entries = fs::read_dir(&self.folder).map_err(fault)?;
        let names = entries.flatten().map(|entry| entry.file_name().to_string_lossy().into_owned());
        let mut names: Vec<String> = names.filter(|name| name.starts_with("job.") && name.ends_with(".fio")).collect();
        names.sort();
        Ok(names)
    }

    /// Another of its files.
    pub(super) fn text(&self, name: &str) -> Result<String, TextError> {
        text(&self.folder, name)
    }
}

fn events(trace: &[u8], folder: &Path) -> impl Iterator<Item = Result<Event, TextError>> {
    let place = folder.join("trace.blktrace.0");
    Merge::new([trace]).map(move |event| {
        event.map_err(|(_, error)| TextError { place: place.display().to_string(), what: error.to_string() })
    })
}

fn is_recording(folder: &Path) -> bool {
    ["decisions.txt", "decisions.txt.gz"].iter().any(|name| folder.join(name).is_file())
}

fn text(folder: &Path, name: &str) -> Result<String, TextError> {
    let bytes = file(folder, name)?;
    let place = folder.join(name).display().to_string();
    String::from_utf8(bytes).map_err(|_| TextError { place, what: "is not UTF-8".to_owned() })
}

/// A file's content, unpacked if it is packed.
fn file(folder: &Path, name: &str) -> Result<Vec<u8>, TextError> {
    let path = folder.join(name);
    let read = match fs::read(&path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => unpack(&folder.join(format!("{name}.gz"))),
        read => read,
    };
    read.map_err(|error| TextError { place: path.display().to_string(), what: error.to_string() })
}

fn unpack(path: &Path) -> io::Result<Vec<u8>> {
    let mut content = Vec::new();
    GzDecoder::new(fs::File::open(path)?).read_to_end(&mut content)?;
    Ok(content)
}
