//! The guest's memory: what the front-end has lent, mapped, and how addresses become places in it.
//!
//! The guest changes this memory at any time. So no Rust reference to it is made here: values are copied in and out,
//! and each copy is one access as far as a decision depends on it.

pub(crate) mod kind;

use std::fs;
use std::os::fd::OwnedFd;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use vm_memory::mmap::MmapRegionBuilder;
use vm_memory::{ByteValued, Bytes, FileOffset, MmapRegion, VolatileMemory};

/// The most regions of a guest. QEMU asks for no more than 509 slots; cloud-hypervisor for a few.
pub(crate) const MAX_REGIONS: usize = 509;

/// A region as the front-end describes it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct RegionInfo {
    /// The first address, as the guest's descriptors have it.
    pub(crate) guest: u64,
    pub(crate) len: u64,
    /// The first address, as the front-end's messages have it.
    pub(crate) user: u64,
    /// Where the region begins in its file.
    pub(crate) offset: u64,
}

/// Why memory cannot be used.
#[derive(Debug, thiserror::Error)]
pub(crate) enum MemoryError {
    #[error("more than {MAX_REGIONS} regions of memory")]
    TooMany,
    /// A region is empty, or its end is beyond all addresses.
    #[error("a region at {:#x} has {} bytes", .0.guest, .0.len)]
    Size(RegionInfo),
    /// Two regions have an address in common.
    #[error("the region at {:#x} overlaps another one", .0.guest)]
    Overlap(RegionInfo),
    #[error("the region at {guest:#x} cannot be mapped: {1}", guest = .0.guest)]
    Map(RegionInfo, String),
    #[error("there is no region at {:#x} to be removed", .0.guest)]
    Unknown(RegionInfo),
}

/// A region that is mapped.
#[derive(Debug, Clone)]
struct Region {
    info: RegionInfo,
    map: Arc<MmapRegion>,
    /// Where the region begins in the mapping.
    start: usize,
}

/// The memory of a guest.
#[derive(Debug, Clone, Default)]
pub(crate) struct Memory {
    /// In the order of the guest's addresses; none overlaps another one.
    regions: Vec<Region>,
}

/// A part of the guest's memory that lies in one piece in this process: a number of the region, and bytes within its
/// mapping. Only a [`Memory`] makes them, so they lie within a region; the default one is empty.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Piece {
    region: u32,
    pub(crate) len: u32,
    at: usize,
}

impl Piece {
    /// The piece without its first bytes, and these bytes.
    pub(crate) fn split(self, first: u32) -> (Self, Self) {
        let first = first.min(self.len);
        (Self { len: first, ..self }, Self { len: self.len - first, at: self.at + first as usize, ..self })
    }
}

/// An address at which the guest has no memory, or not as much.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct NoMemory {
    pub(crate) address: u64,
    pub(crate) len: u64,
}

/// Maps a file from its beginning: where a region begins may be no multiple of the pages that the file has.
fn map(file: fs::File, len: usize) -> Result<MmapRegion, String> {
    let data = file.metadata().map_err(|error| error.to_string())?;
    // To touch a page behind the end of a file would end the process. Devices do not tell their length.
    if data.is_file() && data.len() < len as u64 {
        return Err(format!("its file has {} bytes, and not {len}", data.len()));
    }
    MmapRegionBuilder::new(len)
        .with_file_offset(FileOffset::new(file, 0))
        .with_mmap_prot(libc::PROT_READ | libc::PROT_WRITE)
        // Huge pages are reserved, or the mapping fails: without that, touching one that is not there ends the process.
        .with_mmap_flags(libc::MAP_SHARED)
        .build()
        .map_err(|error| error.to_string())
}

impl Memory {
    /// Adds a region.
    pub(crate) fn add(&mut self, info: RegionInfo, file: OwnedFd) -> Result<(), MemoryError> {
        let ends = [info.guest, info.user, info.offset].map(|start| start.checked_add(info.len));
        if info.len == 0 || ends.contains(&None) {
            return Err(MemoryError::Size(info));
        }
        if self.regions.len() == MAX_REGIONS {
            return Err(MemoryError::TooMany);
        }
        let overlap = |a: u64, b: u64, len: u64| a < b + len && b < a + info.len;
        let mut others = self.regions.iter().map(|region| region.info);
        if others.any(|other| overlap(info.guest, other.guest, other.len) || overlap(info.user, other.user, other.len))
        {
            return Err(MemoryError::Overlap(info));
        }
        let ends = [info.offset, info.offset + info.len].map(usize::try_from);
        let [Ok(start), Ok(whole)] = ends else { return Err(MemoryError::Size(info)) };
        let map = map(fs::File::from(file), whole).map_err(|error| MemoryError::Map(info, error))?;
        let at = self.regions.partition_point(|region| region.info.guest < info.guest);
        self.regions.insert(at, Region { info, map: Arc::new(map), start });
        Ok(())
    }

