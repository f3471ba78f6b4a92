//! Where the heads are, and how long they need to get elsewhere: seek, rotation, transfer.

use blkmq_sched::Time;

use super::config::Config;
use crate::driver::random;
use crate::request::limits::SECTOR_SIZE;

/// Tracks of a band: some 500 MB.
const TRACKS_PER_BAND: u64 = 450;

/// Platters and arm. All times are nanoseconds.
///
/// Sectors lie on equal tracks that follow each other without a gap, so that sequential access does not wait. What
/// switching heads and tracks costs a real disk is contained in its sustained rate. Tracks are grouped into bands, as a
/// disk lays out one surface after the other in stripes. Each band begins at an angle of its own, which the seed
/// decides. Otherwise areas at equal distances would be in step with the rotation. On a disk of several zones they
/// never are.
///
/// The angle of the platters is a function of the time alone. Whether a sector comes under the heads at once or only
/// after a whole turn follows from when the arm arrives.
#[derive(Debug)]
pub(super) struct Mechanics {
    turn: u64,
    sectors_per_track: u64,
    nr_tracks: u64,
    seed: u64,
    seek_track: u64,
    seek_average: u64,
    seek_full: u64,
    /// Where the last transfer ended.
    position: u64,
}

impl Mechanics {
    pub(super) fn new(config: &Config) -> Self {
        let turn = 60_000_000_000 / u64::from(config.rpm);
        let bytes_per_turn = config.mbps * turn / 1000;
        let sectors_per_track = (bytes_per_turn / SECTOR_SIZE as u64).max(1);
        Self {
            turn,
            sectors_per_track,
            nr_tracks: (config.size / SECTOR_SIZE as u64).div_ceil(sectors_per_track),
            seed: config.seed,
            seek_track: config.seek_track,
            seek_average: config.seek_average,
            seek_full: config.seek_full,
            position: 0,
        }
    }

    /// The sector after the last that was under the heads in a transfer.
    pub(super) fn position(&self) -> u64 {
        self.position
    }

    pub(super) fn transfer(&self, nr_sectors: u64) -> u64 {
        nr_sectors * self.turn / self.sectors_per_track
    }

    /// Whole sectors that pass under the heads in `ns`.
    pub(super) fn passed(&self, ns: u64) -> u64 {
        (u128::from(ns) * u128::from(self.sectors_per_track) / u128::from(self.turn)) as u64
    }

    /// The time of a seek over `tracks` tracks. Up to a third of all tracks, which is the mean distance of random
    /// seeks, the arm still accelerates, and the time grows with the square root of the distance. Beyond that it grows
    /// in proportion to the distance (Ruemmler and Wilkes, An introduction to disk drive modeling, 1994).
    fn seek(&self, tracks: u64) -> u64 {
        if tracks == 0 {
            return 0;
        }
        let third = (self.nr_tracks / 3).max(1);
        if tracks <= third {
            // The root of the share, in units of 2^-20.
            let root = ((u128::from(tracks) << 40) / u128::from(third)).isqrt();
            return self.seek_track + ((u128::from(self.seek_average - self.seek_track) * root) >> 20) as u64;
        }
        let (beyond, rest) = (u128::from(tracks - third), u128::from((self.nr_tracks - third).max(1)));
        self.seek_average + (u128::from(self.seek_full - self.seek_average) * beyond / rest) as u64
    }

    /// When in a turn `sector` is under the heads.
    fn angle(&self, sector: u64) -> u64 {
        let (track, at) = (sector / self.sectors_per_track, sector % self.sectors_per_track);
        let band_angle = random::of(self.seed, track / TRACKS_PER_BAND) % self.turn;
        (band_angle + at * self.turn / self.sectors_per_track) % self.turn
    }

    /// How long until `sector` is under the heads, for an arm that sets out at `now`.
    pub(super) fn wait(&self, sector: u64, now: Time) -> u64 {
        let seek = self.seek((sector / self.sectors_per_track).abs_diff(self.position / self.sectors_per_track));
        let turned = now.after(seek).0 % self.turn;
        let rotation = (self.angle(sector) + self.turn - turned) % self.turn;
        // A sector that has passed the heads no more than the time of one sector ago is in the track buffer. The sector
        // of grace also forgives rounding.
        let missed = self.turn - rotation <= self.turn / self.sectors_per_track;
        seek + if missed { 0 } else { rotation }
    }

    /// The heads have gone over everything up to `end`.
    pub(super) fn moved_to(&mut self, end: u64) {
        self.position = end;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mechanics(parameters: &str) -> Mechanics {
        Mechanics::new(&parameters.parse::<Config>().unwrap())
    }

    #[test]
    fn seeks_pass_through_the_three_given_points_and_grow_with_distance() {
        let disk = mechanics("");
        let third = disk.nr_tracks / 3;
        assert_eq!(disk.seek(0), 0);
        assert!((800_000..820_000).contains(&disk.seek(1)), "{}", disk.seek(1));
        assert!(disk.seek(third).abs_diff(8_500_000) < 100, "{}", disk.seek(third));
        assert_eq!(disk.seek(disk.nr_tracks), 16_000_000);
        let times: Vec<_> = (0..=1000).map(|part| disk.seek(disk.nr_tracks * part / 1000)).collect();
        assert!(times.is_sorted());
    }

    #[test]
    fn rotation_follows_from_the_time_alone() {
        let disk = mechanics("rpm=6000,mbps=100");
        // A turn of 10 ms, 1 MB on a track: sector 976 is half a turn away from the start.
        assert_eq!((disk.turn, disk.sectors_per_track), (10_000_000, 1953));
        let half = 976 * disk.turn / disk.sectors_per_track;
        let start = Time(disk.angle(0));
        assert_eq!((disk.wait(0, start), disk.wait(976, start)), (0, half));
        assert_eq!(disk.wait(976, start.after(half - 5)), 5);
        assert_eq!(disk.wait(976, start.after(3 * disk.turn)), half);
        assert_eq!(disk.wait(0, start.after(half)), disk.turn - half);
        assert_eq!(disk.wait(976, start.after(half + 6_000)), disk.turn - 6_000, "a sector that is past comes again");
    }

    #[test]
    fn sequential_access_does_not_wait_however_it_is_cut() {
        let mut disk = mechanics("");
        let (mut at, mut now) = (12_345, Time(777_777));
        now = now.after(disk.wait(at, now));
        disk.moved_to(at);
        let begin = now;
        let mut total = 0;
        for nr_sectors in [8, 1, 160, 2560, 3, 15, 4000].into_iter().cycle().take(700) {
            let (wait, transfer) = (disk.wait(at, now), disk.transfer(nr_sectors));
            assert!(wait < 10_000, "{wait} at sector {at}");
            now = now.after(wait + transfer);
            at += nr_sectors;
            total += nr_sectors;
            disk.moved_to(at);
        }
        let ideal = disk.transfer(total);
        assert!(now.since(begin) < ideal + ideal / 1000, "{} against {ideal}", now.since(begin));
    }

    #[test]
    fn the_sustained_rate_is_the_given_one() {
        let disk = mechanics("mbps=134");
        let ns = disk.transfer(134_000_000 / 512);
        assert!(ns.abs_diff(1_000_000_000) < 1_000_000, "{ns}");
        assert_eq!(disk.passed(disk.transfer(1000)), 999, "rounded down");
    }
}
