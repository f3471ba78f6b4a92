//! What the block device is told to be like: the queue's limits in the kernel's words.

use blkmq::Limits;
use blkmq::SECTOR_SIZE;

use crate::abi::{Parameters, attribute, parameter};
use crate::error::Error;

/// Bytes of the largest read or write, unless the device's limit is lower.
pub(crate) const MOST_BYTES: u32 = 512 << 10;

/// Bytes of the largest read or write of a device with these limits: whole pages of so many bytes, as the kernel wants
/// them.
pub(crate) fn most_bytes(limits: &Limits, page: u32) -> u32 {
    let most = limits.max_sectors.saturating_mul(SECTOR_SIZE as u32).min(MOST_BYTES);
    (most - most % page).max(page)
}

/// The parameters of the block device. `page`: bytes of the kernel's pages, and of the largest logical blocks that it
/// takes.
///
/// What the queue cannot do is not offered. Durable writes are offered only if the device has them, since otherwise the
/// kernel does the flush behind them as well.
pub(crate) fn parameters(limits: &Limits, page: u32, read_only: bool) -> Result<Parameters, Error> {
    if limits.logical_block_size > page {
        return Err(Error::LogicalBlock(limits.logical_block_size, page));
    }
    if limits.missing_bytes > 0 && limits.whole_sectors() == 0 {
        return Err(Error::NoBlock(limits.size_bytes()));
    }
    let shift = |bytes: u32| bytes.max(SECTOR_SIZE as u32).ilog2() as u8;
    let read_only = read_only || limits.read_only;
    let attributes = [
        (read_only, attribute::READ_ONLY),
        (limits.rotational, attribute::ROTATIONAL),
        (limits.write_cache, attribute::VOLATILE_CACHE),
        (limits.write_cache && limits.fua, attribute::FUA),
    ];
    let attrs = attributes.iter().filter(|(is_so, _)| *is_so).fold(0, |attrs, (_, attribute)| attrs | attribute);
    let physical = limits.physical_block_size.max(limits.logical_block_size);
    let discard = if read_only { 0 } else { limits.max_discard_sectors };
    let zeroes = if read_only { 0 } else { limits.max_write_zeroes_sectors };
    let has_ranges = discard > 0 || zeroes > 0;
    Ok(Parameters {
        types: if has_ranges { parameter::BASIC | parameter::DISCARD } else { parameter::BASIC },
        attrs,
        logical_bs_shift: shift(limits.logical_block_size),
        physical_bs_shift: shift(physical),
        io_opt_shift: shift(physical),
        io_min_shift: shift(physical),
        max_sectors: most_bytes(limits, page) / SECTOR_SIZE as u32,
        chunk_sectors: limits.boundary_sectors,
        dev_sectors: limits.whole_sectors(),
        discard_granularity: if has_ranges { physical } else { 0 },
        max_discard_sectors: discard,
        max_write_zeroes_sectors: zeroes,
        // The kernel takes no other number yet.
        max_discard_segments: u16::from(has_ranges),
    })
}

