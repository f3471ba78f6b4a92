//! Whatever a guest writes into its memory, the device takes no more than the ring has, and touches nothing that is not
//! the guest's.
#![no_main]

#[macro_use]
mod reach;

fn run(bytes: &[u8], reached: &mut reach::Reached) {
    blkmq_vhost_user::hostile::chains(bytes, |what, times| reached.add(what, times));
}

target!("chains", run, [("requests", 7), ("with data", 5), ("ranges", 2), ("faults", 4)], &[u8]);
