//! The published measurements that are repeated here: their jobs, and what each row of a table runs on.

use crate::target::Time;

/// A published measurement.
#[derive(Debug)]
pub(super) struct Table {
    pub(super) name: &'static str,
    /// What it asks.
    pub(super) about: &'static str,
    /// The job file's name, and its text.
    pub(super) file: &'static str,
    pub(super) job: &'static str,
    /// Who published it, on what machine.
    pub(super) published: &'static str,
    pub(super) clock: Time,
    pub(super) rows: &'static [Row],
}

/// A way to run the job.
#[derive(Debug)]
pub(super) struct Row {
    pub(super) label: &'static str,
    pub(super) device: &'static str,
    /// What is set beside the device.
    pub(super) set: &'static [(&'static str, &'static str)],
    /// The row that this one is compared with; itself for none.
    pub(super) base: usize,
    /// Operations per second, where they were published.
    pub(super) iops: Option<f64>,
    /// Those of the row that it is compared with, if they were published again.
    pub(super) base_iops: Option<f64>,
    /// Percent of the operations that were merged, where they were published.
    pub(super) merged: Option<f64>,
}

const fn row(label: &'static str, device: &'static str, set: &'static [(&'static str, &'static str)]) -> Row {
    Row { label, device, set, base: 0, iops: None, base_iops: None, merged: None }
}

impl Row {
    const fn against(self, base: usize) -> Self {
        Self { base, ..self }
    }

    const fn published(self, iops: f64) -> Self {
        Self { iops: Some(iops), ..self }
    }

    const fn over(self, base_iops: f64) -> Self {
        Self { base_iops: Some(base_iops), ..self }
    }

    const fn merging(self, merged: f64) -> Self {
        Self { merged: Some(merged), ..self }
    }
}

const NULL_48: &str = "null,irqmode=0,submit_queues=48";
const NONE: &[(&str, &str)] = &[("scheduler", "none")];
const SINGLE: &[(&str, &str)] = &[("scheduler", "mq-deadline"), ("locking", "single")];

/// Every published measurement, in the order of `reproduce all`.
pub(super) const TABLES: &[Table] = &[
    Table {
        name: "scaling",
        about: "Does the scheduler's lock become the bottleneck of 32 threads with 4 requests each?",
        file: "scaling-32x4.fio",
        job: include_str!("../../../blkmq-workbench/jobs/scaling-32x4.fio"),
        published: "Axboe 2024: null_blk with one hardware queue, and an NVMe drive; 16 cores, 32 threads",
        clock: Time::Real,
        rows: &[
            row("none, one hardware queue", "null,irqmode=0,submit_queues=1", NONE),
            row("mq-deadline single, one hardware queue", "null,irqmode=0,submit_queues=1", SINGLE).published(879e3),
            row("none, 32 hardware queues", "null,irqmode=0,submit_queues=32", NONE).against(2),
            row("mq-deadline single, 32 hardware queues", "null,irqmode=0,submit_queues=32", SINGLE)
                .against(2)
                .published(901e3),
        ],
    },
    Table {
        name: "batch",
        about: "What does dispatching one request per hold of the lock cost 16 writers with 32 requests each?",
        file: "batch-16x32.fio",
        job: include_str!("../../../blkmq-workbench/jobs/batch-16x32.fio"),
        published: "Yu Kuai 2025: null_blk with 128 submit queues, depth 1024, no completion delay",
        clock: Time::Real,
        rows: &[
            row("none", "null,irqmode=0,submit_queues=128,hw_queue_depth=1024", NONE),
            row("mq-deadline single", "null,irqmode=0,submit_queues=128,hw_queue_depth=1024", SINGLE).published(263e3),
        ],
    },
    Table {
        name: "merge",
        about: "Are the requests of 64 sequential writers on one hard disk merged before the tags run out?",
        file: "merge-64x32.fio",
        job: include_str!("../../../blkmq-workbench/jobs/merge-64x32.fio"),
        published: "Linux kernel test robot 2024: one hard disk, queue depth 32, nr_requests 64",
        clock: Time::Virtual,
        rows: &[
            row("none", "hdd", NONE),
            row(
                "mq-deadline single",
                "hdd",
                &[("scheduler", "mq-deadline"), ("locking", "single"), ("nr_requests", "64")],
            )
            .published(23.5e3)
            .merging(95.0),
        ],
    },
    Table {
        name: "accounting",
        about: "What do statistics cost 32 synchronous readers, and what do time stamps?",
        file: "accounting-32.fio",
        job: include_str!("../../../blkmq-workbench/jobs/accounting-32.fio"),
        published: "Axboe 2017: null_blk with 48 submit queues; off, on before the change, off and on after it",
        clock: Time::Real,
        rows: &[
            row("statistics off", NULL_48, &[("scheduler", "none"), ("iostats", "0"), ("stamps", "1")])
                .published(21.0e6),
            row(
                "on, one counter that all threads share",
                NULL_48,
                &[("scheduler", "none"), ("accounting", "shared"), ("stamps", "1")],
            )
            .published(2.6e6),
            row(
                "on, each thread counts for itself",
                NULL_48,
                &[("scheduler", "none"), ("accounting", "per-thread"), ("stamps", "1")],
            )
            .published(20.4e6)
            .over(21.4e6),
            row("off, and without time stamps", NULL_48, &[("scheduler", "none"), ("iostats", "0"), ("stamps", "0")]),
        ],
    },
];
