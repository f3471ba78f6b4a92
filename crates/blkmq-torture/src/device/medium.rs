//! What a device stores: one stamp for each sector, in a volatile cache and on the part that survives a loss of power.

/// The sectors of a device.
#[derive(Debug)]
pub(crate) struct Medium {
    /// What a read finds.
    cached: Vec<u64>,
    /// What is left when the power goes. Not used in a device without a cache.
    durable: Vec<u64>,
    /// When a sector became newer in the cache than on the medium, counted in writes. 0: the sector is not newer in the
    /// cache.
    since: Vec<u64>,
    /// The sectors that are newer in the cache than on the medium.
    dirty: Vec<u32>,
    writes: u64,
    has_cache: bool,
}

/// A moment for a flush: the flush makes durable what was written before it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Mark(u64);

impl Medium {
    /// A medium of zeroes.
    pub(crate) fn new(nr_sectors: usize, has_cache: bool) -> Self {
        let zeroes = vec![0; nr_sectors];
        // Each sector is in the list at most once.
        let dirty = Vec::with_capacity(nr_sectors);
        Self { cached: zeroes.clone(), durable: zeroes.clone(), since: zeroes, dirty, writes: 0, has_cache }
    }

    /// What a sector holds. `None`: the sector is past the end of the device.
    pub(crate) fn read(&self, sector: u64) -> Option<u64> {
        self.cached.get(sector as usize).copied()
    }

    /// Writes a sector. With `through` the write goes past the cache to the part that survives. A write past the end of
    /// the device does nothing.
    pub(crate) fn write(&mut self, sector: u64, stamp: u64, through: bool) {
        let place = sector as usize;
        let Some(cached) = self.cached.get_mut(place) else { return };
        *cached = stamp;
        if !self.has_cache {
            return;
        }
        if through {
            self.durable[place] = stamp;
        } else if self.since[place] == 0 {
            self.writes += 1;
            self.since[place] = self.writes;
            self.dirty.push(sector as u32);
        }
    }

    /// This moment.
    pub(crate) const fn mark(&self) -> Mark {
        Mark(self.writes)
    }

    /// Makes durable what was written before the mark. What was written since may or may not survive.
    pub(crate) fn flush(&mut self, Mark(mark): Mark) {
        let Self { cached, durable, since, dirty, .. } = self;
        dirty.retain(|sector| {
            let place = *sector as usize;
            if since[place] > mark {
                return true;
            }
            durable[place] = cached[place];
            since[place] = 0;
            false
        });
    }

    /// The power goes and comes back. What is only in the cache is lost, except where `survives` returns true. Returns
    /// what every sector holds then.
    pub(crate) fn lose_power(&mut self, mut survives: impl FnMut() -> bool) -> &[u64] {
        for sector in self.dirty.drain(..) {
            let place = sector as usize;
            if survives() {
                self.durable[place] = self.cached[place];
            } else {
                self.cached[place] = self.durable[place];
            }
            self.since[place] = 0;
        }
        &self.cached
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_loss_of_power_takes_what_was_not_flushed() {
        let mut medium = Medium::new(4, true);
        medium.write(0, 1, false);
        let mark = medium.mark();
        medium.write(0, 2, false);
        medium.write(1, 3, false);
        medium.write(2, 4, true);
        medium.flush(mark);
        medium.write(2, 5, false);
        assert_eq!([0, 1, 2, 3].map(|sector| medium.read(sector)), [Some(2), Some(3), Some(5), Some(0)]);
        assert_eq!(medium.lose_power(|| false), [2, 0, 4, 0]);
        assert_eq!(medium.read(4), None);
    }
}
