//! `blkmq demo` from outside. `scripts/step demo` runs all of it and checks what it prints.

use std::io::{BufRead, BufReader, Read};

use crate::run::{interrupt, spawn};

/// Red if the flag of Ctrl-C does not reach the floods: they run to their end, and their results are printed.
#[test]
fn an_interrupted_demo_ends_without_what_it_has_not_measured() {
    let mut program = spawn(&["demo"]);
    let mut words = BufReader::new(program.stdout.take().expect("it is piped"));
    // Once the table's head is printed, the program handles Ctrl-C.
    let mut line = String::new();
    while !line.starts_with("scheduler ") {
        line.clear();
        assert!(words.read_line(&mut line).expect("the program prints text") > 0, "the table has no head");
    }
    for column in ["reads/s", "p50 ms", "p99 ms", "p99.9 ms", "writes MiB/s"] {
        assert!(line.contains(column), "{line}");
    }
    interrupt(&program);
    let mut rest = String::new();
    words.read_to_string(&mut rest).expect("the program prints text");
    let output = program.wait_with_output().expect("it ends");
    assert_eq!(output.status.code(), Some(1), "{rest}");
    assert_eq!(String::from_utf8_lossy(&output.stderr), "blkmq: demo: interrupted before its end\n");
    assert!(!rest.contains("times") && !rest.contains("Try next"), "{rest}");
}
