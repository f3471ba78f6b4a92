//! Reports on a page: `--report FILE.html`.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use blkmq_workbench::TextError;
use blkmq_workbench::report::{Axis, Bars, Content, Group, Report, Section, Table, Unit};

use crate::machine;
use crate::target::Time;
use blkmq_program::Failure;

/// The file of a report. The file is opened before anything is measured, so that a path that cannot be written is
/// refused at once, and not after the measurement.
#[derive(Debug)]
pub(crate) struct Page {
    path: PathBuf,
    file: File,
}

impl Page {
    /// Opens the file, if the user wants one.
    pub(crate) fn open(path: Option<&Path>) -> Result<Option<Self>, TextError> {
        let Some(path) = path else { return Ok(None) };
        // The old contents stay until there is something to replace them.
        match OpenOptions::new().write(true).create(true).truncate(false).open(path) {
            Ok(file) => Ok(Some(Self { path: path.to_owned(), file })),
            Err(error) => {
                let place = format!("--report {}", path.display());
                Err(TextError { place, what: format!("the file cannot be written: {error}") })
            }
        }
    }

    /// Writes the report about what was just measured.
    pub(crate) fn write(mut self, title: String, modelled: String, sections: Vec<Section>) -> Result<(), Failure> {
        let (command, machine, date) = (machine::command(), machine::name(), machine::date());
        let html = Report { title, command, machine, date, modelled, sections }.html();
        let written = self.empty().and_then(|()| self.file.write_all(html.as_bytes()));
        written.map_err(|error| Failure::writing(self.path.display(), &error))
    }

    /// Removes the contents of the file, if it is a regular file. A pipe or a terminal has no contents to remove.
    fn empty(&self) -> io::Result<()> {
        if self.file.metadata()?.is_file() { self.file.set_len(0) } else { Ok(()) }
    }
}

/// What the figures of a run depend on.
pub(crate) fn modelled(device: &str, clock: Time) -> String {
    match clock {
        Time::Real => format!(
            "Times, CPU times and rates were measured on the machine above. The device '{device}' is part of blkmq: the \
             time that it takes for an operation follows from its parameters."
        ),
        Time::Virtual => format!(
            "Times are virtual: they follow from the jobs, the scheduler and the parameters of the device '{device}', a \
             model, and are the same on every machine."
        ),
    }
}

/// A section with a table.
pub(crate) fn table(title: &str, note: &str, head: &[&str], rows: Vec<Vec<String>>) -> Section {
    let head = head.iter().map(|name| (*name).to_owned()).collect();
    Section { title: title.to_owned(), note: note.to_owned(), content: Content::Table(Table { head, rows }) }
}

/// A section with bars, which start at the baseline and have these names in each group.
pub(crate) fn bars(
    title: &str,
    note: &str,
    label: &str,
    (baseline, series): (f64, &[&str]),
    groups: Vec<Group>,
) -> Section {
    let series = series.iter().map(|name| (*name).to_owned()).collect();
    let content = Content::Bars(Bars { value: Axis::linear(label, Unit::Number), baseline, series, groups });
    Section { title: title.to_owned(), note: note.to_owned(), content }
}
