//! The files of one trace.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::{self, BufReader};
use std::path::{Path, PathBuf};

use crate::TextError;
use crate::blktrace::{Event, Merge, TraceError};

/// The text between the name of a trace and the number of a CPU.
const INFIX: &str = ".blktrace.";

/// How much of each file is read at a time.
const BUFFER_BYTES: usize = 65_536;

/// The events of the per-CPU files of one trace, by time. Ends after the first error.
#[derive(Debug)]
pub struct TraceFiles {
    paths: Vec<PathBuf>,
    events: Merge<BufReader<File>>,
}

impl TraceFiles {
    /// Opens a trace by the name that blkparse takes: `NAME` stands for all of `NAME.blktrace.0`, `NAME.blktrace.1` and
    /// so on. The name of one of these files stands for all of them, too. Any other file is read by itself; it may be a
    /// pipe, because each file is read once, from its beginning.
    ///
    /// # Errors
    /// There is no such file, or it cannot be read; the beginning of a file is no trace; or none of them holds
    /// anything.
    pub fn open(name: &Path) -> Result<Self, TextError> {
        let mut paths = per_cpu(name);
        if paths.is_empty() {
            paths.push(name.to_owned());
        }
        let trace = Self::open_all(paths)?;
        match trace.events.peek() {
            Some(Ok(_)) => Ok(trace),
            Some(Err((file, error))) => Err(in_file(&trace.paths[file], error)),
            None => {
                let what = "the trace is empty, not one record is in it".to_owned();
                Err(TextError { place: name.display().to_string(), what })
            }
        }
    }

    fn open_all(paths: Vec<PathBuf>) -> Result<Self, TextError> {
        let open = |path: &PathBuf| {
            let file = File::open(path).map_err(|error| fault(path, &error))?;
            Ok(BufReader::with_capacity(BUFFER_BYTES, file))
        };
        let files = paths.iter().map(open).collect::<Result<Vec<_>, TextError>>()?;
        Ok(Self { paths, events: Merge::new(files) })
    }

    /// Opens the same files once more, to read them from the beginning.
    ///
    /// # Errors
    /// One of them is not a regular file, or cannot be opened.
    pub fn again(&self) -> Result<Self, TextError> {
        for path in &self.paths {
            let is_file = fs::metadata(path).map_err(|error| fault(path, &error))?.is_file();
            if !is_file {
                let what = "the trace is read twice, which only a regular file can be; write it to one first";
                return Err(TextError { place: path.display().to_string(), what: what.to_owned() });
            }
        }
        Self::open_all(self.paths.clone())
    }
}

impl Iterator for TraceFiles {
    type Item = Result<Event, TextError>;

    fn next(&mut self) -> Option<Self::Item> {
        let event = self.events.next()?;
        Some(event.map_err(|(file, error)| in_file(&self.paths[file], error)))
    }
}

fn fault(path: &Path, error: &io::Error) -> TextError {
    let what = match error.kind() {
        io::ErrorKind::NotFound => format!("there is no such file, and no {}{INFIX}0", path.display()),
        _ => error.to_string(),
    };
    TextError { place: path.display().to_string(), what }
}

fn in_file(path: &Path, error: TraceError) -> TextError {
    TextError { place: path.display().to_string(), what: error.to_string() }
}

/// The files of the trace of this name, by CPU.
fn per_cpu(name: &Path) -> Vec<PathBuf> {
    let folder = name.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let cpu = |file: &OsStr| {
        let (base, cpu) = file.to_str()?.rsplit_once(INFIX)?;
        Some((base.to_owned(), cpu.parse::<u32>().ok()?))
    };
    let Some(own) = name.file_name() else { return Vec::new() };
    // If there is a file with exactly this name, that file is meant, and not the files whose names begin like it.
    let base = match cpu(own) {
        Some((base, _)) if name.exists() => base,
        Some(_) => return Vec::new(),
        None if name.is_file() => return Vec::new(),
        None => own.to_string_lossy().into_owned(),
    };
    let Ok(entries) = fs::read_dir(folder) else { return Vec::new() };
    let mut found: Vec<(u32, PathBuf)> = entries
        .filter_map(|entry| cpu(&entry.ok()?.file_name()))
        .filter(|(other, _)| *other == base)
        .map(|(_, cpu)| (cpu, name.with_file_name(format!("{base}{INFIX}{cpu}"))))
        .collect();
    found.sort();
    found.into_iter().map(|(_, path)| path).collect()
}
