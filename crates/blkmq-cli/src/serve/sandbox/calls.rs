//! Which system calls a server never makes: seccomp.
//!
//! The list has the calls that are refused, not those that are allowed: the allowed ones depend on the C library, the
//! kernel and the devices. The refused calls are those that would help an attacker inside the server: to run another
//! program, look into other processes, change the machine, or load code into the kernel. Each of them fails as if the
//! user were not allowed to make it.

use std::collections::BTreeMap;

use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter, SeccompRule,
    apply_filter,
};

#[rustfmt::skip]
const REFUSED: &[i64] = &[
    // Other programs.
    libc::SYS_execve, libc::SYS_execveat,
    // Other processes.
    libc::SYS_ptrace, libc::SYS_process_vm_readv, libc::SYS_process_vm_writev, libc::SYS_pidfd_getfd,
    libc::SYS_kcmp,
    // What the process sees of the machine.
    libc::SYS_mount, libc::SYS_umount2, libc::SYS_pivot_root, libc::SYS_chroot, libc::SYS_setns, libc::SYS_unshare,
    libc::SYS_open_tree, libc::SYS_move_mount, libc::SYS_fsopen, libc::SYS_fsconfig, libc::SYS_fsmount,
    libc::SYS_fspick, libc::SYS_mount_setattr, libc::SYS_open_by_handle_at, libc::SYS_name_to_handle_at,
    // The machine itself.
    libc::SYS_init_module, libc::SYS_finit_module, libc::SYS_delete_module, libc::SYS_kexec_load,
    libc::SYS_kexec_file_load, libc::SYS_reboot, libc::SYS_swapon, libc::SYS_swapoff, libc::SYS_acct,
    libc::SYS_quotactl, libc::SYS_sethostname, libc::SYS_setdomainname, libc::SYS_settimeofday,
    libc::SYS_clock_settime, libc::SYS_clock_adjtime, libc::SYS_adjtimex, libc::SYS_syslog,
    #[cfg(target_arch = "x86_64")] libc::SYS_iopl,
    #[cfg(target_arch = "x86_64")] libc::SYS_ioperm,
    // Parts of the kernel that have had many faults, and that a server does not need.
    libc::SYS_bpf, libc::SYS_perf_event_open, libc::SYS_userfaultfd, libc::SYS_add_key, libc::SYS_request_key,
    libc::SYS_keyctl, libc::SYS_personality,
];

/// Families of sockets that a server has.
const FAMILIES: [libc::c_int; 3] = [libc::AF_UNIX, libc::AF_INET, libc::AF_INET6];

/// On x86-64 a kernel may know each call by a second number, which has this bit.
#[cfg(target_arch = "x86_64")]
const SECOND: Option<i64> = Some(0x4000_0000);
#[cfg(not(target_arch = "x86_64"))]
const SECOND: Option<i64> = None;

/// Refuses the calls from now on, for this thread and those that it starts. The kernel demands that `no_new_privs` is
/// set before.
pub(super) fn refuse() -> Result<(), String> {
    let filter = filter().map_err(|error| error.to_string())?;
    apply_filter(&filter).map_err(|error| error.to_string())
}

fn filter() -> Result<BpfProgram, seccompiler::BackendError> {
    // A call with an empty list of rules is always refused.
    let mut rules: BTreeMap<i64, Vec<SeccompRule>> = REFUSED.iter().map(|call| (*call, Vec::new())).collect();
    let other =
        FAMILIES.map(|family| SeccompCondition::new(0, SeccompCmpArgLen::Dword, SeccompCmpOp::Ne, family as u64));
    let other = other.into_iter().collect::<Result<Vec<_>, _>>()?;
    rules.insert(libc::SYS_socket, vec![SeccompRule::new(other)?]);
    if let Some(second) = SECOND {
        let again: Vec<_> = rules.iter().map(|(call, rules)| (call | second, rules.clone())).collect();
        rules.extend(again);
    }
    let arch = std::env::consts::ARCH.try_into()?;
    SeccompFilter::new(rules, SeccompAction::Allow, SeccompAction::Errno(libc::EPERM as u32), arch)?.try_into()
}
