//! Filters of system calls.

use seccompiler::{BpfProgram, SeccompAction, SeccompFilter};

/// A filter with which the kernel refuses a system call.
pub(crate) fn filter_of(call: i64) -> BpfProgram {
    let rules = [(call, Vec::new())].into_iter().collect();
    let arch = std::env::consts::ARCH.try_into().expect("the crate knows this processor");
    let refuse = SeccompAction::Errno(libc::EPERM as u32);
    let filter = SeccompFilter::new(rules, SeccompAction::Allow, refuse, arch).expect("it makes sense");
    filter.try_into().expect("it is short")
}