    /// Takes a region out.
    pub(crate) fn remove(&mut self, info: RegionInfo) -> Result<(), MemoryError> {
        let is_meant = |of: &RegionInfo| (of.guest, of.len, of.user) == (info.guest, info.len, info.user);
        let at = self.regions.iter().position(|region| is_meant(&region.info)).ok_or(MemoryError::Unknown(info))?;
        self.regions.remove(at);
        Ok(())
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.regions.is_empty()
    }

    /// The piece of `len` bytes at a guest's address, if they lie in one piece.
    #[inline]
    fn piece(&self, address: u64, len: u32) -> Option<Piece> {
        let index = self.regions.partition_point(|region| region.info.guest <= address).checked_sub(1)?;
        let region = &self.regions[index];
        let inside = address - region.info.guest;
        let is_within = inside < region.info.len && u64::from(len) <= region.info.len - inside;
        is_within.then(|| Piece { region: index as u32, len, at: region.start + inside as usize })
    }

    /// The pieces of `len` bytes at a guest's address, in order: more than one if regions adjoin.
    pub(crate) fn pieces(&self, address: u64, len: u32, mut each: impl FnMut(Piece)) -> Result<(), NoMemory> {
        if let Some(piece) = self.piece(address, len).filter(|_| len > 0) {
            each(piece);
            return Ok(());
        }
        let none = NoMemory { address, len: len.into() };
        let (mut address, mut left) = (address, len);
        while left > 0 {
            let after = self.regions.partition_point(|region| region.info.guest <= address);
            let index = after.checked_sub(1).ok_or(none)?;
            let region = &self.regions[index];
            let inside = address - region.info.guest;
            if inside >= region.info.len {
                return Err(none);
            }
            let taken = (region.info.len - inside).min(left.into());
            // `taken` is no more than `left`, and `inside` is below the length of a mapping.
            each(Piece { region: index as u32, len: taken as u32, at: region.start + inside as usize });
            left -= taken as u32;
            address = address.checked_add(taken).ok_or(none)?;
        }
        Ok(())
    }

    /// The area of a ring: `len` bytes at an address of the guest, in one piece, whose beginning is a multiple of
    /// `align` in this process too.
    pub(crate) fn area(&self, address: u64, len: usize, align: usize) -> Result<Area, NoMemory> {
        let none = NoMemory { address, len: len as u64 };
        let piece = u32::try_from(len).ok().and_then(|len| self.piece(address, len)).ok_or(none)?;
        let map = &self.regions[piece.region as usize].map;
        if !(map.as_ptr().addr() + piece.at).is_multiple_of(align) {
            return Err(none);
        }
        Ok(Area { map: Arc::clone(map), start: piece.at, len })
    }

    /// The guest's address of what the front-end calls by its own address.
    pub(crate) fn guest_address(&self, user: u64) -> Option<u64> {
        let region = self.regions.iter().find(|region| user.wrapping_sub(region.info.user) < region.info.len)?;
        Some(region.info.guest + (user - region.info.user))
    }

    fn map(&self, piece: Piece) -> &MmapRegion {
        &self.regions[piece.region as usize].map
    }

    /// Copies out as many bytes of the piece as fit.
    pub(crate) fn read(&self, piece: Piece, to: &mut [u8]) {
        let len = to.len().min(piece.len as usize);
        let slice = self.map(piece).get_slice(piece.at, len).expect("a piece lies within its region");
        slice.copy_to(&mut to[..len]);
    }

    /// Copies in as many bytes as the piece has.
    pub(crate) fn write(&self, piece: Piece, from: &[u8]) {
        let len = from.len().min(piece.len as usize);
        let slice = self.map(piece).get_slice(piece.at, len).expect("a piece lies within its region");
        slice.copy_from(&from[..len]);
    }

