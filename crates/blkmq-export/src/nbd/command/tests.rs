use super::*;

const TERMS: Terms = Terms {
    export: blkmq_engine::Terms {
        size: SIZE,
        block: 4096,
        is_read_only: false,
        can_flush: true,
        can_fua: true,
        can_discard: true,
        can_zero: true,
    },
    maximum: 65536,
    has_structured_replies: true,
    has_allocation: true,
};
const SIZE: u64 = 1 << 20;

/// The terms of another export.
fn terms(change: impl FnOnce(&mut blkmq_engine::Terms)) -> Terms {
    let mut terms = TERMS;
    change(&mut terms.export);
    terms
}

fn request(kind: u16, flags: u16, offset: u64, length: u32) -> Request {
    Request { flags, kind, cookie: 7, offset, length }
}

fn cause(request: Request, terms: &Terms) -> Option<Cause> {
    terms.check(&request).err().map(|failure| failure.cause)
}

#[test]
fn ranges_end_at_the_end_and_sums_do_not_overflow() {
    for (kind, beyond) in [
        (commands::READ, Cause::Invalid),
        (commands::WRITE, Cause::NoSpace),
        (commands::TRIM, Cause::Invalid),
        (commands::CACHE, Cause::Invalid),
        (commands::WRITE_ZEROES, Cause::NoSpace),
        (commands::BLOCK_STATUS, Cause::Invalid),
    ] {
        assert_eq!(cause(request(kind, 0, SIZE - 4096, 4096), &TERMS), None, "{kind}");
        for (offset, length) in [(SIZE - 4096, 8192), (SIZE - 3, 4), (SIZE, 1), (u64::MAX, u32::MAX), (u64::MAX, 1)] {
            assert_eq!(cause(request(kind, 0, offset, length), &TERMS), Some(beyond), "{kind}: {length} at {offset}");
        }
        for (offset, length) in [(512, 4096), (0, 512), (4095, 1), (SIZE - 3, 3)] {
            assert_eq!(cause(request(kind, 0, offset, length), &TERMS), None, "{kind}: any bytes will do");
        }
    }
    // Neither has a range.
    assert_eq!(TERMS.check(&request(commands::FLUSH, 0, u64::MAX, 3)), Ok(Command::Operation(Ask::Flush)));
    assert_eq!(TERMS.check(&request(commands::DISC, 0, u64::MAX, 3)), Ok(Command::Disconnect));
}

#[test]
fn a_length_of_zero_is_done_at_once_where_that_means_something() {
    for kind in [commands::READ, commands::WRITE, commands::TRIM, commands::CACHE, commands::WRITE_ZEROES] {
        assert_eq!(cause(request(kind, 0, SIZE, 0), &TERMS), None);
        assert!(cause(request(kind, 0, SIZE + 4096, 0), &TERMS).is_some());
    }
    assert_eq!(cause(request(commands::BLOCK_STATUS, 0, 0, 0), &TERMS), Some(Cause::Invalid));
}

#[test]
fn only_what_carries_data_is_bounded() {
    for kind in [commands::READ, commands::WRITE] {
        assert_eq!(cause(request(kind, 0, 0, 65536), &TERMS), None);
        assert_eq!(cause(request(kind, 0, 0, 69632), &TERMS), Some(Cause::Invalid));
    }
    for kind in [commands::TRIM, commands::CACHE, commands::WRITE_ZEROES, commands::BLOCK_STATUS] {
        assert_eq!(cause(request(kind, 0, 0, 1 << 20), &TERMS), None);
    }
}

#[test]
fn a_flag_goes_with_its_command_only() {
    let own = |kind, flag| match flag {
        // A client that leaves cannot be refused.
        _ if kind == commands::DISC => true,
        command_flags::FUA => true,
        command_flags::DF => kind == commands::READ,
        command_flags::NO_HOLE | command_flags::FAST_ZERO => kind == commands::WRITE_ZEROES,
        command_flags::REQ_ONE => kind == commands::BLOCK_STATUS,
        _ => false,
    };
    for kind in commands::READ..=commands::BLOCK_STATUS {
        for bit in 0..16 {
            let error = cause(request(kind, 1 << bit, 0, 4096), &TERMS);
            let expected = (!own(kind, 1 << bit)).then_some(Cause::Invalid);
            assert_eq!(error, expected, "type {kind}, bit {bit}");
        }
    }
    let simple = Terms { has_structured_replies: false, ..TERMS };
    assert_eq!(cause(request(commands::READ, command_flags::DF, 0, 4096), &simple), Some(Cause::Invalid));
    assert_eq!(cause(request(8, 0, 0, 4096), &TERMS), Some(Cause::Invalid));
}

