//! The files that a server maps although it trusts no front-end.
//!
//! A mapped file can stop or end this process: a page that its file system does not deliver stops the thread that
//! touches it, with the requests of the thread and its turns at blocks, and a page behind the end of the file is a
//! SIGBUS. Pages of tmpfs and hugetlbfs come from the kernel alone, and a file that is sealed against shrinking keeps
//! its pages. Files on a mounted tmpfs or hugetlbfs cannot be sealed, so they are accepted as they are.

use std::os::fd::OwnedFd;

use rustix::fs::{MemfdFlags, SealFlags, fcntl_get_seals, fstat, fstatfs, memfd_create};

/// The magic number of hugetlbfs, as statfs(2) has it.
const HUGETLBFS: u64 = 0x958458f6;
/// Where the flags of a memfd have the binary logarithm of the size of its pages.
const PAGE_SHIFT: u32 = 26;

/// Why a file is not mapped.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Unfit {
    /// It lies neither on tmpfs nor on hugetlbfs.
    #[error("lies neither on tmpfs nor on hugetlbfs; use shared memory, or set any_memory=1")]
    Elsewhere,
    /// It is a memfd that can be cut short.
    #[error("is a memfd without F_SEAL_SHRINK; seal it, or set any_memory=1")]
    Unsealed,
}

/// Whether the file's memory may be mapped. Waits for no file system.
pub(crate) fn check(file: &OwnedFd) -> Result<(), Unfit> {
    // The kernel has seals for regular files on tmpfs and hugetlbfs only. Other file systems are not asked for
    // anything, as they would be by statfs(2): one in user space need not answer.
    let seals = fcntl_get_seals(file).map_err(|_| Unfit::Elsewhere)?;
    if seals.contains(SealFlags::SHRINK) {
        return Ok(());
    }
    // Files that cannot be sealed have this seal: those on a mount, and memfds that were made so.
    if !seals.contains(SealFlags::SEAL) || is_memfd(file) { Err(Unfit::Unsealed) } else { Ok(()) }
}

/// Whether the file lies where the kernel makes memfds: on a mount of its own for each size of pages. True if that
/// cannot be told.
fn is_memfd(file: &OwnedFd) -> bool {
    let (Ok(found), Ok(system)) = (fstat(file), fstatfs(file)) else { return true };
    let mut flags = MemfdFlags::CLOEXEC;
    if system.f_type as u64 == HUGETLBFS {
        let shift = (system.f_bsize as u64).trailing_zeros();
        flags |= MemfdFlags::HUGETLB | MemfdFlags::from_bits_retain(shift << PAGE_SHIFT);
    }
    !memfd_create("blkmq-kind", flags).and_then(fstat).is_ok_and(|own| own.st_dev != found.st_dev)
}

#[cfg(test)]
mod tests {
    use std::fs::{File, OpenOptions};
    use std::os::fd::AsFd;
    use std::path::Path;

    use rustix::fs::fcntl_add_seals;

    use super::*;

    fn memfd(flags: MemfdFlags, seals: SealFlags) -> Option<OwnedFd> {
        let file = memfd_create("guest", MemfdFlags::CLOEXEC | flags).ok()?;
        if !seals.is_empty() {
            fcntl_add_seals(&file, seals).unwrap();
        }
        Some(file)
    }

    /// Red if a memfd is accepted that its owner can cut short, which ends the process, or if one that QEMU makes, or a
    /// file in /dev/shm as QEMU makes it, is refused.
    #[test]
    fn a_memfd_has_to_be_sealed_against_shrinking() {
        let (sealing, none) = (MemfdFlags::ALLOW_SEALING, SealFlags::empty());
        for huge in [MemfdFlags::empty(), MemfdFlags::HUGETLB] {
            if memfd(huge, none).is_none() {
                println!("SKIP this kernel makes no memfd with {huge:?}");
                continue;
            }
            let of = |flags, seals| check(&memfd(flags | huge, seals).unwrap());
            assert_eq!(of(MemfdFlags::empty(), none), Err(Unfit::Unsealed), "nobody can seal it");
            assert_eq!(of(sealing, none), Err(Unfit::Unsealed));
            assert_eq!(of(sealing, SealFlags::GROW | SealFlags::SEAL), Err(Unfit::Unsealed), "it can shrink");
            assert_eq!(of(sealing, SealFlags::SHRINK), Ok(()));
            assert_eq!(of(sealing, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL), Ok(()), "as of QEMU");
        }
        match tempfile::tempfile_in("/dev/shm") {
            Ok(file) => assert_eq!(check(&file.into()), Ok(()), "as memory-backend-file there"),
            Err(error) => println!("SKIP there is no file in /dev/shm: {error}"),
        }
    }

    /// Red if memory is accepted whose pages another process delivers, or a device.
    #[test]
    fn memory_lies_on_tmpfs_or_hugetlbfs() {
        let program = std::env::current_exe().unwrap();
        let mut others = vec![File::open("/proc/self/status").unwrap()];
        others.extend(OpenOptions::new().read(true).write(true).open("/dev/zero"));
        let program = File::open(program).unwrap();
        // As long as the program itself is not on tmpfs.
        if fcntl_get_seals(program.as_fd()).is_err() {
            others.push(program);
        }
        for file in others {
            assert_eq!(check(&file.into()), Err(Unfit::Elsewhere));
        }
        assert!(Path::new("/dev/zero").exists(), "a device on a file system that calls itself tmpfs was tried");
    }
}
