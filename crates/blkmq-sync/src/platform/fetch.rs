//! Asking for cache lines ahead.
#![cfg_attr(
    all(any(target_arch = "x86_64", target_arch = "aarch64"), not(any(miri, loom))),
    expect(unsafe_code, reason = "to ask for a line is an instruction of the processor")
)]

/// Bytes of a line.
const LINE_BYTES: usize = 64;

/// Asks for the cache lines of `value`, which the caller will change soon, and goes on while they come from the caches
/// of other CPUs. A hint: nothing but time depends on it.
///
/// COST: an instruction for each line. A processor has some ten lines under way at a time, and waits with the next.
#[inline(always)]
pub fn fetch<T: ?Sized>(value: &T) {
    lines_of(value).for_each(fetch_line);
}

/// An address on each line of a value.
#[inline(always)]
fn lines_of<T: ?Sized>(value: &T) -> impl Iterator<Item = *const u8> {
    let begin = std::ptr::from_ref(value).cast::<u8>();
    let before = begin.addr() % LINE_BYTES;
    let end = if size_of_val(value) == 0 { 0 } else { before + size_of_val(value) };
    (0..end).step_by(LINE_BYTES).map(move |offset| begin.wrapping_sub(before).wrapping_add(offset))
}

#[cfg(all(target_arch = "x86_64", not(any(miri, loom))))]
#[inline(always)]
fn fetch_line(address: *const u8) {
    // SAFETY: the instruction is a hint. It changes no register, flag or memory, and does not fault, whatever the
    // address. A processor that does not know it does nothing.
    unsafe {
        core::arch::asm!("prefetchw [{}]", in(reg) address, options(nostack, preserves_flags, readonly));
    }
}

#[cfg(all(target_arch = "aarch64", not(any(miri, loom))))]
#[inline(always)]
fn fetch_line(address: *const u8) {
    // SAFETY: the instruction is a hint. It changes no register, flag or memory, and does not fault, whatever the
    // address.
    unsafe {
        core::arch::asm!("prfm pstl1keep, [{}]", in(reg) address, options(nostack, preserves_flags, readonly));
    }
}

#[cfg(any(miri, loom, not(any(target_arch = "x86_64", target_arch = "aarch64"))))]
fn fetch_line(_address: *const u8) {}

#[cfg(test)]
mod tests {
    use super::*;

    /// Red if a line is left out of a value that begins in the middle of one, or if a line is asked for that the value
    /// does not lie on; or if to ask changes anything.
    #[test]
    fn each_line_of_a_value_is_asked_for_once() {
        #[repr(align(64))]
        struct Lines([u8; 256]);
        let lines = Lines([7; 256]);
        let begin = lines.0.as_ptr().addr();
        for from in 0..130 {
            for to in from..=256 {
                let value = &lines.0[from..to];
                fetch(value);
                let found: Vec<usize> = lines_of(value).map(|line| (line.addr() - begin) / LINE_BYTES).collect();
                let expected: Vec<usize> = if from == to { vec![] } else { (from / 64..=(to - 1) / 64).collect() };
                assert_eq!(found, expected, "bytes {from} to {to}");
            }
        }
        assert_eq!(lines.0, [7; 256]);
    }
}
