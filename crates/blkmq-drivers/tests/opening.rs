//! Files that are opened, or refused.

use std::cell::RefCell;
use std::path::PathBuf;

use tempfile::TempDir;

/// A folder on a disk, and the name of a file there.
fn folder() -> (TempDir, PathBuf) {
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("the folder for tests is writable");
    let path = folder.path().join("disk");
    (folder, path)
}

/// Why a spec is refused, and what was said before.
fn refused(spec: &str) -> (String, Vec<String>) {
    let said = RefCell::new(Vec::new());
    let opened = blkmq_drivers::open_telling(spec, &|text| said.borrow_mut().push(text.to_owned()));
    (opened.expect_err("it is refused").to_string(), said.into_inner())
}

/// Red if a file that another server has is not waited for, or without a word, or for ever.
#[test]
fn a_file_in_use_is_waited_for_with_a_word_and_then_refused() {
    let (_folder, path) = folder();
    let path = path.display();
    let first = blkmq_drivers::open(&format!("file,path={path},size=1M")).expect("it can be made");
    for (limit, shown, is_told) in [("0", None, false), ("100ms", Some("100ms"), false), ("1200ms", Some("1.2s"), true)]
    {
        let (error, said) = refused(&format!("file,path={path},lock_timeout={limit}"));
        let after = shown.map(|shown| format!(", and still so after {shown}")).unwrap_or_default();
        assert_eq!(error, format!("device file: {path}: in use by another server{after}"));
        let waits = "in use by another server, or one that was killed is not gone yet; waiting for 1.2s at most";
        assert_eq!(said, if is_told { vec![format!("{path}: {waits}")] } else { Vec::new() });
    }
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| blkmq_drivers::open(&format!("file,path={path}")).map(drop));
        std::thread::sleep(std::time::Duration::from_millis(50));
        assert!(!waiting.is_finished(), "half a minute is not over");
        drop(first);
        assert_eq!(waiting.join().expect("it ends"), Ok(()));
    });
}
