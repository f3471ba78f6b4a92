//! Reads fio's job files into [`Job`]s.
//!
//! In the folder `lines` resolves includes and variables, `options` reads what jobs obey, `unsupported` names the other
//! options, and a `draft` becomes a job when all its options are read. Nothing else calls in there.

mod draft;
mod lines;
mod options;
mod unsupported;
mod value;

use std::io;
use std::path::Path;

use crate::{Job, TextError, nearest};
use draft::Draft;
use lines::{Line, LineContent};
use unsupported::Unsupported;
use value::Value;

/// The contents of a job file.
#[derive(Debug, Clone, PartialEq)]
pub struct JobFile {
    /// The jobs, in the order of the file. At least one.
    pub jobs: Vec<Job>,
    /// The options of the global sections, as written, with fio's full names. For reports.
    pub global: Vec<(String, String)>,
    /// Options that have no effect because another option is missing, such as an `iodepth` without an engine that keeps
    /// several operations outstanding; and options that were ignored in [`Mode::Lenient`].
    pub warnings: Vec<TextError>,
    /// Options that fio obeys and that have no effect here, each once, in the order of the file: blkmq has no page
    /// cache, generates no file names, and has no content to compress and no log to write.
    pub without_effect: Vec<&'static str>,
}

/// What happens with an option that blkmq does not know, or that asks for something that blkmq cannot do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Mode {
    /// It is an error.
    #[default]
    Strict,
    /// It is ignored with a warning. An engine that blkmq does not have is replaced by `libaio`. An error in a known
    /// option stays an error.
    Lenient,
}

/// What a job file may ask of the machine. By default there is nothing.
pub trait Surroundings {
    /// The environment's variable of that name.
    fn variable(&self, _name: &str) -> Option<String> {
        None
    }

    /// The number that fio's keyword `ncpus`, `pagesize` or `mb_memory` stands for.
    fn keyword(&self, _name: &str) -> Option<u64> {
        None
    }

    /// Name and text of the file that `file` includes by `path`.
    ///
    /// # Errors
    /// Why it cannot be read.
    fn include(&self, _file: &str, path: &str) -> io::Result<(String, String)> {
        Err(io::Error::new(io::ErrorKind::NotFound, path.to_owned()))
    }
}

/// The process's own environment and files.
#[derive(Debug, Clone, Copy, Default)]
pub struct System;

impl JobFile {
    /// Reads `text`, the contents of a job file. Errors call the file `file`. Each of `overrides`, of the form
    /// `NAME=VALUE`, is applied to every job after the file's options.
    ///
    /// # Errors
    /// The first line or override that is wrong, with what would be right. Or the file has no job.
    pub fn parse(
        file: &str,
        text: &str,
        overrides: &[&str],
        mode: Mode,
        surroundings: &dyn Surroundings,
    ) -> Result<Self, TextError> {
        let mut parser = Parser { mode, surroundings, warnings: Vec::new(), without_effect: Vec::new() };
        let overrides = overrides.iter().map(|text| override_line(text)).collect::<Result<Vec<_>, _>>()?;
        let lines = lines::read(file, text, surroundings)?;
        if let Some(Line { place, what: LineContent::Option(name, _) }) = lines.first() {
            let what = format!("option '{}' stands before the first section; write '[global]' above it", shown(name));
            return Err(TextError { place: place.clone(), what });
        }
        let mut global = Draft::default();
        let mut jobs: Vec<Job> = Vec::new();
        for section in lines.chunk_by(|_, next| matches!(next.what, LineContent::Option(..))) {
            let [Line { place, what: LineContent::Section(name) }, options @ ..] = section else {
                continue;
            };
            if name == "global" {
                parser.apply(&mut global, options)?;
                continue;
            }
            let mut draft = global.section(name);
            parser.apply(&mut draft, options)?;
            parser.apply(&mut draft, &overrides)?;
            if let Some(note) = draft.note(place) {
                parser.warn(note);
            }
            let begins_group = draft.job.stonewall || draft.new_group;
            let group = jobs.last().map_or(0, |last| last.group + u32::from(begins_group));
            jobs.push(Job { group, ..draft.settle(place)? });
        }
        if jobs.is_empty() {
            let what = "there is no job; a job is a section with a name of its own, as in '[reader]'".to_owned();
            return Err(TextError { place: shown(file), what });
        }
        let Parser { warnings, without_effect, .. } = parser;
        Ok(Self { jobs, global: global.given(), warnings, without_effect })
    }
}

struct Parser<'a> {
    mode: Mode,
    surroundings: &'a dyn Surroundings,
    warnings: Vec<TextError>,
    without_effect: Vec<&'static str>,
}

