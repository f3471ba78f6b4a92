//! The files of one trace.

use std::ffi::OsStr;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use crate::TextError;
use crate::blktrace::{self, Event};

/// The text between the name of a trace and the number of a CPU.
const INFIX: &str = ".blktrace.";

/// The content of the per-CPU files of one trace.
#[derive(Debug, Clone)]
pub struct TraceFiles {
    name: PathBuf,
    files: Vec<(PathBuf, Vec<u8>)>,
}

impl TraceFiles {
    /// Reads a trace by the name that blkparse takes: `NAME` stands for all of `NAME.blktrace.0`, `NAME.blktrace.1` and
    /// so on. The name of one of these files stands for all of them, too. Any other file is read by itself.
    ///
    /// # Errors
    /// There is no such file, or it cannot be read.
    pub fn read(name: &Path) -> Result<Self, TextError> {
        let fault = |path: &Path, error: io::Error| TextError {
            place: path.display().to_string(),
            what: match error.kind() {
                io::ErrorKind::NotFound => format!("there is no such file, and no {}{INFIX}0", path.display()),
                _ => error.to_string(),
            },
        };
        let mut paths = per_cpu(name);
        if paths.is_empty() {
            paths.push(name.to_owned());
        }
        let read = |path: PathBuf| match fs::read(&path) {
            Ok(content) => Ok((path, content)),
            Err(error) => Err(fault(&path, error)),
        };
        Ok(Self { name: name.to_owned(), files: paths.into_iter().map(read).collect::<Result<_, _>>()? })
    }

    /// The events of all CPUs, by time.
    ///
    /// # Errors
    /// A file is no trace, or broken; or none of them holds anything.
    pub fn events(&self) -> Result<Vec<Event<'_>>, TextError> {
        let mut cpus = Vec::new();
        for (path, content) in &self.files {
            cpus.push(
                blktrace::read(content)
                    .map_err(|error| TextError { place: path.display().to_string(), what: error.to_string() })?,
            );
        }
        let events = blktrace::merge(cpus);
        if events.is_empty() {
            let what = "the trace is empty, not one record is in it".to_owned();
            return Err(TextError { place: self.name.display().to_string(), what });
        }
        Ok(events)
    }
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
