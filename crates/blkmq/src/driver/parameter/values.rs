//! The parameters of a device, and their values in a spec.

use std::fmt;

use super::error::SpecError;
use super::value::{Accepts, Value, number, write_word};
use crate::request::is_hidden;

/// A parameter of a device.
#[derive(Debug, Clone, Copy)]
#[non_exhaustive]
pub struct Parameter {
    /// The name; the kernel's, where the kernel has the parameter.
    pub name: &'static str,
    /// What a value looks like.
    pub accepts: Accepts,
    /// The value if a spec gives none, as it would be written there; empty for no value.
    pub default: &'static str,
    /// One sentence on what it does.
    pub about: &'static str,
}

impl Parameter {
    /// A parameter.
    #[must_use]
    pub const fn new(name: &'static str, accepts: Accepts, default: &'static str, about: &'static str) -> Self {
        Self { name, accepts, default, about }
    }
}

/// The program that opens a device, as far as the device has to know.
#[derive(Clone, Copy)]
pub struct Opener<'a> {
    /// Called with one sentence each on what the device waits for while it opens, and on what is not as asked for.
    pub tell: &'a dyn Fn(&str),
    /// The most submitters that there will be at once. `None` if the program does not know, or has [background
    /// threads](crate::RequestQueue::start_threads).
    pub nr_submitters: Option<u16>,
}

impl Opener<'_> {
    /// A program of which nothing is known, and which hears nothing.
    pub const SILENT: Self = Self { tell: &|_| (), nr_submitters: None };
}

impl fmt::Debug for Opener<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Opener").field("nr_submitters", &self.nr_submitters).finish_non_exhaustive()
    }
}

/// The value of each parameter of a device, given or default.
#[derive(Debug)]
pub struct Values<'a> {
    parameters: &'static [Parameter],
    given: Vec<Option<Value>>,
    opener: Opener<'a>,
}

impl<'a> Values<'a> {
    /// The same values for a program that opens the device.
    pub(in crate::driver) fn with_opener(self, opener: Opener<'a>) -> Self {
        Self { opener, ..self }
    }

    /// Reads words `name=value`; what none of them names keeps its default.
    pub(in crate::driver) fn parse(
        parameters: &'static [Parameter],
        words: impl IntoIterator<Item = String>,
    ) -> Result<Self, SpecError> {
        let mut values = Self { parameters, given: vec![None; parameters.len()], opener: Opener::SILENT };
        let mut words = words.into_iter().peekable();
        // The last parameter that takes any text, as it was written.
        let mut open_text = None;
        while let Some(word) = words.next() {
            let Some((name, value)) = word.split_once('=') else {
                return Err(SpecError::new(not_an_assignment(&word, open_text.as_deref())));
            };
            let Some(place) = parameters.iter().position(|parameter| parameter.name == name) else {
                let known = join(parameters.iter().map(|parameter| parameter.name));
                return Err(SpecError::new(format!("there is no parameter {name:?}; there are: {known}")));
            };
            open_text = matches!(parameters[place].accepts, Accepts::Path | Accepts::Text).then(|| word.clone());
            let accepts = parameters[place].accepts;
            let mut value = value.to_owned();
            // The parts of a fault's description are separated by commas too; a parameter always has its name before
            // it.
            while let Some(part) = words.next_if(|next| matches!(accepts, Accepts::Fault) && !next.contains('=')) {
                value.push(',');
                value.push_str(&part);
            }
            let value = accepts.parse(&value).map_err(|error| error.at(format_args!("{name}={value:?}")))?;
            if values.given[place].replace(value).is_some() {
                return Err(SpecError::new(format!("{name} is given twice")));
            }
        }
        Ok(values)
    }

    /// Tells the opener what the device waits for, in one sentence.
    pub fn tell(&self, text: &str) {
        (self.opener.tell)(text);
    }