#[test]
fn a_read_only_export_says_so_before_anything_else_about_the_range() {
    let terms = terms(|export| export.is_read_only = true);
    for kind in [commands::WRITE, commands::TRIM, commands::WRITE_ZEROES] {
        assert_eq!(cause(request(kind, 0, u64::MAX, 1), &terms), Some(Cause::NotPermitted));
    }
    for kind in [commands::READ, commands::FLUSH, commands::CACHE, commands::BLOCK_STATUS] {
        assert_eq!(cause(request(kind, 0, 0, 4096), &terms), None);
    }
}

/// Red if a flag gets lost, if a device that cannot make zeroes is asked to make them, or if a client that wants zeroes
/// fast or not at all gets them slowly: as data, or by the change of a part of a block.
#[test]
fn zeroes_are_written_where_the_device_cannot_make_them() {
    let zeroes = |flags, terms: &Terms| terms.check(&request(commands::WRITE_ZEROES, flags, 0, 4096));
    let by_hand = terms(|export| export.can_zero = false);
    let (no_hole, fast, fua) = (command_flags::NO_HOLE, command_flags::FAST_ZERO, command_flags::FUA);
    let made = |flags: u16| {
        let has = |flag| flags & flag != 0;
        Ok(Command::Operation(Ask::WriteZeroes { fua: has(fua), fast: has(fast), no_hole: has(no_hole) }))
    };
    for flags in [0, no_hole, fast, fua, fast | fua, fast | no_hole] {
        assert_eq!(zeroes(flags, &TERMS), made(flags));
    }
    let written = |no_hole| Ok(Command::Operation(Ask::WriteZeroes { fua: false, fast: false, no_hole }));
    assert_eq!([zeroes(0, &by_hand), zeroes(no_hole, &by_hand)], [written(false), written(true)]);
    let part = TERMS.check(&request(commands::WRITE_ZEROES, fast, 4096, 512));
    for refused in [zeroes(fast, &by_hand), part] {
        assert_eq!(refused.expect_err("it is not fast").cause, Cause::Unsupported);
    }
}

/// Red if the flag for one extent is refused, is left out of the command, or is there unasked.
#[test]
fn a_block_status_is_of_one_extent_or_of_many() {
    for (flags, max_extents) in [(0, MAX_EXTENTS), (command_flags::REQ_ONE, 1)] {
        let checked = TERMS.check(&request(commands::BLOCK_STATUS, flags, 0, 4096));
        assert_eq!(checked, Ok(Command::BlockStatus { max_extents }));
    }
}

/// Red if a request whose promise cannot be kept is answered with success.
#[test]
fn what_the_device_cannot_make_durable_is_refused() {
    let fua_alone = terms(|export| export.can_flush = false);
    let neither = terms(|export| (export.can_flush, export.can_fua) = (false, false));
    for (terms, has_fua) in [(&fua_alone, true), (&neither, false)] {
        let flush = terms.check(&request(commands::FLUSH, 0, 0, 0)).expect_err("there is none");
        assert_eq!((flush.cause, flush.message.contains("cannot flush")), (Cause::Invalid, true), "{}", flush.message);
        for kind in [commands::WRITE, commands::TRIM, commands::WRITE_ZEROES, commands::READ] {
            let failure = terms.check(&request(kind, command_flags::FUA, 0, 4096)).err();
            let message = failure.map(|failure| (failure.cause, failure.message.contains("no FUA")));
            assert_eq!(message, (!has_fua).then_some((Cause::Invalid, true)), "{kind}");
            assert_eq!(cause(request(kind, 0, 0, 4096), terms), None);
        }
    }
}

#[test]
fn what_was_not_agreed_on_is_refused() {
    let terms = Terms { has_allocation: false, ..terms(|export| export.can_discard = false) };
    assert_eq!(cause(request(commands::TRIM, 0, 0, 4096), &terms), Some(Cause::Invalid));
    assert_eq!(cause(request(commands::BLOCK_STATUS, 0, 0, 4096), &terms), Some(Cause::Invalid));
}
