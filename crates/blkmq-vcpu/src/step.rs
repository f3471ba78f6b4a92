//! The steps of a virtual CPU, after which another one may go on.

use crate::hot::HOT;
use crate::machine;

/// A step: the CPU has done something that other CPUs can see. Another CPU may go on before this returns.
#[inline]
pub(crate) fn step() {
    HOT.with(|hot| {
        let line = hot.touched.take();
        let left = hot.left.get();
        if hot.depth.get() > 0 || hot.quantum.get() == 0 {
            return;
        }
        let watched = line.is_some() && line == hot.watched.get();
        if left > 1 && !watched {
            hot.left.set(left - 1);
            return;
        }
        hot.left.set(left.saturating_sub(1));
        machine::decide(line.filter(|_| watched));
    });
}
