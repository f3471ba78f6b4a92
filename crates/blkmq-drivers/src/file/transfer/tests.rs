//! Transfers without a kernel: what is asked next after each answer.

use super::super::registered::Memory;
use super::*;

/// A transfer of pieces of these lengths at invalid addresses, which no code follows.
fn transfer(lens: &[usize]) -> Transfer {
    let piece = |(number, len): (usize, &usize)| libc::iovec {
        iov_base: std::ptr::without_provenance_mut(0x10000 * (number + 1)),
        iov_len: *len,
    };
    Transfer {
        task: Task::Write,
        bytes: lens.iter().sum::<usize>() as u64,
        offset: 4096,
        pieces: lens.iter().enumerate().map(piece).collect(),
        ..Transfer::new()
    }
}

fn left(transfer: &Transfer) -> (u64, Vec<(usize, usize)>) {
    let pieces = &transfer.pieces[transfer.through..];
    (transfer.offset, pieces.iter().map(|piece| (piece.iov_base as usize, piece.iov_len)).collect())
}

#[test]
fn a_short_transfer_goes_on_where_it_stopped() {
    let mut transfer = transfer(&[512, 1024, 512]);
    assert_eq!(transfer.answered(512), None);
    assert_eq!(left(&transfer), (4608, vec![(0x20000, 1024), (0x30000, 512)]));
    assert_eq!(transfer.answered(100), None);
    assert_eq!(left(&transfer), (4708, vec![(0x20064, 924), (0x30000, 512)]));
    assert_eq!(transfer.answered(-libc::ECANCELED), None);
    assert_eq!(left(&transfer).1.len(), 2, "what was cancelled is asked for again as it was");
    assert_eq!(transfer.answered(1436), Some(Status::Ok));
}

#[test]
fn direct_io_goes_on_at_a_whole_block() {
    let mut transfer = Transfer { block: 512, ..transfer(&[1024, 1024]) };
    assert_eq!(transfer.answered(1300), None);
    assert_eq!(left(&transfer), (5120, vec![(0x20000, 1024)]));
    assert_eq!(transfer.answered(600), None);
    assert_eq!(left(&transfer), (5632, vec![(0x20200, 512)]));
    assert_eq!(transfer.answered(512), Some(Status::Ok));
}

/// The rest of a transfer of registered memory uses the slot, until the kernel puts the transfer off.
#[test]
fn registered_memory_is_named_by_its_slot() {
    let opcode = |transfer: &Transfer| {
        let shown = format!("{:?}", transfer.entry());
        shown.split("op_code: ").nth(1).and_then(|rest| rest.split(',').next()?.parse().ok())
    };
    let mut table = Table::default();
    table.set(3, Some(Memory { start: 0x10000, len: 4096 }));
    for (task, there, elsewhere) in [
        (Task::Read, opcode::ReadFixed::CODE, [opcode::Read::CODE, opcode::Readv::CODE]),
        (Task::Write, opcode::WriteFixed::CODE, [opcode::Write::CODE, opcode::Writev::CODE]),
    ] {
        let mut transfer = Transfer { task, ..transfer(&[4096]) };
        assert_eq!(opcode(&transfer), Some(elsewhere[0]), "nobody has looked it up");
        transfer.look_up(&table);
        assert_eq!((opcode(&transfer), transfer.answered(512)), (Some(there), None));
        assert_eq!((opcode(&transfer), left(&transfer)), (Some(there), (4608, vec![(0x10200, 3584)])));
        assert_eq!(transfer.answered(-libc::EFAULT), None);
        assert_eq!(opcode(&transfer), Some(elsewhere[0]));
        for lens in [&[4097][..], &[4096, 4096]] {
            let mut transfer = Transfer { task, ..self::transfer(lens) };
            transfer.look_up(&table);
            assert_eq!(opcode(&transfer), Some(elsewhere[lens.len() - 1]), "of pieces {lens:?}");
        }
    }
}

#[test]
fn a_file_that_has_become_shorter_is_an_error_and_no_endless_loop() {
    assert_eq!(transfer(&[512]).answered(0), Some(Status::IoError));
}

/// Red if the kernel is asked for the rest forever.
#[test]
fn a_file_that_ends_within_a_block_is_an_error() {
    let mut transfer = Transfer { block: 512, ..transfer(&[1024]) };
    assert_eq!(transfer.answered(700), None);
    for _ in 0..MOST_TRIES {
        assert_eq!(transfer.answered(188), None);
    }
    assert_eq!(transfer.answered(188), Some(Status::IoError));
}

/// Red if the kernel is asked forever for an operation that it puts off.
#[test]
fn what_is_put_off_again_and_again_fails_at_last() {
    let mut transfer = transfer(&[512, 512]);
    for errno in [libc::EAGAIN, libc::EFAULT] {
        for _ in 0..MOST_TRIES {
            assert_eq!(transfer.answered(-errno), None);
        }
        if errno == libc::EAGAIN {
            assert_eq!(transfer.answered(512), None, "from here on it counts anew");
        }
    }
    assert_eq!(transfer.answered(-libc::EFAULT), Some(Status::IoError));
}

/// Red if the reply to a discard or to zeroes with FUA does not wait for a sync, or if the reply to a write that
/// needs a sync does not; or if the sync comes before all is written.
#[test]
fn what_a_sync_is_to_make_durable_is_synced_when_it_is_done() {
    for (task, bytes, done) in [(Task::Range(ZERO, None), 0, &[0][..]), (Task::Write, 1024, &[512, 512])] {
        for (is_synced_behind, next) in [(true, None), (false, Some(Status::Ok))] {
            let mut transfer = Transfer { task, is_synced_behind, ..transfer(&[bytes]) };
            let (last, parts) = done.split_last().expect("there is one");
            for part in parts {
                assert_eq!((transfer.answered(*part), transfer.task), (None, task));
            }
            assert_eq!(transfer.answered(*last), next);
            if is_synced_behind {
                assert_eq!(transfer.task, Task::Sync);
                assert_eq!(transfer.answered(0), Some(Status::Ok));
            }
        }
    }
}

/// Red if no zeroes are written on a file system that knows no holes, or if zeroes that must leave no hole leave
/// one.
#[test]
fn a_hole_falls_back_to_zeroes_and_zeroes_to_nothing() {
    let mut transfer = transfer(&[]);
    transfer.task = Task::Range(PUNCH, Some(ZERO));
    assert_eq!(transfer.answered(-libc::EOPNOTSUPP), None);
    assert_eq!(transfer.task, Task::Range(ZERO, None));
    assert_eq!(transfer.answered(-libc::EOPNOTSUPP), Some(Status::Unsupported));
    transfer.task = Task::Range(PUNCH, Some(ZERO));
    assert_eq!(transfer.answered(-libc::EIO), Some(Status::IoError));
}