    /// Copies out an object at the beginning of a piece, which has as many bytes.
    #[inline]
    pub(crate) fn get<T: ByteValued>(&self, piece: Piece) -> T {
        assert!(piece.len as usize >= size_of::<T>(), "an object lies within its piece");
        self.map(piece).get_ref(piece.at).expect("a piece lies within its region").load()
    }

    /// Copies in an object at the beginning of a piece, which has as many bytes.
    #[inline]
    pub(crate) fn set<T: ByteValued>(&self, piece: Piece, value: T) {
        assert!(piece.len as usize >= size_of::<T>(), "an object lies within its piece");
        self.map(piece).get_ref(piece.at).expect("a piece lies within its region").store(value);
    }

    /// Copies out what a descriptor takes at a guest's address, which may lie in several pieces.
    pub(crate) fn read_at(&self, address: u64) -> Result<u128, NoMemory> {
        if let Some(piece) = self.piece(address, 16) {
            return Ok(self.get(piece));
        }
        let (mut bytes, mut filled) = ([0; 16], 0);
        self.pieces(address, 16, |piece| {
            self.read(piece, &mut bytes[filled..]);
            filled += piece.len as usize;
        })?;
        Ok(u128::from_ne_bytes(bytes))
    }

    /// Where the piece is. Valid as long as the region is in this memory or in a clone of it.
    pub(crate) fn pointer(&self, piece: Piece) -> NonNull<u8> {
        NonNull::new(self.map(piece).as_ptr().wrapping_add(piece.at)).expect("a mapping is not at address 0")
    }
}

/// Memory that a ring, or what is known of it, lies in.
#[derive(Debug, Clone)]
pub(crate) struct Area {
    map: Arc<MmapRegion>,
    start: usize,
    len: usize,
}

impl Area {
    /// A part of a file, from an offset on. The offset is a multiple of 8.
    pub(crate) fn of_file(file: fs::File, offset: usize, len: usize) -> Result<Self, String> {
        let whole = offset.checked_add(len).ok_or("the length is beyond all addresses")?;
        Ok(Self { map: Arc::new(map(file, whole)?), start: offset, len })
    }

    /// A part of the area.
    pub(crate) fn part(&self, at: usize, len: usize) -> Self {
        assert!(at <= self.len && len <= self.len - at, "a part lies within its area");
        Self { map: Arc::clone(&self.map), start: self.start + at, len }
    }

    fn place(&self, at: usize, len: usize) -> usize {
        assert!(at <= self.len && len <= self.len - at, "a field lies within its area");
        self.start + at
    }

    /// Copies out an object. An array takes an access for each of its elements.
    pub(crate) fn read<T: ByteValued>(&self, at: usize) -> T {
        let place = self.place(at, size_of::<T>());
        self.map.get_ref(place).expect("an area lies within its mapping").load()
    }

    /// Copies in an object. An array takes an access for each of its elements.
    pub(crate) fn write<T: ByteValued>(&self, at: usize, value: T) {
        #[cfg(test)]
        if !tests::may_store() {
            return;
        }
        let place = self.place(at, size_of::<T>());
        self.map.get_ref(place).expect("an area lies within its mapping").store(value);
    }

    /// An aligned number of 16 bits, in one access.
    pub(crate) fn load(&self, at: usize, order: Ordering) -> u16 {
        let place = self.place(at, 2);
        u16::from_le(self.map.as_volatile_slice().load(place, order).expect("the number is aligned"))
    }

    /// An aligned number of 16 bits, in one access.
    pub(crate) fn store(&self, at: usize, value: u16, order: Ordering) {
        #[cfg(test)]
        if !tests::may_store() {
            return;
        }
        let place = self.place(at, 2);
        self.map.as_volatile_slice().store(value.to_le(), place, order).expect("the number is aligned");
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use std::cell::Cell;

    use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};

    use super::*;

    thread_local! {
        static STORES: Cell<usize> = const { Cell::new(usize::MAX) };
    }

    /// Lets this thread make so many more stores to areas; later ones do nothing, as if its process had ended. Returns
    /// how many it had left.
    pub(crate) fn let_store(nr: usize) -> usize {
        STORES.replace(nr)
    }

