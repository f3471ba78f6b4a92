//! Numbers that a seed decides: the splitmix64 generator.

const STEP: u64 = 0x9E37_79B9_7F4A_7C15;

/// The next number of the sequence that `state` is at.
pub(super) const fn draw(state: &mut u64) -> u64 {
    *state = state.wrapping_add(STEP);
    let z = (*state ^ *state >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let z = (z ^ z >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ z >> 31
}

/// The number that belongs to `key` and `seed`: without a sequence, for what is looked up at random.
pub(super) const fn of(seed: u64, key: u64) -> u64 {
    let mut state = seed ^ key.wrapping_mul(STEP);
    draw(&mut state)
}
