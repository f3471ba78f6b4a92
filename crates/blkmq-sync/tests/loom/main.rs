//! Models of what threads share, each in every interleaving. Only a build with `RUSTFLAGS="--cfg loom"` has them, as
//! `scripts/step loom` makes it.
#![cfg(loom)]

mod deferrals;
mod freeze;
mod gate;
mod handover;
mod inbox;
mod model;
mod notify;
mod restart;
mod ring;
mod stack;
mod staging;
mod tags;
mod timeout;
mod tokens;
