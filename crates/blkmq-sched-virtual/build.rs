//! Turns the sources of blkmq-sched to the torture rig. A cfg of this package alone, and not a feature, which would
//! spread to others.

fn main() {
    println!("cargo::rustc-cfg=virtual_cpus");
    println!("cargo::rerun-if-changed=build.rs");
}
