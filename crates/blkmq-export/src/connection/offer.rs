//! What a client is told of an export, and what its requests are checked against.

use blkmq_engine::Export;

use crate::nbd::command::Terms;
use crate::nbd::negotiation::{Agreement, Offer};
use crate::nbd::{MAX_PAYLOAD, transmission};

/// `terms`: what the client can ask of the export.
fn flags(export: &Export, terms: &blkmq_engine::Terms) -> u16 {
    let only = |holds: bool, flag: u16| if holds { flag } else { 0 };
    // If a device cannot write zeroes, they are written as data, and a fast request for zeroes is refused at once.
    let zeroes = transmission::SEND_WRITE_ZEROES | transmission::SEND_FAST_ZERO;
    let changes = if terms.is_read_only {
        transmission::READ_ONLY
    } else {
        zeroes | only(terms.can_discard, transmission::SEND_TRIM)
    };
    let rotational = only(export.queue.limits().rotational, transmission::ROTATIONAL);
    transmission::HAS_FLAGS | transmission::SEND_CACHE | promises(terms) | rotational | changes
}

/// What a client is told of the export. `most`: bytes that one connection may have in flight, at least 64 KiB.
/// `writes`: whether the client may write.
pub(super) fn offer(export: &Export, most: usize, writes: bool) -> Offer {
    let limits = export.queue.limits();
    let most = u32::try_from(most).unwrap_or(u32::MAX).min(MAX_PAYLOAD);
    let maximum = most - most % limits.logical_block_size;
    // A power of two that fits into one request. Clients assume 4096 anyway.
    let longest = 1 << maximum.ilog2();
    let preferred = limits.physical_block_size.max(limits.logical_block_size).clamp(4096, longest).next_power_of_two();
    let (name, description, terms) = (export.name.clone(), export.description.clone(), export.terms(writes));
    Offer { name, description, size: terms.size, flags: flags(export, &terms), preferred, maximum }
}

/// What the requests of a connection are checked against.
pub(super) fn terms(export: &Export, agreement: &Agreement) -> Terms {
    let &Agreement { ref offer, has_structured_replies, has_allocation, .. } = agreement;
    let (size, is_read_only) = (offer.size, offer.flags & transmission::READ_ONLY != 0);
    let export = blkmq_engine::Terms { size, is_read_only, ..export.terms(true) };
    Terms { export, maximum: offer.maximum, has_structured_replies, has_allocation }
}

/// Returns the flags that promise durability. The flags promise no more than the device can keep.
fn promises(terms: &blkmq_engine::Terms) -> u16 {
    // All connections share the queue, and a flush of the queue covers what any of them completed.
    let flush = if terms.can_flush { transmission::SEND_FLUSH | transmission::CAN_MULTI_CONN } else { 0 };
    if terms.can_fua { flush | transmission::SEND_FUA } else { flush }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns an export of a device, by its spec.
    fn export(device: &str) -> Export {
        let driver = blkmq::driver::spec::open(device).unwrap();
        Export::new("a", blkmq::RequestQueue::builder(driver).build().unwrap())
    }

    #[test]
    fn flags_say_what_the_device_can() {
        let everything = 0b1101_0110_1101;
        assert_eq!(offer(&export("ram,size=1M"), 1 << 26, true).flags, everything);
        let read_only = offer(&export("ram,size=1M").read_only(), 1 << 26, true).flags;
        assert_eq!(read_only, 0b0101_0000_1111);
        let disk = offer(&export("hdd"), 1 << 26, true).flags;
        assert_eq!(disk & transmission::ROTATIONAL, transmission::ROTATIONAL);
        assert_eq!(disk & transmission::SEND_TRIM, 0);
    }

    /// Red if a device without a cache, which keeps everything that completes, is reported to keep nothing, or if a
    /// device that cannot flush is reported to keep everything.
    #[test]
    fn a_flush_is_offered_where_it_means_something_or_nothing_is_volatile() {
        use transmission::{CAN_MULTI_CONN, SEND_FLUSH, SEND_FUA};
        for (write_cache, fua, no_flush, expected) in [
            (true, true, false, SEND_FLUSH | SEND_FUA | CAN_MULTI_CONN),
            (true, false, false, SEND_FLUSH | SEND_FUA | CAN_MULTI_CONN),
            (false, false, false, SEND_FLUSH | SEND_FUA | CAN_MULTI_CONN),
            (false, true, true, SEND_FUA),
            (false, false, true, 0),
        ] {
            let limits = blkmq::Limits { write_cache, fua, no_flush, ..blkmq::Limits::default() };
            assert_eq!(promises(&blkmq_engine::Terms::of(&limits)), expected, "{limits:?}");
        }
    }

    #[test]
    fn block_sizes_follow_the_device_and_what_a_connection_may_hold() {
        let told = offer(&export("ram,size=1M,bs=4K"), 1 << 26, true);
        assert_eq!((told.size, told.preferred, told.maximum), (1 << 20, 4096, 32 << 20));
        let told = offer(&export("ram,size=10000K,bs=512"), 100_000, true);
        assert_eq!((told.size, told.preferred, told.maximum), (10_240_000, 4096, 99_840));
    }
}
