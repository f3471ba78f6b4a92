//! What the sectors of a request carry: a number in the first bytes of each sector. The other bytes have no meaning.

use blkmq_virtual::driver::Request;

const SECTOR: usize = 512;

/// Reads what each sector of a write shall hold. The lengths of the pieces of the write's data go into `segments`.
pub(crate) fn gather(rq: &mut Request<'_>, segments: &mut Vec<usize>, stamps: &mut Vec<u64>) {
    for segment in rq.segments() {
        segments.push(segment.len());
        stamps.extend((0..segment.len()).step_by(SECTOR).map(|at| {
            let mut stamp = [0; 8];
            segment.copy_to(at, &mut stamp);
            u64::from_le_bytes(stamp)
        }));
    }
}

/// Gives each sector of a read its stamp, by the sector's index in the request.
pub(crate) fn fill(rq: &mut Request<'_>, segments: &mut Vec<usize>, stamp: impl Fn(usize) -> u64) {
    let mut place = 0;
    for mut segment in rq.segments() {
        segments.push(segment.len());
        for at in (0..segment.len()).step_by(SECTOR) {
            segment.copy_from(at, &stamp(place).to_le_bytes());
            place += 1;
        }
    }
}
