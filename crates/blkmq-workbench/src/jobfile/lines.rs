//! The lines of a job file, without comments, with included files, and with variables replaced.

use super::{Surroundings, shown};
use crate::TextError;

/// The most files that one job file may include, counting the files that those include.
const MAX_INCLUDES: usize = 64;

/// A line that is not empty.
#[derive(Debug)]
pub(super) struct Line {
    /// File and line number.
    pub(super) place: String,
    /// The contents of the line.
    pub(super) what: LineContent,
}

/// The contents of a line.
#[derive(Debug)]
pub(super) enum LineContent {
    /// `[name]`.
    Section(String),
    /// `name=value`, or a name alone.
    Option(String, Option<String>),
}

/// Reads job files into lines.
pub(super) struct Reader<'a> {
    surroundings: &'a dyn Surroundings,
    includes: usize,
    lines: Vec<Line>,
}

/// The lines of the file with this name.
pub(super) fn read(file: &str, text: &str, surroundings: &dyn Surroundings) -> Result<Vec<Line>, TextError> {
    let mut reader = Reader { surroundings, includes: 0, lines: Vec::new() };
    reader.read(file, text)?;
    Ok(reader.lines)
}

impl Reader<'_> {
    fn read(&mut self, file: &str, text: &str) -> Result<(), TextError> {
        for (index, line) in text.lines().enumerate() {
            let line = line.split([';', '#']).next().unwrap_or_default().trim();
            let fault = |what| TextError::in_line(&shown(file), index + 1, what);
            if line.is_empty() {
                continue;
            }
            if let Some(path) = line.strip_prefix("include").filter(|rest| rest.starts_with(char::is_whitespace)) {
                let (name, text) = self.included(file, path.trim()).map_err(fault)?;
                self.read(&name, &text)?;
                continue;
            }
            let what = if line.starts_with('[') { section(line) } else { option(line) };
            let place = format!("{}: line {}", shown(file), index + 1);
            self.lines.push(Line { place, what: what.map_err(fault)? });
        }
        Ok(())
    }

    /// The name and text of a file that `file` includes.
    fn included(&mut self, file: &str, path: &str) -> Result<(String, String), String> {
        self.includes += 1;
        if self.includes > MAX_INCLUDES {
            return Err(format!("more than {MAX_INCLUDES} files are included; does one include itself?"));
        }
        let unread = |why: std::io::Error| format!("cannot include '{}': {}", shown(path), shown(&why.to_string()));
        self.surroundings.include(file, path).map_err(unread)
    }
}

fn section(line: &str) -> Result<LineContent, String> {
    match line.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')).map(str::trim) {
        Some(name) if !name.is_empty() && !name.contains([']', '[']) => Ok(LineContent::Section(name.to_owned())),
        _ => Err(format!("'{}' is no section: a job starts with its name in brackets, as in '[reader]'", shown(line))),
    }
}

/// Splits `name=value`.
pub(super) fn option(line: &str) -> Result<LineContent, String> {
    let Some((name, value)) = line.split_once('=') else {
        return Ok(LineContent::Option(line.to_owned(), None));
    };
    if name.is_empty() || name.ends_with(char::is_whitespace) || value.starts_with(char::is_whitespace) {
        let example = if name.trim().is_empty() { "rw" } else { name.trim() };
        return Err(format!(
            "'{}' is no option: an option is a name, '=' and a value, without blanks, as in '{}=...'",
            shown(line),
            shown(example)
        ));
    }
    Ok(LineContent::Option(name.to_owned(), Some(value.to_owned())))
}

/// Replaces `${NAME}` by the environment's variable, and `$ncpus`, `$pagesize` and `$mb_memory` by the machine's
/// values.
pub(super) fn substitute(value: &str, surroundings: &dyn Surroundings) -> Result<String, String> {
    let mut result = String::new();
    let mut rest = value;
    while let Some(at) = rest.find('$') {
        result.push_str(&rest[..at]);
        rest = &rest[at + 1..];
        if let Some((name, behind)) = rest.strip_prefix('{').and_then(|rest| rest.split_once('}')) {
            let variable = surroundings
                .variable(name)
                .ok_or_else(|| format!("the environment has no variable '{}'; set it before the run", shown(name)))?;
            result.push_str(&variable);
            rest = behind;
        } else if let Some(keyword) = ["ncpus", "pagesize", "mb_memory"].into_iter().find(|word| rest.starts_with(word))
        {
            let number = surroundings.keyword(keyword).ok_or_else(|| format!("${keyword} is not known here"))?;
            result.push_str(&number.to_string());
            rest = &rest[keyword.len()..];
        } else {
            result.push('$');
        }
    }
    result.push_str(rest);
    Ok(result)
}
