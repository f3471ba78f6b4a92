//! What the sectors of a request carry: a number in the first bytes of each sector. The other bytes have no meaning.

use blkmq_virtual::driver::Request;

const SECTOR: usize = 512;

/// Reads what each sector of a write shall hold. The lengths of the pieces of the write's data go into `segments`.
pub(crate) fn gather(rq: &mut Request<'_>, segments: &mut Vec<usize>, stamps: &mut Vec<u64>) {
    for segment in rq.segments() {
        segments.push(segment.len());
        let (sectors, _) = segment.bytes().as_chunks::<SECTOR>();
        stamps.extend(sectors.iter().map(|sector| u64::from_le_bytes(sector.as_chunks().0[0])));
    }
}

/// Gives each sector of a read its stamp, by the sector's index in the request.
pub(crate) fn fill(rq: &mut Request<'_>, segments: &mut Vec<usize>, stamp: impl Fn(usize) -> u64) {
    let mut place = 0;
    for mut segment in rq.segments() {
        segments.push(segment.len());
        let (sectors, _) = segment.bytes_mut().as_chunks_mut::<SECTOR>();
        for sector in sectors {
            sector.as_chunks_mut().0[0] = stamp(place).to_le_bytes();
            place += 1;
        }
    }
}
