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
pub(super) struct NamedFile {
    path: PathBuf,
    /// Whether the file had a name then. One in memory has none.
    had_name: bool,
}

impl NamedFile {
    /// `file` was just opened by this path.
    pub(super) fn new(path: PathBuf, file: impl AsFd) -> Self {
        Self { path, had_name: fstat(file).is_ok_and(|open| open.st_nlink > 0) }
    }

    /// What became of the name of `file`, which was opened by this path. `None` if the file is there, or if that cannot
    /// be told, as when the folder is not readable any more.
    pub(super) fn trouble(&self, file: impl AsFd) -> Option<String> {
        let open = fstat(file).ok()?;
        // A mount on the file itself still leads to it when its name is gone.
        let has_lost_name = self.had_name && open.st_nlink == 0;
        match fs::metadata(&self.path) {
            Ok(found) if !has_lost_name && (found.dev(), found.ino()) == (open.st_dev, open.st_ino) => return None,
            Ok(_) => (),
            Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => (),
            Err(_) => return None,
        }
        let path = self.path.display();
        Some(match open.st_nlink {
            0 => format!(
                "{path}: the file was deleted, or another one was renamed over it, and is lost when the server ends; \
                 copy it through the server before that"
            ),
            _ => format!("{path}: the file was renamed, and the next server does not find it there; rename it back"),
        })
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::os::fd::AsRawFd;

    use super::*;

    /// Red if a file whose name is gone counts as there because its path still leads to it, as a mount on the file
    /// itself does; or if a file that never had a name counts as lost.
    #[test]
    #[cfg_attr(miri, ignore = "Miri has no /proc")]
    fn a_path_that_still_leads_to_a_deleted_file_hides_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("disk");
        let file = File::create(&path).unwrap();
        let open = |file: &File| PathBuf::from(format!("/proc/self/fd/{}", file.as_raw_fd()));
        let named = NamedFile::new(open(&file), &file);
        assert_eq!(named.trouble(&file), None);
        fs::remove_file(&path).unwrap();
        assert!(named.trouble(&file).is_some_and(|text| text.contains("is lost when the server ends")));
        let nameless = tempfile::tempfile().unwrap();
        assert_eq!(NamedFile::new(open(&nameless), &nameless).trouble(&nameless), None);
    }
}