impl Parser<'_> {
    /// Applies the options of a section to `draft`. `kb_base` goes first, because it says how to read the other
    /// options.
    fn apply(&mut self, draft: &mut Draft, lines: &[Line]) -> Result<(), TextError> {
        let is_base = |line: &&Line| matches!(&line.what, LineContent::Option(name, _) if name == "kb_base");
        for line in lines.iter().filter(is_base).chain(lines.iter().filter(|line| !is_base(line))) {
            if let LineContent::Option(name, value) = &line.what {
                self.option(draft, &line.place, name, value.as_deref())?;
            }
        }
        Ok(())
    }

    fn option(&mut self, draft: &mut Draft, place: &str, name: &str, text: Option<&str>) -> Result<(), TextError> {
        let fault = |what| TextError { place: place.to_owned(), what };
        match unsupported::find(name) {
            Some(Unsupported::WithoutEffect(name)) => {
                draft.record(name, place, text);
                if !self.without_effect.contains(&name) {
                    self.without_effect.push(name);
                }
                return Ok(());
            }
            Some(Unsupported::NotImplemented { neutral, .. }) if text.is_some_and(|text| is_neutral(text, neutral)) => {
                return Ok(());
            }
            Some(Unsupported::NotImplemented { name, instead, .. }) => {
                return self.refuse(fault(format!("{HAS_NO} '{name}'; {instead}")));
            }
            None => {}
        }
        let Some(option) = options::find(name) else {
            return self.refuse(fault(unknown(name)));
        };
        let text = text.map(|text| lines::substitute(text, self.surroundings)).transpose();
        let applied = text.and_then(|text| {
            (option.apply)(draft, Value::new(text.as_deref(), draft.kilo))?;
            Ok(text)
        });
        match applied {
            Ok(text) => draft.record(option.name, place, text.as_deref()),
            Err(what) if what.starts_with(HAS_NO) => self.refuse(fault(what))?,
            Err(what) => return Err(fault(format!("option '{}': {what}", option.name))),
        }
        Ok(())
    }

    fn refuse(&mut self, error: TextError) -> Result<(), TextError> {
        match self.mode {
            Mode::Strict => Err(error),
            Mode::Lenient => {
                self.warn(error);
                Ok(())
            }
        }
    }

    /// Adds a warning. A global option or an override occurs once for each job, but the warning is added only once.
    fn warn(&mut self, warning: TextError) {
        if !self.warnings.contains(&warning) {
            self.warnings.push(warning);
        }
    }
}

/// Whether `text` is one of the values with which an option asks for nothing.
fn is_neutral(text: &str, neutral: &str) -> bool {
    !text.is_empty() && neutral.split(',').any(|value| value == text)
}

/// The beginning of every message about a feature that is not implemented.
const HAS_NO: &str = "blkmq has no";

fn unknown(name: &str) -> String {
    let near = nearest(name, options::names().chain(unsupported::names()));
    let hint = near.map_or("see fio's manual for its options".to_owned(), |known| format!("did you mean '{known}'?"));
    format!("option '{}' is not known; {hint}", shown(name))
}

fn override_line(text: &str) -> Result<Line, TextError> {
    let place = format!("--option {}", shown(text));
    match lines::option(text.trim()) {
        Ok(what) => Ok(Line { place, what }),
        Err(what) => Err(TextError { place, what }),
    }
}

/// Text from outside, in a form that fits into one line.
fn shown(text: &str) -> String {
    const LONGEST: usize = 100;
    let mut shown: String = text.chars().take(LONGEST).flat_map(char::escape_debug).collect();
    if text.chars().nth(LONGEST).is_some() {
        shown.push_str("...");
    }
    // Quotation marks do no harm in a line, and names of files contain them.
    shown.replace("\\'", "'").replace("\\\"", "\"")
}

impl Surroundings for System {
    fn variable(&self, name: &str) -> Option<String> {
        // The standard library panics if the name cannot be a variable's name.
        let possible = !name.is_empty() && !name.contains(['=', '\0']);
        possible.then(|| std::env::var(name).ok()).flatten()
    }

    fn keyword(&self, name: &str) -> Option<u64> {
        match name {
            "ncpus" => std::thread::available_parallelism().ok().map(|n| n.get() as u64),
            "pagesize" => kilobytes("/proc/self/smaps", "KernelPageSize:").map(|kilobytes| kilobytes * 1024),
            "mb_memory" => kilobytes("/proc/meminfo", "MemTotal:").map(|kilobytes| kilobytes / 1024),
            _ => None,
        }
    }

    fn include(&self, file: &str, path: &str) -> io::Result<(String, String)> {
        let beside = Path::new(file).with_file_name(path);
        let path = if Path::new(path).exists() { Path::new(path) } else { beside.as_path() };
        let text = std::fs::read_to_string(path)?;
        Ok((path.display().to_string(), text))
    }
}

/// The number in the first line with this name, in a file of Linux's that counts in kilobytes.
fn kilobytes(path: &str, name: &str) -> Option<u64> {
    let text = std::fs::read_to_string(path).ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix(name))?;
    line.split_whitespace().next()?.parse().ok()
}

#[cfg(test)]
mod tests;
