//! The options of fio that do nothing here: options without effect, and options that are not implemented.

/// An option of fio that sets nothing here.
#[derive(Debug, Clone, Copy)]
pub(super) enum Unsupported {
    /// The option is about something that blkmq does not have, so it changes nothing.
    WithoutEffect(&'static str),
    /// The option would change what the job does, and blkmq cannot do that.
    NotImplemented {
        /// The option's name in fio.
        name: &'static str,
        /// The values with which the option asks for nothing, separated by commas.
        neutral: &'static str,
        /// What the user can do instead.
        instead: &'static str,
    },
}

/// What the user can do instead, and the options for which this holds: `-` and the options without effect.
fn entries() -> impl Iterator<Item = (&'static str, &'static str)> {
    let blocks = include_str!("unsupported.txt").split("\n\n");
    let entry = |block: &'static str| {
        let comment = block.split_inclusive('\n').take_while(|line| line.starts_with('#'));
        let start: usize = comment.map(str::len).sum();
        block[start..].split_once('\n')
    };
    blocks.filter_map(entry)
}

/// The options of an entry: name, other name or the same name again, and neutral values.
fn options(entry: &'static str) -> impl Iterator<Item = (&'static str, &'static str, &'static str)> {
    entry.split_whitespace().map(|option| {
        let (names, neutral) = option.split_once('=').unwrap_or((option, ""));
        let (name, other) = names.split_once('|').unwrap_or((names, names));
        (name, other, neutral)
    })
}

/// Returns the option of that name or other name.
pub(super) fn find(name: &str) -> Option<Unsupported> {
    entries().find_map(|(instead, entry)| {
        let (name, _, neutral) = options(entry).find(|(first, other, _)| [*first, *other].contains(&name))?;
        Some(match instead {
            "-" => Unsupported::WithoutEffect(name),
            _ => Unsupported::NotImplemented { name, neutral, instead },
        })
    })
}

/// Everything that users are told to do instead.
#[cfg(test)]
pub(super) fn advices() -> impl Iterator<Item = &'static str> {
    entries().map(|(instead, _)| instead).filter(|instead| *instead != "-")
}

/// Every name, for suggestions.
pub(super) fn names() -> impl Iterator<Item = &'static str> {
    entries().flat_map(|(_, entry)| options(entry)).map(|(name, ..)| name)
}
