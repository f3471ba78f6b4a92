//! `scripts/test` with steps made for this test: what it calls a failure, and what it prints.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// `slow` builds for longer than a step may be silent; `silent` runs and says nothing; `waits` is silent until `fuzz`
/// has begun; the others pass at once.
const STEP: &str = "#!/usr/bin/env bash
if [[ $1 == --build ]]; then
    case $2 in
    slow) sleep 7 ;;
    broken)
        echo 'error: no such crate'
        exit 101
        ;;
    lacking) echo 'SKIP it cannot be had' && exit 75 ;;
    esac
    exit 0
fi
if [[ $1 == silent ]]; then sleep 600; fi
if [[ $1 == fuzz ]]; then touch target/begun; fi
if [[ $1 == waits ]]; then until [[ -e target/begun ]]; do sleep 0.1; done; fi
if [[ $1 == fuzz ]]; then echo 'test result: FAILED. 1 passed; 2 failed; 0 ignored;' && exit 1; fi
mkdir -p target/loom
echo 'test result: ok. 3 passed; 0 failed; 0 ignored;'
";

/// Held while a script is written, and while a process begins. A process that begins meanwhile has the script open for
/// writing until it is another program, and a script that is open for writing does not start ("Text file busy").
static SCRIPTS: Mutex<()> = Mutex::new(());

fn scripts() -> MutexGuard<'static, ()> {
    SCRIPTS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A folder with the script and these steps in it.
fn folder(name: &str) -> PathBuf {
    let _scripts = scripts();
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    let scripts = folder.join("scripts");
    fs::create_dir_all(&scripts).expect("the folder for tests is writable");
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scripts/test");
    fs::copy(script, scripts.join("test")).expect("the script is in the repository");
    fs::write(scripts.join("step"), STEP).expect("the folder is writable");
    fs::set_permissions(scripts.join("step"), fs::Permissions::from_mode(0o755)).expect("the file is ours");
    folder
}

fn run(folder: &Path, steps: &[&str], ci: &str) -> (Output, String) {
    let mut command = Command::new(folder.join("scripts/test"));
    command.args(steps).env("SILENCE", "5").env("CI", ci).stdin(Stdio::null());
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let begins = {
        let _scripts = scripts();
        command.spawn()
    };
    let output = begins.and_then(|child| child.wait_with_output()).expect("there is a shell");
    let words = String::from_utf8(output.stdout.clone()).expect("it prints text");
    (output, words)
}

/// Red if the time that a step builds counts towards the limit by which it hangs, or is not told. Also red if a step
/// that says nothing ends the script, or if the step and the end do not both say why a step failed.
#[test]
fn a_step_may_build_for_any_time_and_hangs_when_it_says_nothing() {
    let (output, words) = run(&folder("gate"), &["slow", "silent", "broken", "lacking"], "");
    let line = |step: &str| words.lines().find(|line| line.starts_with(step)).expect("each step has a line").to_owned();
    let number = |text: &str| text.split_whitespace().next().and_then(|word| word.parse::<u64>().ok());
    let slow = line("slow ");
    let building = slow.split_once(" s, ").and_then(|(_, rest)| number(rest));
    assert!(slow.contains(" ok ") && slow.ends_with(" 3 passed") && building >= Some(7), "{words}");
    assert!(line("silent ").contains("FAILED (ended: it said nothing for 5 s)"), "{words}");
    assert!(line("broken ").contains("FAILED ") && line("lacking ").contains("SKIP "), "{words}");
    assert!(words.contains("\n    | error: no such crate\n"), "{words}");
    assert!(words.contains("\nfailed: broken: error: no such crate\n"), "{words}");
    assert!(words.contains("\nfailed: silent: "), "{words}");
    let last: Vec<&str> = words.lines().collect();
    let [.., time, disk, sum] = last[..] else { panic!("{words}") };
    assert!(time.contains(" s in all, ") && time.ends_with(" s of it building"), "{words}");
    assert!(disk.ends_with(" GB on disk in target"), "{words}");
    assert_eq!(sum, "3 passed, 2 failed, 1 skipped");
    assert_eq!(output.status.code(), Some(1));
}

/// Red if a step that builds in a folder of its own waits for others, or if what it came to is not counted or not told.
#[test]
fn a_step_with_a_folder_of_its_own_runs_beside_the_others() {
    let folder = folder("gate-beside");
    let _ = fs::remove_file(folder.join("target/begun"));
    let (output, words) = run(&folder, &["waits", "other", "fuzz", "loom"], "");
    for line in ["waits     ok ", "other     ok ", "fuzz      FAILED ", "loom      ok ", "failed: fuzz: "] {
        assert_eq!(words.lines().filter(|said| said.starts_with(line)).count(), 1, "{line}: {words}");
    }
    assert!(words.contains(" s in all; the steps, two at a time, took "), "{words}");
    assert!(words.ends_with("\n10 passed, 2 failed, 0 skipped\n"), "{words}");
    assert_eq!(output.status.code(), Some(1));
}

/// Red if on CI a step leaves files on the disk that no later step needs.
#[test]
fn a_step_leaves_nothing_of_its_own_on_ci() {
    let folder = folder("gate-ci");
    for (ci, is_there) in [("", true), ("true", false)] {
        let (output, words) = run(&folder, &["loom"], ci);
        assert_eq!(output.status.code(), Some(0), "{words}");
        assert_eq!(folder.join("target/loom").exists(), is_there, "{words}");
    }
}
