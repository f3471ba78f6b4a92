//! Reports on a page: `--report FILE.html`.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use blkmq_workbench::TextError;
use blkmq_workbench::report::{Axis, Bars, Content, Group, Report, Section, Table, Unit};

use crate::{Failure, machine};

/// The file of a report. The file is opened before anything is measured, so that a path that cannot be written is
/// refused at once, and not after the measurement.
#[derive(Debug)]
pub struct Page {
    path: PathBuf,
    file: File,
}

impl Page {
    /// Opens the file, if the user wants one.
    pub fn open(path: Option<&Path>) -> Result<Option<Self>, TextError> {
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

    /// Writes the report about what was just measured, or modelled. `program` is what the user calls the program.
    pub fn write(
        mut self,
        program: &str,
        title: String,
        modelled: String,
        sections: Vec<Section>,
    ) -> Result<(), Failure> {
        let (command, machine, date) = (machine::command(program), machine::name(), machine::date());
        let html = Report { title, command, machine, date, modelled, sections }.html();
        let written = self.empty().and_then(|()| self.file.write_all(html.as_bytes()));
        written.map_err(|error| Failure::writing(self.path.display(), &error))
    }

    /// Removes the contents of the file, if it is a regular file. A pipe or a terminal has no contents to remove.
    fn empty(&self) -> io::Result<()> {
        if self.file.metadata()?.is_file() { self.file.set_len(0) } else { Ok(()) }
    }
}

/// A section with a table.
pub fn table(title: &str, note: &str, head: &[&str], rows: Vec<Vec<String>>) -> Section {
    let head = head.iter().map(|name| (*name).to_owned()).collect();
    Section { title: title.to_owned(), note: note.to_owned(), content: Content::Table(Table { head, rows }) }
}

/// A section with bars, which start at the baseline and have these names in each group.
pub fn bars(title: &str, note: &str, label: &str, (baseline, series): (f64, &[&str]), groups: Vec<Group>) -> Section {
    let series = series.iter().map(|name| (*name).to_owned()).collect();
    let content = Content::Bars(Bars { value: Axis::linear(label, Unit::Number), baseline, series, groups });
    Section { title: title.to_owned(), note: note.to_owned(), content }
}
