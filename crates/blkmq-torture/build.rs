//! Tells the program which compiler it was built with.

use std::process::Command;

fn main() {
    let rustc = std::env::var_os("RUSTC").expect("cargo names the compiler");
    let output = Command::new(rustc).arg("--version").output().expect("the compiler tells its version");
    println!("cargo:rustc-env=BLKMQ_RUSTC={}", String::from_utf8_lossy(&output.stdout).trim());
    println!("cargo:rerun-if-changed=build.rs");
}
