//! Any text is refused in one line, or read into jobs that keep what their fields promise.
#![no_main]

#[macro_use]
mod reach;

use blkmq_workbench::job::{BlockSize, Direction, Distribution, Order};
use blkmq_workbench::{Job, JobFile, Mode, Surroundings};
use reach::Reached;

/// A machine that has one variable and one file, which includes itself.
struct Small;

impl Surroundings for Small {
    fn variable(&self, name: &str) -> Option<String> {
        (name == "V").then(|| "$ncpus\n[${V}]=4k".to_owned())
    }

    fn keyword(&self, _: &str) -> Option<u64> {
        Some(2)
    }

    fn include(&self, _: &str, path: &str) -> std::io::Result<(String, String)> {
        match path {
            "f" => Ok(("f\n".to_owned(), "bs=8k\ninclude f\n".to_owned())),
            _ => Err(std::io::Error::other("no\nfile")),
        }
    }
}

fn check_line(line: &str) {
    assert!(!line.is_empty() && !line.contains(char::is_control), "{line:?}");
}

fn check(job: &Job) {
    assert!(job.numjobs >= 1 && job.loops >= 1 && job.thinktime_blocks >= 1 && job.iodepth >= 1);
    assert!((1..=job.iodepth).contains(&job.iodepth_batch_submit) && (1..=job.iodepth).contains(&job.iodepth_low));
    assert!((1..=job.iodepth).contains(&job.iodepth_batch_complete_max));
    assert!(job.iodepth_batch_complete_min <= job.iodepth_batch_complete_max);
    assert!(job.startdelay.start() <= job.startdelay.end() && job.thinktime_spin <= job.thinktime);
    assert!(!job.time_based || job.runtime.is_some());
    assert!(job.percentile_list.iter().all(|percentile| *percentile > 0.0 && *percentile <= 100.0));
    assert!(!matches!(job.order, Order::Random { every: 0 }));
    if let Distribution::Zoned(zones) = &job.random_distribution {
        assert_eq!(zones.iter().map(|zone| zone.access).sum::<u32>(), 100);
        assert_eq!(zones.iter().map(|zone| zone.span).sum::<u32>(), 100);
    }
    for direction in Direction::ALL {
        let bounds = job.bs[direction].bounds();
        assert!(*bounds.start() >= 1 && !bounds.is_empty() && job.blockalign[direction] >= 1);
        assert!(job.rate[direction] != Some(0) && job.rate_iops[direction] != Some(0));
        assert!(job.rate[direction].is_none() || job.rate_iops[direction].is_none());
        if let BlockSize::Split(parts) = &job.bs[direction] {
            assert_eq!(parts.iter().map(|(_, percent)| percent).sum::<u32>(), 100);
        }
    }
}

fn run(text: &str, reached: &mut Reached) {
    // The last line serves as an override too.
    let last = [text.lines().last().unwrap_or_default()];
    for (overrides, mode) in [(&[][..], Mode::Strict), (&last[..], Mode::Lenient)] {
        match JobFile::parse("a file\n", text, overrides, mode, &Small) {
            Ok(file) => {
                assert!(!file.jobs.is_empty());
                reached.add("jobs", file.jobs.len());
                file.jobs.iter().for_each(check);
                for warning in &file.warnings {
                    check_line(&warning.to_string());
                    // An option that blkmq does not know, or cannot obey, is an error here.
                    assert!(mode == Mode::Lenient || warning.what.contains(" has no effect, "), "{warning}");
                }
                reached.add("warnings", file.warnings.len());
            }
            Err(error) => {
                reached.add("refused", 1);
                check_line(&error.to_string());
            }
        }
    }
}

target!("jobfile", run, [("jobs", 10), ("refused", 2), ("warnings", 2)], &str);
