//! The device that a job file names: the file of its option `filename`.

use std::fs::File;
use std::io::{self, Read, Write};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use blkmq_workbench::job::{Direction, Extent, Job};
use blkmq_workbench::{JobFile, TextError};

use crate::target::Time;
use blkmq_program::render::size;
use blkmq_program::{Failure, interrupt, notice};

/// Options that tell fio how to generate file names.
const OF_NAMES: [&str; 3] = ["directory", "filename_format", "opendir"];

/// A file that is made is filled by writes of this many bytes.
const FILL_BYTES: usize = 1 << 20;

/// The device that a job file names; by default the one where it names none.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Named {
    pub(super) spec: String,
    /// This run has made and filled the file, so nobody's data is lost.
    pub(super) is_own: bool,
}

impl Default for Named {
    fn default() -> Self {
        Self { spec: "null".to_owned(), is_own: false }
    }
}

impl Named {
    /// The device that the job file `name` names. A file that is not there is made, as large as the jobs want it, and
    /// filled if jobs read it: reads of a hole would never reach the disk.
    ///
    /// # Errors
    /// The jobs name several files, or one that cannot be made, or one on virtual time; or `stop` was set meanwhile.
    pub(super) fn of(name: &str, file: &JobFile, clock: Time, stop: &AtomicBool) -> Result<Self, Failure> {
        let fault = |what: String| TextError { place: name.to_owned(), what };
        let Some(path) = path(file).map_err(fault)? else {
            return Ok(Self::default());
        };
        let spec = format!("file,path={}", path.replace(',', ",,"));
        // On virtual time the file is refused when it is opened, and is not made first.
        if clock == Time::Virtual
            || std::fs::exists(path).map_err(|error| fault(format!("filename '{path}': {error}")))?
        {
            return Ok(Self { spec, is_own: false });
        }
        let Some(bytes) = file.jobs.iter().filter_map(end).max() else {
            let what = format!(
                "there is no file '{path}'; give the job its size in bytes, as in 'size=1g', and the file is made"
            );
            return Err(fault(what).into());
        };
        notice(&format!("{path}: making it, {}", size(bytes)));
        if !file.jobs.iter().any(|job| job.operations.includes(Direction::Read)) {
            // The device makes it, without data.
            return Ok(Self { spec: format!("{spec},size={bytes}"), is_own: false });
        }
        let filled = fill(Path::new(path), bytes, stop);
        let filled = filled.map_err(|error| Failure::Running(format!("{path}: it cannot be made: {error}")))?;
        if filled { Ok(Self { spec, is_own: true }) } else { Err(interrupt::failure(name)) }
    }
}

/// The path of the one file that all jobs name. `None` if they name none.
fn path(file: &JobFile) -> Result<Option<&str>, String> {
    const INSTEAD: &str = "write one file, as in 'filename=/data/disk.img', or name the device by --device";
    if let Some(option) = OF_NAMES.iter().find(|option| file.without_effect.contains(option)) {
        return Err(format!("option '{option}': blkmq does not generate file names; {INSTEAD}"));
    }
    let mut first: Option<(&Job, Option<&str>)> = None;
    for job in &file.jobs {
        let path = match &job.files[..] {
            [] => None,
            [path] => Some(path.as_str()),
            paths => {
                let nr = paths.len();
                return Err(format!(
                    "job {}: 'filename' has {nr} files, and a run has one device; {INSTEAD}",
                    job.name
                ));
            }
        };
        let (other, named) = *first.get_or_insert((job, path));
        if named != path {
            let shown = |path: Option<&str>| path.map_or_else(|| "no file".to_owned(), |path| format!("'{path}'"));
            return Err(format!(
                "job {} names {}, and job {} names {}, but a run has one device; write the same 'filename' for both, or \
                 name the device by --device",
                other.name,
                shown(named),
                job.name,
                shown(path)
            ));
        }
    }
    let path = first.and_then(|(_, path)| path);
    match path {
        Some("") => Err(format!("'filename' is empty; {INSTEAD}")),
        path => Ok(path),
    }
}

/// Where the area of a job's last thread ends, in bytes. `None` if that depends on the size of the file.
fn end(job: &Job) -> Option<u64> {
    let (Some(Extent::Bytes(size)), Extent::Bytes(offset), Extent::Bytes(step)) =
        (job.size, job.offset, job.offset_increment)
    else {
        return None;
    };
    step.checked_mul(u64::from(job.numjobs) - 1)?.checked_add(offset)?.checked_add(size)
}

/// Makes a file of so many bytes that has no hole. Returns false, and leaves no file, if `stop` was set.
fn fill(path: &Path, bytes: u64, stop: &AtomicBool) -> io::Result<bool> {
    let mut file = File::options().write(true).create_new(true).open(path)?;
    let filled = write(&mut file, bytes, stop);
    if !matches!(filled, Ok(true)) {
        // What went wrong is reported, whether or not the file goes.
        let _ = std::fs::remove_file(path);
    }
    filled
}

fn write(file: &mut File, bytes: u64, stop: &AtomicBool) -> io::Result<bool> {
    // Contents that a file system can neither compress nor leave out.
    let mut block = vec![0; FILL_BYTES];
    File::open("/dev/urandom")?.read_exact(&mut block)?;
    let mut left = bytes;
    while left > 0 {
        if stop.load(Ordering::Relaxed) {
            return Ok(false);
        }
        let part = left.min(FILL_BYTES as u64);
        file.write_all(&block[..part as usize])?;
        left -= part;
    }
    file.sync_all()?;
    Ok(true)
}
