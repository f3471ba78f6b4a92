//! Whatever a front-end sends, each message is parsed or refused.
#![no_main]

#[macro_use]
mod reach;

fn run(bytes: &[u8], reached: &mut reach::Reached) {
    blkmq_vhost_user::hostile::messages(bytes, |what, times| reached.add(what, times));
}

target!("vhost_messages", run, [("messages", 25), ("with files", 6), ("regions", 3), ("refused", 4)], &[u8]);
