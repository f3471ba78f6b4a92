//! What a client and a level weigh.

/// Levels of a class.
pub(super) const NR_LEVELS: usize = 8;

/// The weight of a queue, in hundredths, for a client's weight and a level.
pub(super) const fn weight(client: u16, level: u8) -> u32 {
    core::debug_assert!(client > 0, "a client has a weight");
    let levels = NR_LEVELS as u8;
    let level = if level < levels { level } else { levels - 1 };
    client as u32 * (levels - level) as u32 * 10
}
