//! Whether the open file is still at its path.
//!
//! A file that is deleted, or over which another one is renamed, exists until its last descriptor is closed. Reads and
//! writes go on, and everything is lost when the server ends. Linux tells the process nothing of that, so the driver
//! compares the file at the path with the open one whenever its health is asked for.

use std::fs;
use std::io::ErrorKind;
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;

use rustix::fs::fstat;

/// The path by which a file was opened.
#[derive(Debug)]
pub(super) struct Place(PathBuf);

impl Place {
    pub(super) const fn new(path: PathBuf) -> Self {
        Self(path)
    }

    /// What became of the name of `file`, which was opened by this path. `None` if the file is there, or if that cannot
    /// be told, as when the folder is not readable any more.
    pub(super) fn trouble(&self, file: impl AsFd) -> Option<String> {
        let open = fstat(file).ok()?;
        match fs::metadata(&self.0) {
            Ok(found) if (found.dev(), found.ino()) == (open.st_dev, open.st_ino) => return None,
            Ok(_) => (),
            Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => (),
            Err(_) => return None,
        }
        let path = self.0.display();
        Some(match open.st_nlink {
            0 => format!(
                "{path}: the file was deleted, or another one was renamed over it, and is lost when the server ends; \
                 copy it through the server before that"
            ),
            _ => format!("{path}: the file was renamed, and the next server does not find it there; rename it back"),
        })
    }
}