    pub(super) fn may_store() -> bool {
        let left = STORES.get();
        STORES.set(left.saturating_sub(usize::from(left < usize::MAX)));
        left > 0
    }

    /// A file in memory of so many bytes, sealed as QEMU does it.
    pub(crate) fn file(len: u64) -> OwnedFd {
        let file = memfd_create("guest", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).unwrap();
        ftruncate(&file, len).unwrap();
        fcntl_add_seals(&file, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL).unwrap();
        file
    }

    pub(crate) fn info(guest: u64, len: u64) -> RegionInfo {
        RegionInfo { guest, len, user: guest + (1 << 40), offset: 0 }
    }

    /// Red if an address outside is taken for one inside, if bytes across two regions end at the first one, or if a
    /// region begins elsewhere in its file than it was said.
    #[test]
    fn addresses_are_found_where_the_regions_are() {
        let mut memory = Memory::default();
        let second = file(0x3000);
        rustix::io::pwrite(&second, b"over", 0x1000).unwrap();
        memory.add(RegionInfo { offset: 0x1000, ..info(0x3000, 0x2000) }, second).unwrap();
        memory.add(info(0x1000, 0x2000), file(0x2000)).unwrap();
        memory.add(info(0x9000, 0x1000), file(0x1000)).unwrap();
        let pieces = |address, len| {
            let mut found = Vec::new();
            memory.pieces(address, len, |piece| found.push((piece.region, piece.at, piece.len))).map(|()| found)
        };
        assert_eq!(pieces(0x1000, 0x2000), Ok(vec![(0, 0, 0x2000)]));
        assert_eq!(pieces(0x2ff0, 0x20), Ok(vec![(0, 0x1ff0, 0x10), (1, 0x1000, 0x10)]));
        for (address, len) in [(0, 1), (0xfff, 2), (0x4fff, 2), (0x9000, 0x1001), (u64::MAX, 1), (u64::MAX - 1, 9)] {
            assert_eq!(pieces(address, len), Err(NoMemory { address, len: len.into() }));
        }
        let read_at = |address| memory.read_at(address).map(u128::to_ne_bytes);
        assert_eq!(read_at(0x3000), Ok(*b"over\0\0\0\0\0\0\0\0\0\0\0\0"));
        assert_eq!(read_at(0x2ffe), Ok(*b"\0\0over\0\0\0\0\0\0\0\0\0\0"));
        assert_eq!(memory.guest_address(0x9001 + (1 << 40)), Some(0x9001));
        assert_eq!(memory.guest_address(0x9001), None);
        assert!(memory.area(0x3000, 16, 4096).is_ok() && memory.area(0x3001, 2, 2).is_err());
        assert!(memory.area(0x2ff0, 32, 2).is_err(), "an area lies in one piece");
    }

    /// Red if huge pages that the machine does not have are found missing only when they are touched, which ends the
    /// process.
    #[test]
    fn huge_pages_that_are_not_there_are_refused() {
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING | MemfdFlags::HUGETLB;
        let Ok(file) = memfd_create("guest", flags) else {
            return println!("SKIP this kernel makes no memfd with huge pages");
        };
        let len = 1 << 45;
        ftruncate(&file, len).unwrap();
        fcntl_add_seals(&file, SealFlags::SHRINK).unwrap();
        let error = Memory::default().add(info(0, len), file).unwrap_err().to_string();
        assert!(error.contains("cannot be mapped"), "{error}");
    }

    #[test]
    fn regions_that_cannot_be_are_refused() {
        let mut memory = Memory::default();
        let error = |memory: &mut Memory, info| memory.add(info, file(0x1000)).unwrap_err().to_string();
        assert_eq!(error(&mut memory, info(0x1000, 0)), "a region at 0x1000 has 0 bytes");
        assert!(error(&mut memory, info(u64::MAX - (1 << 41), 1 << 42)).contains("bytes"));
        assert!(error(&mut memory, info(0, 0x2000)).contains("cannot be mapped"), "the file is too short");
        memory.add(info(0x1000, 0x1000), file(0x1000)).unwrap();
        assert!(error(&mut memory, info(0x1fff, 0x1000)).contains("overlaps"));
        assert!(memory.remove(info(0x1000, 0x2000)).is_err());
        memory.remove(info(0x1000, 0x1000)).unwrap();
        assert!(memory.is_empty());
    }
}