/// What a device that exists, with parameters `old`, may not have otherwise if its server is to be replaced.
pub(crate) fn difference(old: &Parameters, new: &Parameters) -> Option<String> {
    let differs = |what: &str, old: u64, new: u64| Some(format!("{what} were {old}, and are {new}"));
    if old.dev_sectors > new.dev_sectors {
        return differs("sectors", old.dev_sectors, new.dev_sectors);
    }
    if old.logical_bs_shift < new.logical_bs_shift {
        return differs("bytes of a logical block", 1 << old.logical_bs_shift, 1 << new.logical_bs_shift);
    }
    if (old.attrs ^ new.attrs) & attribute::READ_ONLY & new.attrs != 0 {
        return Some("it could be written, and what is behind it cannot".to_owned());
    }
    if new.attrs & !old.attrs & attribute::VOLATILE_CACHE != 0 {
        return Some("what was written needed no flush, and needs one now".to_owned());
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn limits() -> Limits {
        Limits { capacity_sectors: 1 << 21, max_sectors: 512, physical_block_size: 4096, ..Limits::default() }
    }

    fn of(limits: &Limits) -> Parameters {
        parameters(limits, 4096, false).unwrap()
    }

    /// Red if the block device is told to have what the queue lacks, or to lack what it has.
    #[test]
    fn the_block_device_has_what_the_queue_has_and_nothing_else() {
        let plain = of(&limits());
        assert_eq!((plain.types, plain.attrs, plain.max_sectors), (parameter::BASIC, 0, 512));
        assert_eq!((plain.logical_bs_shift, plain.physical_bs_shift, plain.dev_sectors), (9, 12, 1 << 21));
        assert_eq!((plain.max_discard_segments, plain.discard_granularity), (0, 0));
        let cached = of(&Limits { write_cache: true, fua: true, rotational: true, ..limits() });
        assert_eq!(cached.attrs, attribute::VOLATILE_CACHE | attribute::FUA | attribute::ROTATIONAL);
        // Without a cache there is nothing to flush, and a device that cannot be flushed is not asked to.
        assert_eq!(of(&Limits { fua: true, no_flush: true, ..limits() }).attrs, 0);
        let ranges = of(&Limits { max_discard_sectors: 8, max_write_zeroes_sectors: 16, ..limits() });
        assert_eq!(ranges.types, parameter::BASIC | parameter::DISCARD);
        assert_eq!(
            (ranges.max_discard_sectors, ranges.max_write_zeroes_sectors, ranges.max_discard_segments),
            (8, 16, 1)
        );
        assert_eq!(ranges.discard_granularity, 4096);
        let kept = Limits { read_only: true, max_discard_sectors: 8, ..limits() };
        assert_eq!((of(&kept).attrs, of(&kept).types), (attribute::READ_ONLY, parameter::BASIC));
    }

    #[test]
    fn requests_are_whole_pages_and_no_longer_than_a_buffer() {
        let most = |max_sectors| most_bytes(&Limits { max_sectors, ..limits() }, 4096);
        assert_eq!([1, 8, 15, 512, 1 << 20, u32::MAX].map(most), [4096, 4096, 4096, 1 << 18, 1 << 19, 1 << 19]);
        assert_eq!(most_bytes(&Limits { max_sectors: 300, ..limits() }, 1 << 16), 2 << 16);
    }

    #[test]
    fn blocks_that_the_kernel_does_not_take_are_refused() {
        let large = Limits { logical_block_size: 8192, ..limits() };
        assert!(matches!(parameters(&large, 4096, false), Err(Error::LogicalBlock(8192, 4096))));
        assert!(parameters(&large, 1 << 14, false).is_ok());
    }

    /// Red before a device that ends within a sector had that sector in the block device, and lost what was written
    /// there.
    #[test]
    fn the_block_device_has_no_part_of_a_sector() {
        let with = |capacity_sectors| Limits { capacity_sectors, missing_bytes: 24, ..Limits::default() };
        assert_eq!(of(&with(2)).dev_sectors, 1);
        assert!(matches!(parameters(&with(1), 4096, false), Err(Error::NoBlock(488))));
    }

    /// Red if a server could take over a device whose users would then see another one.
    #[test]
    fn a_device_is_taken_over_only_by_one_that_keeps_its_promises() {
        let old = of(&Limits { max_discard_sectors: 8, ..limits() });
        assert_eq!(difference(&old, &old), None);
        assert_eq!(difference(&old, &Parameters { dev_sectors: 1 << 22, ..old }), None, "it may have grown");
        let smaller = difference(&old, &Parameters { dev_sectors: 8, ..old }).unwrap();
        assert_eq!(smaller, "sectors were 2097152, and are 8");
        let others = [
            Parameters { logical_bs_shift: 12, ..old },
            Parameters { attrs: attribute::READ_ONLY, ..old },
            Parameters { attrs: attribute::VOLATILE_CACHE, ..old },
        ];
        assert!(others.iter().all(|new| difference(&old, new).is_some()));
    }
}
