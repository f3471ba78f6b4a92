//! All integration tests of the crate in one program, a module for each subject.

mod bench;
mod calibrate;
mod clients;
mod compare;
mod control;
mod demo;
#[path = "../../../blkmq/tests/it/device/mod.rs"]
mod device;
mod durability;
mod gate;
mod groups;
mod handed;
mod hangups;
mod idle;
mod judge;
mod limits;
mod memory;
mod modules;
mod operators;
mod program;
mod replaces;
mod replay;
mod report;
mod reproduce;
mod run;
mod scarce;
mod serve;
mod served;
mod storage;
mod tidy;
mod trust;
mod words;
