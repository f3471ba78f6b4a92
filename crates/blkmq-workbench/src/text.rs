//! What is wrong with a text that a user wrote.

use blkmq::Shown;

/// A text that cannot be read: where, what is wrong, and what would be right. It is shown in one line, with characters
/// escaped that would change how the line reads, since it quotes what it refuses.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{}: {}", Shown(place), Shown(what))]
pub struct TextError {
    /// Where: a file and line, or an option of the command line.
    pub place: String,
    /// What is wrong, and what would be right.
    pub what: String,
}

impl TextError {
    /// An error in the line of that number, counted from 1, of a file.
    pub(crate) fn in_line(file: &str, number: usize, what: String) -> Self {
        Self { place: format!("{file}: line {number}"), what }
    }
}

/// The lines of a text that are neither empty nor comments, which begin with `#`, each with its number from 1.
pub(crate) fn numbered_lines(text: &str) -> impl Iterator<Item = (usize, &str)> {
    (1..).zip(text.lines().map(str::trim)).filter(|(_, line)| !line.is_empty() && !line.starts_with('#'))
}

/// The one of `known` names that a misspelt `name` is most likely meant as, if any is near enough.
pub fn nearest<'a>(name: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    // The time to compute a distance grows with the product of both lengths. A word that is much longer than a name is
    // not near to it, and is not compared.
    let names = known.into_iter().filter(|known| name.len() < 2 * known.len());
    let near = names.map(|known| (strsim::damerau_levenshtein(name, known), known));
    near.filter(|(distance, known)| *distance <= known.len() / 3).min().map(|(_, known)| known)
}
