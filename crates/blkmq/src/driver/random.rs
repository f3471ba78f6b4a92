//! Numbers that follow from a seed: the splitmix64 generator.

/// What each number adds to the state: 2^64 over the golden ratio, as splitmix64 has it.
const STEP: u64 = 0x9E37_79B9_7F4A_7C15;

/// The next number of the sequence whose state is `state`.
pub(super) const fn draw(state: &mut u64) -> u64 {
    *state = state.wrapping_add(STEP);
    let z = (*state ^ *state >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let z = (z ^ z >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ z >> 31
}

/// The number that belongs to `key` and `seed`: for look-ups at random, without a sequence.
pub(super) const fn of(seed: u64, key: u64) -> u64 {
    let mut state = seed ^ key.wrapping_mul(STEP);
    draw(&mut state)
}
