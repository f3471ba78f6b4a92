//! A loop that does nothing but pass requests through the block layer: `cost [SCHEDULER [REQUESTS [BATCH [STATISTICS
//! [CLOCK [LOCKING [BYPASS]]]]]]]`, by default `none`, 100000, 1, `per-thread` (or `off`, or `shared`), `real` (or
//! `coarse`), the default locking and 0. `scripts/cost` counts its instructions. `cost schedulers` prints the names.

mod passing;

use blkmq::driver::spec;
use blkmq::{Accounting, Client, Clock, Locking, RequestQueue};
use passing::{pass_through, reads};

const USAGE: &str = "[SCHEDULER [REQUESTS [BATCH [STATISTICS [CLOCK [LOCKING [BYPASS]]]]]]]";

fn argument<T: std::str::FromStr>(place: usize, default: T) -> T {
    match std::env::args().nth(place) {
        None => default,
        Some(text) => text.parse().unwrap_or_else(|_| fail(&format!("{text:?} is not what cost takes: cost {USAGE}"))),
    }
}

fn fail(text: &str) -> ! {
    eprintln!("cost: {text}");
    std::process::exit(2)
}

fn main() {
    if argument(1, String::new()) == "schedulers" {
        return println!("{}", blkmq::scheduler_names().join(" "));
    }
    let (scheduler, requests, batch) = (argument(1, "none".to_owned()), argument(2, 100_000), argument(3, 1_usize));
    let statistics = argument(4, "per-thread".to_owned());
    let is_off = statistics == "off";
    let accounting = if is_off {
        Accounting::PerThread
    } else {
        statistics.parse().unwrap_or_else(|error: blkmq::QueueError| fail(&error.to_string()))
    };
    let driver = spec::open("null,irqmode=0,poll_queues=0").unwrap_or_else(|error| fail(&error.to_string()));
    let clock = match &*argument(5, "real".to_owned()) {
        "real" => Clock::real(),
        "coarse" => Clock::coarse(),
        other => fail(&format!("the clock is real or coarse, not {other:?}")),
    };
    let (locking, bypass) = (argument(6, Locking::default()), argument(7, 0_u8) != 0);
    let builder = RequestQueue::builder(driver).scheduler(&scheduler).locking(locking).bypass(bypass);
    let builder = builder.accounting(accounting).clock(clock);
    let q = builder.build().unwrap_or_else(|error| fail(&error.to_string()));
    if is_off {
        q.set_knob("iostats", "0").unwrap_or_else(|error| fail(&error.to_string()));
    }
    let mut submitter = q.submitter(&Client::new("cost")).unwrap_or_else(|error| fail(&error.to_string()));
    let mut bios = reads(batch);
    if !(1..=256).contains(&batch) {
        fail("BATCH is from 1 to 256");
    }
    for _ in 0..requests / batch {
        pass_through(&mut submitter, &mut bios);
    }
    println!("{scheduler}, {locking}, statistics {statistics}: {:?}", q.counters());
}
