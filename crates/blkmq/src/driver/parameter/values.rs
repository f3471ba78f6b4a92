//! The parameters of a device, and their values in a spec.

use std::fmt;

use super::error::SpecError;
use super::value::{Accepts, Value};

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
pub struct Values<'a> {
    parameters: &'static [Parameter],
    given: Vec<Option<Value>>,
    opener: Opener<'a>,
}

impl fmt::Debug for Values<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Values").field("given", &self.given).finish_non_exhaustive()
    }
}

impl<'a> Values<'a> {
    /// The same values for a program that opens the device.
    pub(in crate::driver) fn with_opener(self, opener: Opener<'a>) -> Self {
        Self { opener, ..self }
    }

    /// Reads `name=value,name=value`; `None` leaves everything at its default.
    pub(in crate::driver) fn parse(parameters: &'static [Parameter], text: Option<&str>) -> Result<Self, SpecError> {
        let mut values = Self { parameters, given: vec![None; parameters.len()], opener: Opener::SILENT };
        let mut words = text.into_iter().flat_map(|text| text.split(',')).peekable();
        while let Some(word) = words.next() {
            let Some((name, value)) = word.split_once('=') else {
                return Err(SpecError::new(format!("{word:?} is not of the form name=value")));
            };
            let Some(place) = parameters.iter().position(|parameter| parameter.name == name) else {
                let known = join(parameters.iter().map(|parameter| parameter.name));
                return Err(SpecError::new(format!("there is no parameter {name:?}; there are: {known}")));
            };
            let accepts = parameters[place].accepts;
            let mut value = value.to_owned();
            // The parts of a fault's description are separated by commas too; a parameter always has its name before
            // it.
            while let Some(part) = words.next_if(|next| matches!(accepts, Accepts::Fault) && !next.contains('=')) {
                value.push(',');
                value.push_str(part);
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
        let Some(Value::Number(number)) = self.get(name) else {
            unreachable!("{name} is a number and has a default");
        };
        T::try_from(number).ok().expect("a table's range fits the type it is read as")
    }

    /// The size of a device in bytes, from `size` or, in its place, `gb`.
    pub(in crate::driver) fn size(&self) -> Result<u64, SpecError> {
        match (self.is_given("size"), self.is_given("gb")) {
            (true, true) => Err(SpecError::new("give size or gb, not both")),
            (true, false) => Ok(self.number("size")),
            (false, _) => Ok(self.number("gb")),
        }
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

pub(in crate::driver) fn join<'a>(names: impl Iterator<Item = &'a str>) -> String {
    names.collect::<Vec<_>>().join(", ")
}
