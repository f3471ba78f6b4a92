//! Short forms of a spec: the path of a file in place of `file,path=PATH`.

use std::borrow::Cow;
use std::path::Path;

use blkmq::driver::spec::words;

use crate::devices;

/// Returns the spec that `text` stands for. A file has three forms, each followed by parameters if there are any:
/// `file,path=PATH`, `file:PATH`, and the path alone. A text is a path alone if its first word is no device's name and
/// has a `/` or a `.`, or is the name of a file that exists.
///
/// ```
/// use blkmq_drivers::canonical;
///
/// assert_eq!(canonical("disk.img,size=1G"), "file,path=disk.img,size=1G");
/// assert_eq!(canonical("file:disk.img"), "file,path=disk.img");
/// assert_eq!(canonical("ram,size=1G"), "ram,size=1G");
/// ```
#[must_use]
pub fn canonical(text: &str) -> Cow<'_, str> {
    let path = text.strip_prefix("file:").or_else(|| is_path(text).then_some(text));
    path.map_or(Cow::Borrowed(text), |path| Cow::Owned(format!("file,path={path}")))
}

fn is_path(text: &str) -> bool {
    let words = words(text);
    let Some(name) = words.first() else { return false };
    let is_address = name.contains("://");
    let is_device = devices().iter().any(|device| device.name == name);
    !is_address && !is_device && (name.contains(['/', '.']) || Path::new(name).exists())
}

/// What an error about a name that no device has adds.
pub(crate) const HELP: &str = "a file is named as ./NAME, file:NAME or file,path=NAME";

#[cfg(test)]
mod tests {
    use super::*;

    /// Red if a form of naming a file is not known, or if a device or an address is taken for a file.
    #[test]
    fn a_file_has_three_names() {
        for (text, expected) in [
            ("disk.img", "file,path=disk.img"),
            ("./disk", "file,path=./disk"),
            ("/dev/sda,read_only=1", "file,path=/dev/sda,read_only=1"),
            ("file:disk", "file,path=disk"),
            ("file:a,,b,size=1G", "file,path=a,,b,size=1G"),
            ("a,,b.img", "file,path=a,,b.img"),
            ("src", "file,path=src"),
            ("file,path=disk", "file,path=disk"),
            ("null", "null"),
            ("ram,size=1.5", "ram,size=1.5"),
            ("nosuch", "nosuch"),
            ("nbd+unix:///?socket=a.sock", "nbd+unix:///?socket=a.sock"),
            ("", ""),
            (",", ","),
        ] {
            assert_eq!(canonical(text), expected, "{text}");
        }
    }
}
