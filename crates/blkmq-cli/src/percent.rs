//! Parts of a whole on a terminal.

/// A part, from 0 to 1, in percent; `-` if there is no whole.
pub(crate) fn of(part: Option<f64>) -> String {
    part.map_or_else(|| "-".to_owned(), |part| format!("{:.1}%", part * 100.0))
}
