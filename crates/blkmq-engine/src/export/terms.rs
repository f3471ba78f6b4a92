//! What can be asked of an export.

use blkmq::{Flags, Limits, Op};

use super::Export;
use crate::ask::Ask;
use crate::failure::{Cause, Failure};

/// What can be asked of an export.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Terms {
    /// The size in bytes: all whole blocks of the device, without the part that the device lacks of its last block.
    pub size: u64,
    /// Bytes of a block, a power of two.
    pub block: u32,
    /// Whether nothing can be written.
    pub is_read_only: bool,
    /// Whether a flush makes completed data durable.
    pub can_flush: bool,
    /// Whether a write can be over only when it is durable.
    pub can_fua: bool,
    /// Whether the device discards.
    pub can_discard: bool,
    /// Whether the device makes zeroes that are not sent to it. Otherwise they are written as data.
    pub can_zero: bool,
}

impl Export {
    /// What can be asked of the export now. `writes`: whether the client may write.
    #[must_use]
    pub fn terms(&self, writes: bool) -> Terms {
        let limits = self.queue.limits();
        let bytes = limits.size_bytes();
        let whole = bytes - bytes % u64::from(limits.logical_block_size);
        Terms {
            size: if limits.missing_bytes > 0 { bytes } else { whole },
            is_read_only: self.read_only || limits.read_only || !writes,
            ..Terms::of(&limits)
        }
    }
}

impl Terms {
    /// What can be asked of a device with these limits, by a client that may write.
    #[must_use]
    pub fn of(limits: &Limits) -> Self {
        let fua = Flags { fua: true, ..Flags::NONE };
        Self {
            size: limits.size_bytes(),
            block: limits.logical_block_size,
            is_read_only: limits.read_only,
            can_flush: limits.check_durability(Op::Flush, &Flags::NONE).is_ok(),
            can_fua: limits.check_durability(Op::Write, &fua).is_ok(),
            can_discard: limits.max_discard_sectors > 0,
            can_zero: limits.max_write_zeroes_sectors > 0,
        }
    }

    /// Whether a request can be done, for a front-end whose protocol has no words of its own for what is wrong.
    ///
    /// # Errors
    /// What is wrong with the request, and what would be right.
    pub fn check(&self, ask: Ask, offset: u64, length: u64) -> Result<(), Failure> {
        let refuse = |cause, message: &'static str| Err(Failure::new(cause, message));
        if ask.changes() && self.is_read_only {
            return refuse(Cause::NotPermitted, "the export is read-only");
        }
        match ask {
            Ask::Flush if !self.can_flush => {
                return refuse(Cause::Unsupported, "the device behind the export cannot flush");
            }
            Ask::Flush | Ask::Tell { .. } => return Ok(()),
            Ask::Discard { .. } if !self.can_discard => {
                return refuse(Cause::Unsupported, "the device cannot discard");
            }
            Ask::WriteZeroes { fast: true, .. } if !self.can_zero => {
                return refuse(Cause::Unsupported, "these zeroes would take as long as writing them");
            }
            Ask::Write { fua: true } | Ask::Discard { fua: true } | Ask::WriteZeroes { fua: true, .. }
                if !self.can_fua =>
            {
                return refuse(Cause::Unsupported, "the device behind the export has no FUA");
            }
            _ => (),
        }
        if offset.checked_add(length).is_none_or(|end| end > self.size) {
            let message = format!("{length} bytes at {offset} reach beyond the end at {}", self.size);
            return Err(Failure::new(Cause::Invalid, message));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::export::tests::export;

    /// Red if what a device or an export cannot do is not refused, or if a range that ends past the end is accepted.
    #[test]
    #[cfg_attr(miri, ignore = "there are no descriptors")]
    fn what_cannot_be_done_is_refused_with_its_cause() {
        let terms = export("ram,size=1M").terms(true);
        assert_eq!((terms.size, terms.is_read_only), (1 << 20, false));
        let cause = |terms: &Terms, ask, offset, length| terms.check(ask, offset, length).err().map(|no| no.cause);
        let (write, discard) = (Ask::Write { fua: true }, Ask::Discard { fua: false });
        let fast = Ask::WriteZeroes { fua: false, no_hole: false, fast: true };
        for ask in [Ask::Read, write, discard, fast, Ask::Cache] {
            assert_eq!(cause(&terms, ask, 0, 1 << 20), None, "{ask:?}");
            assert_eq!(cause(&terms, ask, 512, 1 << 20), Some(Cause::Invalid), "{ask:?}");
            assert_eq!(cause(&terms, ask, u64::MAX, 512), Some(Cause::Invalid), "{ask:?}");
        }
        assert_eq!(cause(&terms, Ask::Flush, u64::MAX, 1), None, "it has no range");
        let reader = export("ram,size=1M").terms(false);
        for (ask, expected) in [(Ask::Read, None), (Ask::Flush, None), (discard, Some(Cause::NotPermitted))] {
            assert_eq!(cause(&reader, ask, 0, 512), expected, "{ask:?}");
        }
        let plain = Terms { can_flush: false, can_fua: false, can_discard: false, can_zero: false, ..terms };
        for ask in [Ask::Flush, write, discard, fast] {
            assert_eq!(cause(&plain, ask, 0, 512), Some(Cause::Unsupported), "{ask:?}");
        }
        assert_eq!(cause(&plain, Ask::WriteZeroes { fua: false, no_hole: false, fast: false }, 0, 512), None);
    }
}
