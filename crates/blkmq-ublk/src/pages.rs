//! The data of a queue's requests where the kernel has it: zero copy.

use std::sync::Arc;

use blkmq::Limits;
use blkmq::SECTOR_SIZE;
use blkmq::pages::Command;
use blkmq::pages::PageSource;

use crate::abi::{IoCommand, feature, io as command};
use crate::character::Number;
use crate::error::Error;

/// What zero copy needs of the kernel: the pages of a request are put into the table of another ring than the queue's,
/// by another thread than the queue's.
const NEEDED: u64 = feature::SUPPORT_ZERO_COPY | feature::BUF_REG_OFF_DAEMON;

/// Whether the data of requests can stay where it is, between a kernel with these features and a device with these
/// limits.
pub(crate) fn check(features: u64, limits: &Limits) -> Result<(), Error> {
    if features & NEEDED != NEEDED {
        return Err(Error::NoZeroCopy);
    }
    match limits.pages_align {
        0 => Err(Error::NeedsMemory),
        // The kernel takes data at any multiple of a sector from its users, unless it is told otherwise.
        align if align > SECTOR_SIZE as u32 => Err(Error::PagesAlign(align)),
        _ => Ok(()),
    }
}

/// Builds the commands that register and unregister the pages of a queue's requests, by tag.
#[derive(Debug)]
pub(crate) struct Pages {
    number: Arc<Number>,
    queue: u16,
}

impl Pages {
    pub(crate) fn new(number: Arc<Number>, queue: u16) -> Self {
        Self { number, queue }
    }

    fn command(&self, op: u32, tag: u32, slot: u16) -> Command {
        let command = IoCommand { q_id: self.queue, tag: tag as u16, result: 0, addr: slot.into() };
        Command { file: self.number.raw(), op, bytes: command.to_bytes() }
    }
}

impl PageSource for Pages {
    fn register(&self, tag: u32, slot: u16) -> Command {
        self.command(command::REGISTER_IO_BUF, tag, slot)
    }

    fn unregister(&self, tag: u32, slot: u16) -> Command {
        self.command(command::UNREGISTER_IO_BUF, tag, slot)
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsRawFd;

    use super::*;
    use crate::character::Character;

    /// Red if zero copy begins where the kernel or the device cannot do it.
    #[test]
    fn each_side_has_to_be_able_to() {
        let all = u64::MAX;
        let limits = |pages_align| Limits { pages_align, ..Limits::default() };
        assert!([1, 4, 512].iter().all(|align| check(all, &limits(*align)).is_ok()));
        for lacking in [feature::SUPPORT_ZERO_COPY, feature::BUF_REG_OFF_DAEMON] {
            assert!(matches!(check(all & !lacking, &limits(4)), Err(Error::NoZeroCopy)));
        }
        assert!(matches!(check(all, &limits(0)), Err(Error::NeedsMemory)));
        assert!(matches!(check(all, &limits(4096)), Err(Error::PagesAlign(4096))));
    }

    /// Red if a command is for another request or slot, or does not keep the number of the device, once that is closed.
    #[test]
    #[cfg_attr(miri, ignore = "there are no files")]
    fn commands_name_the_request_and_the_slot() {
        let character = Character::new(tempfile::tempfile().unwrap().into()).unwrap();
        let (file, pages) = (character.number().raw(), Pages::new(Arc::clone(character.number()), 3));
        drop(character);
        let bytes = IoCommand { q_id: 3, tag: 4095, result: 0, addr: 70 }.to_bytes();
        let expected = |op| Command { file, op, bytes };
        assert_eq!(pages.register(4095, 70), expected(command::REGISTER_IO_BUF));
        assert_eq!(pages.unregister(4095, 70), expected(command::UNREGISTER_IO_BUF));
        let others: Vec<_> = (0..64).map(|_| tempfile::tempfile().unwrap()).collect();
        assert!(others.iter().all(|other| other.as_raw_fd() != file), "no other file gets the number");
    }
}