    /// The most submitters that there will be at once, if the opener knows.
    #[must_use]
    pub fn nr_submitters(&self) -> Option<u16> {
        self.opener.nr_submitters
    }

    fn place(&self, name: &str) -> usize {
        let place = self.parameters.iter().position(|parameter| parameter.name == name);
        place.expect("a device asks for the parameters of its own table")
    }

    /// Whether the spec gives the parameter.
    ///
    /// # Panics
    /// If the table has none of this name.
    #[must_use]
    pub fn is_given(&self, name: &str) -> bool {
        self.given[self.place(name)].is_some()
    }

    /// The value of a parameter; `None` if it is not given and has no default.
    ///
    /// # Panics
    /// If the table has none of this name.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<Value> {
        let place = self.place(name);
        let Parameter { accepts, default, .. } = self.parameters[place];
        self.given[place]
            .clone()
            .or_else(|| (!default.is_empty()).then(|| accepts.parse(default).expect("a table's default is acceptable")))
    }

    /// The value of a parameter that is a number and has a default; sizes in bytes, times in nanoseconds.
    ///
    /// # Panics
    /// If the parameter has no value that is a number, or its range does not fit the type.
    #[must_use]
    pub fn number<T: TryFrom<u64>>(&self, name: &str) -> T {
        number(self.get(name))
    }

    /// The value of the first of these parameters that has one. A spec gives one of them at most.
    pub(in crate::driver) fn one_of(&self, names: &[&str]) -> Result<Option<Value>, SpecError> {
        debug_assert!(!names.is_empty(), "a field has a parameter");
        if names.iter().filter(|name| self.is_given(name)).count() > 1 {
            return Err(SpecError::new(format!("give {}, not both", names.join(" or "))));
        }
        Ok(names.iter().find_map(|name| self.get(name)))
    }

    /// The first of each of these groups of parameters that has a value, as `name=value`, with spaces between them.
    pub(in crate::driver) fn show(&self, groups: &[&[&str]]) -> String {
        let shown = groups.iter().filter_map(|names| {
            let (name, value) = names.iter().find_map(|name| Some((*name, self.get(name)?)))?;
            Some(format!("{name}={}", self.parameters[self.place(name)].accepts.write(&value)))
        });
        shown.collect::<Vec<_>>().join(" ")
    }

    /// The value of a switch.
    ///
    /// # Panics
    /// If the table has no switch of this name.
    #[must_use]
    pub fn is_on(&self, name: &str) -> bool {
        self.number::<u64>(name) == 1
    }
}

/// What is wrong with a word without `=`. `before`: the text in front of it, which may have lost a part by a comma. The
/// error is one line, so a text that cannot be shown as it is written is not shown again.
fn not_an_assignment(word: &str, before: Option<&str>) -> String {
    let what = format!("{word:?} is not of the form name=value");
    match before {
        Some(before) if !word.is_empty() && !word.contains(is_hidden) && !before.contains(is_hidden) => {
            format!("{what}; a comma within a value is written twice: {}", write_word(&format!("{before},{word}")))
        }
        _ => what,
    }
}

/// The words of a spec, which single commas separate. Two commas in a row are a comma within a word.
///
/// ```
/// use blkmq::driver::spec::words;
///
/// assert_eq!(words("file,path=a,,b.img,size=1G"), ["file", "path=a,b.img", "size=1G"]);
/// ```
#[must_use]
pub fn words(spec: &str) -> Vec<String> {
    if spec.is_empty() {
        return Vec::new();
    }
    let (mut words, mut word, mut chars) = (Vec::new(), String::new(), spec.chars().peekable());
    while let Some(c) = chars.next() {
        if c == ',' && chars.next_if_eq(&',').is_none() {
            words.push(std::mem::take(&mut word));
        } else {
            word.push(c);
        }
    }
    words.push(word);
    words
}

pub(in crate::driver) fn join<'a>(names: impl Iterator<Item = &'a str>) -> String {
    names.collect::<Vec<_>>().join(", ")
}
