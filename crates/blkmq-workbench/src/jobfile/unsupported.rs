//! The options of fio that do nothing here: options without effect, and options that are not implemented.

/// An option of fio that sets nothing here.
#[derive(Debug, Clone, Copy)]
pub(super) enum Unsupported {
    /// The option is about something that blkmq does not have, so it changes nothing.
    WithoutEffect(&'static str),
    /// The option would change what the job does, and blkmq cannot do that.
    NotImplemented {
        /// The option's name in fio.
        name: &'static str,
        /// The values with which the option asks for nothing, separated by commas.
        neutral: &'static str,
        /// What the user can do instead.
        instead: &'static str,
    },
}

/// The options without effect, separated by blanks. A `|` separates two names of one option.
const WITHOUT_EFFECT: [&str; 4] = [
    // Files, caches and mounts. A job works on one device, and nothing caches the device.
    "directory filename_format unique_filename opendir lockfile openfiles file_service_type fallocate fadvise_hint \
     fill_device|fill_fs invalidate pre_read overwrite create_serialize create_fsync create_on_open \
     allow_file_create allow_mounted_write unlink unlink_each_loop",
    // How fio's own process works.
    "thread|threads mem|iomem lockmem hugepage-size nice uid gid cpumask cpus_allowed cpus_allowed_policy \
     numa_cpu_nodes numa_mem_policy clocksource gtod_cpu random_generator verify_async verify_dump verify_state_save \
     experimental_verify registerfiles sqthread_poll sqthread_poll_cpu nonvectored force_async uncached \
     userspace_reap",
    // The contents of blocks. No device here reads them.
    "zero_buffers refill_buffers scramble_buffers buffer_pattern buffer_compress_percentage buffer_compress_chunk \
     dedupe_percentage dedupe_mode dedupe_working_set_percentage dedupe_global",
    // What fio prints and logs. Here everything is in the table, in `--json` and in `--report`.
    "disable_bw_measurement|disable_bw disk_util significant_figures unit_base rate_cycle|ratecycle bwavgtime \
     iopsavgtime per_job_logs write_bw_log write_lat_log write_iops_log write_hist_log log_entries log_avg_msec \
     log_hist_msec log_hist_coarseness log_max_value log_offset log_prio log_compression log_compression_cpus \
     log_store_compressed log_unix_epoch log_alternate_epoch log_alternate_epoch_clock_id",
];

/// What the user can do instead, and the options for which this holds. Behind an option's `=` are the values with which
/// it asks for nothing.
const NOT_IMPLEMENTED: &[(&str, &str)] = &[
    ("leave it out: every job has the one device that --device or 'filename' names", "file_append=0 create_only=0"),
    (
        "leave it out: a job has one area of the device; numjobs with offset_increment gives several areas",
        "nrfiles|nr_files=1",
    ),
    (
        "for areas with holes write 'rw=read:SKIP'; without zonemode=strided leave it out: no device has zones that must be \
         written in order",
        "zonemode=none zonesize=0 zonerange=0 zoneskip=0",
    ),
    (
        "its devices have no zones that must be written in order: leave it out",
        "zonecapacity=0 read_beyond_wp=0 max_open_zones=0 job_max_open_zones=0 ignore_zone_limits=0 \
         zone_reset_threshold=0 zone_reset_frequency=0",
    ),
    (
        "write 'cmdprio_percentage=10', which does not depend on the block size, or give each size a job with prioclass and \
         prio",
        "cmdprio_bssplit",
    ),
    (
        "leave it out: an operation with a rate is submitted when it is due, however many are outstanding",
        "io_submit_mode=inline",
    ),
    ("leave it out: no rate ends a job; --json has the rate that it reached", "rate_min|ratemin=0 rate_iops_min=0"),
    ("give each job a rate or rate_iops", "flow=0 flow_id=0 flow_sleep=0"),
    (
        "leave it out and run the job at several depths, as '--option iodepth=8'; 'blkmq calibrate' finds the largest depth \
         that a device needs, with its latency",
        "latency_target=0 latency_window=0 latency_percentile=100 latency_run=0",
    ),
    ("leave it out: no latency ends a job; the table has the longest one", "max_latency=0"),
    (
        "write ramp_time and runtime: nothing of the ramp is counted",
        "steadystate|ss steadystate_duration|ss_dur=0 steadystate_ramp_time|ss_ramp=0",
    ),
    ("write 'stonewall', with which a job waits for all jobs before it", "wait_for"),
    ("give the jobs the same runtime, with time_based: they end together", "exitall=0 exit_what"),
    ("leave it out: the other jobs go on after an error", "exitall_on_error=0"),
    ("the first error ends the job: leave it out", "ignore_error continue_on_error=none,0 error_dump=0"),
    ("use verify=crc32c", "verify_pattern verify_state_load=0"),
    ("leave it out: a header begins its block", "verify_offset=0"),
    ("write 'rw=read' with verify=crc32c, which checks what an earlier run has written", "verify_only=0"),
    (
        "write 'rw=randtrimwrite', which trims each block before it is written, or give the trims a job with 'rw=randtrim'",
        "trim_percentage=0 trim_verify_zero=0,1 trim_backlog=0 trim_backlog_batch=0",
    ),
    (
        "'blkmq replay' plays traces",
        "write_iolog read_iolog read_iolog_chunked=0 replay_no_stall=0 replay_redirect replay_scale=1 replay_align=0 \
         replay_time_scale=100 replay_skip merge_blktrace_file merge_blktrace_scalars merge_blktrace_iters",
    ),
    ("the results are in --json and --report", "unified_rw_reporting=none,0 block_error_percentiles=0 stats=1"),
    ("leave it out, and name the scheduler by --scheduler, as '--scheduler none'", "ioscheduler"),
    ("give the sequential and the random operations jobs of their own, each with its bs", "bs_is_seq_rand=0"),
    ("use fsync, fdatasync or sync", "write_barrier=0 sync_file_range"),
    (
        "leave it out",
        "serialize_overlap=0 atomic=0 write_hint=none nowait=0 hipri_percentage=100 exec_prerun exec_postrun profile \
         cgroup cgroup_weight cgroup_nodelete=0",
    ),
    (
        "it belongs to an engine that blkmq has not: its engines only say whether a job waits for each operation",
        "cmd_type readfua=0 writefua=0 sg_write_mode stream_id clustername rbdname pool clientname busy_poll \
         hostname bindname port protocol verb uri nfs_url cpuload cpuchunks cpumode exit_on_io_done donorname \
         inplace thp",
    ),
];

/// The options of an entry: name, other name or the same name again, and neutral values.
fn options(entry: &'static str) -> impl Iterator<Item = (&'static str, &'static str, &'static str)> {
    entry.split_whitespace().map(|option| {
        let (names, neutral) = option.split_once('=').unwrap_or((option, ""));
        let (name, other) = names.split_once('|').unwrap_or((names, names));
        (name, other, neutral)
    })
}

/// Returns the option of that name or other name.
pub(super) fn find(name: &str) -> Option<Unsupported> {
    let named = |entry| options(entry).find(|(first, other, _)| [*first, *other].contains(&name));
    let without_effect = WITHOUT_EFFECT.into_iter().find_map(named).map(|(name, ..)| Unsupported::WithoutEffect(name));
    without_effect.or_else(|| {
        let find = |&(instead, entry): &(&'static str, &'static str)| Some((instead, named(entry)?));
        let (instead, (name, _, neutral)) = NOT_IMPLEMENTED.iter().find_map(find)?;
        Some(Unsupported::NotImplemented { name, neutral, instead })
    })
}

/// Everything that users are told to do instead.
#[cfg(test)]
pub(super) fn advices() -> impl Iterator<Item = &'static str> {
    NOT_IMPLEMENTED.iter().map(|(instead, _)| *instead)
}

/// Every name, for suggestions.
pub(super) fn names() -> impl Iterator<Item = &'static str> {
    let entries = WITHOUT_EFFECT.into_iter().chain(NOT_IMPLEMENTED.iter().map(|(_, entry)| *entry));
    entries.flat_map(options).map(|(name, ..)| name)
}
