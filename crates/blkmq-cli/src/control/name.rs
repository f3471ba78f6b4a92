//! What commands call an export. Everything that names exports calls in.

/// The name that commands use for the export without a name.
pub(crate) const DEFAULT: &str = "default";

/// The name that commands use for an export.
pub(crate) fn shown(name: &str) -> &str {
    if name.is_empty() { DEFAULT } else { name }
}

/// The name that clients use for an export that commands call so.
pub(crate) fn asked(name: &str) -> &str {
    if name == DEFAULT { "" } else { name }
}
