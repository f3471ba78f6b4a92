//! Embedding a scheduler: the requests of three threads on a device that does one thing at a time.

use blkmq_sched::{
    Class, Feedback, FeedbackKind, Info, InsertAt, IoPriority, MergeLevel, MergeLimits, RqId, Setting, Tally, Time,
    scheduler,
};

fn main() {
    let mut scheduler = scheduler("mq-deadline").expect("this scheduler exists");
    scheduler.reserve(64);
    scheduler.configure(Setting::MergeLimits(MergeLimits {
        max_sectors: 256,
        max_segments: 64,
        ..MergeLimits::default()
    }));
    scheduler.set_knob("fifo_batch", 4).expect("4 is within the range");

    let (mut now, mut completed) = (Time(0), Tally::default());
    let mut classes = Vec::new();
    for (sector, class) in [(64, Class::Idle), (8, Class::BestEffort), (16, Class::BestEffort), (0, Class::RealTime)] {
        let priority = IoPriority { class, level: 4 };
        let merge = MergeLevel::Full;
        let info = Info { sector, nr_sectors: 8, nr_segments: 1, sync: true, priority, merge, ..Info::default() };
        if let Some(merge) = scheduler.merge(&info) {
            println!("sector {sector} joins request {}", merge.into.0);
            continue;
        }
        scheduler.insert(RqId(classes.len() as u64), &info, InsertAt::Sorted, now);
        classes.push(class);
    }
    while let Some(rq) = scheduler.dispatch(&mut (), now) {
        let class = classes[rq.0 as usize];
        println!("at {} ns the device does request {} ({class:?})", now.0, rq.0);
        now = now.after(100_000);
        completed.completed[class.index()] += 1;
        if scheduler.feedback() == FeedbackKind::Sums {
            scheduler.observe(Feedback::Sums(&completed));
        }
    }
}
