//! The memory of a ring: a sealed memfd, mapped so that its data appears twice in a row. A growing
//! ring has a larger one behind it in the same memfd, whose pages are allocated when it is needed.

use super::ring::{RingMap, CONTROL, DATA_MAX};
use crate::map::Map;
use crate::memfd::{sealed_len, sealed_memfd, FIXED_SIZE};
use crate::sys::{last_error, populate, Fd};
use gdrcore_core::error::{Error, Result};
use gdrcore_core::refuse;
use std::os::fd::RawFd;

/// A mapped ring. Its drop unmaps it; nothing made from [`Segment::place`] may be used afterwards.
#[derive(Debug)]
pub struct Segment {
    memory: Map,
    size: usize,
}

impl Segment {
    /// Makes a segment with `size` bytes of data (a power of two, 4096 to [`DATA_MAX`]), and
    /// returns the descriptor to pass on. Its pages are allocated now, because a missing page would
    /// raise SIGBUS later.
    ///
    /// # Errors
    /// [`Error::Invalid`]: the size. [`Error::NoMemory`], [`Error::Os`]: the error of memfd_create,
    /// fallocate, fcntl or mmap.
    pub(super) fn create(size: usize) -> Result<(Segment, Fd)> {
        Segment::create_file(size, CONTROL + size)
    }

    /// As [`Segment::create`], with a second ring of `larger` bytes of data. Its pages are not
    /// allocated: see [`Segment::allocate`].
    pub(super) fn create_growing(size: usize, larger: usize) -> Result<([Segment; 2], Fd)> {
        check_size(larger)?;
        let first = CONTROL + size;
        let (segment, fd) = Segment::create_file(size, first + CONTROL + larger)?;
        let second = Segment::map(fd.raw(), first, larger, 0)?;
        Ok(([segment, second], fd))
    }

    /// A sealed file of `len` bytes, and the ring at its beginning.
    fn create_file(size: usize, len: usize) -> Result<(Segment, Fd)> {
        check_size(size)?;
        let fd = sealed_memfd(c"gdrcore-ring", len, CONTROL + size)?;
        let segment = Segment::map(fd.raw(), 0, size, libc::MAP_POPULATE)?;
        segment.place().stamp();
        Ok((segment, fd))
    }

    /// Maps a segment that another process made, and of which it says that it has `size` bytes of
    /// data.
    ///
    /// # Errors
    /// [`Error::Access`]: the descriptor is no memory with the seals, of exactly that size and of
    /// our layout; else as [`Segment::create`].
    pub(super) fn open(fd: RawFd, size: usize) -> Result<Segment> {
        Segment::open_file(fd, size, CONTROL + size)
    }

    /// Maps both rings of [`Segment::create_growing`], as [`Segment::open`].
    pub(super) fn open_growing(fd: RawFd, size: usize, larger: usize) -> Result<[Segment; 2]> {
        check_size(larger)?;
        let first = CONTROL + size;
        let segment = Segment::open_file(fd, size, first + CONTROL + larger)?;
        let second = Segment::map(fd, first, larger, 0)?;
        Ok([segment, second])
    }

    fn open_file(fd: RawFd, size: usize, len: usize) -> Result<Segment> {
        check_size(size)?;
        if sealed_len(fd, FIXED_SIZE) != Some(len as u64) {
            return Err(Error::Access);
        }
        let segment = Segment::map(fd, 0, size, libc::MAP_POPULATE)?;
        if !segment.place().is_stamped() {
            return Err(Error::Access);
        }
        Ok(segment)
    }

    /// Allocates the pages of the second ring of [`Segment::create_growing`]: a quarter of a
    /// microsecond each.
    ///
    /// # Errors
    /// [`Error::Os`]: no memory, or a kernel before Linux 5.14.
    pub(super) fn allocate(&self) -> Result<()> {
        // SAFETY: `map` has mapped these bytes, and more behind them.
        unsafe { populate(self.memory.as_ptr(), CONTROL + self.size) }
    }

    /// The ring that begins at byte `at` of the file. `flags`: further flags of mmap.
    fn map(fd: RawFd, at: usize, size: usize, flags: i32) -> Result<Segment> {
        // One reservation for both views of the data, which its drop unmaps.
        let memory = Map::reserved(CONTROL + 2 * size)?;
        for (to, len, offset) in [(0, CONTROL + size, 0), (CONTROL + size, size, CONTROL)] {
            // SAFETY: the range lies in the reservation that was made just now and that no other
            // code knows.
            let p = unsafe {
                libc::mmap(
                    memory.as_ptr().add(to).cast(),
                    len,
                    libc::PROT_READ | libc::PROT_WRITE,
                    libc::MAP_SHARED | libc::MAP_FIXED | flags,
                    fd,
                    (at + offset) as libc::off_t,
                )
            };
            if p == libc::MAP_FAILED {
                return Err(last_error());
            }
        }
        Ok(Segment { memory, size })
    }

    /// The ring in the segment.
    pub fn place(&self) -> RingMap {
        // SAFETY: `map` mapped exactly that, shared; it stays until the drop, after which the ring
        // is not used (see the type).
        unsafe { RingMap::new(self.memory.base(), self.size) }
    }
}

fn check_size(size: usize) -> Result<()> {
    if size.is_power_of_two() && (4096..=DATA_MAX).contains(&size) {
        Ok(())
    } else {
        Err(refuse!(Invalid, "{size} bytes: a power of two from 4096 to {DATA_MAX}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys::check;
    use std::os::fd::AsRawFd;

    #[test]
    fn both_views_show_the_same_bytes_and_the_data_appears_twice() {
        let (a, fd) = Segment::create(8192).unwrap();
        let b = Segment::open(fd.raw(), 8192).unwrap();
        // SAFETY: inside the two mappings, each CONTROL + 16384 bytes.
        unsafe {
            a.memory.as_ptr().add(CONTROL + 5).write_volatile(77);
            assert_eq!(b.memory.as_ptr().add(CONTROL + 5).read_volatile(), 77);
            assert_eq!(b.memory.as_ptr().add(CONTROL + 8192 + 5).read_volatile(), 77);
        }
    }

    #[test]
    fn descriptors_other_than_sealed_segments_of_ours_are_refused() {
        let (_a, fd) = Segment::create(8192).unwrap();
        assert_eq!(Segment::open(fd.raw(), 4096).unwrap_err(), Error::Access);
        assert_eq!(Segment::open(fd.raw(), 5000).unwrap_err(), Error::Invalid);
        assert_eq!(Segment::open(fd.raw(), DATA_MAX * 2).unwrap_err(), Error::Invalid);
        let null = std::fs::File::open("/dev/null").unwrap();
        assert_eq!(Segment::open(null.as_raw_fd(), 8192).unwrap_err(), Error::Access);
        assert_eq!(Segment::open(-1, 8192).unwrap_err(), Error::Access);
        // The size is right, but its owner could still shrink it. SAFETY: the name is a C string.
        let plain =
            Fd::from_call(unsafe { libc::memfd_create(c"x".as_ptr(), libc::MFD_ALLOW_SEALING) })
                .unwrap();
        // SAFETY: no pointers.
        unsafe { libc::ftruncate(plain.raw(), (CONTROL + 8192) as libc::off_t) };
        assert_eq!(Segment::open(plain.raw(), 8192).unwrap_err(), Error::Access);
        // Sealed, but without our first line.
        // SAFETY: no pointers.
        unsafe { libc::fcntl(plain.raw(), libc::F_ADD_SEALS, FIXED_SIZE) };
        assert_eq!(Segment::open(plain.raw(), 8192).unwrap_err(), Error::Access);
    }

    #[test]
    fn a_segment_that_lacks_any_seal_is_refused() {
        for missing in [libc::F_SEAL_SHRINK, libc::F_SEAL_GROW, libc::F_SEAL_SEAL, 0] {
            // SAFETY: the name is a C string.
            let fd = Fd::from_call(unsafe {
                libc::memfd_create(c"x".as_ptr(), libc::MFD_ALLOW_SEALING)
            })
            .unwrap();
            // SAFETY: no pointers.
            check(unsafe { libc::ftruncate(fd.raw(), (CONTROL + 8192) as libc::off_t) }).unwrap();
            // Right in all other respects: size and first line.
            Segment::map(fd.raw(), 0, 8192, 0).unwrap().place().stamp();
            // SAFETY: no pointers.
            check(unsafe { libc::fcntl(fd.raw(), libc::F_ADD_SEALS, FIXED_SIZE & !missing) })
                .unwrap();
            assert_eq!(
                Segment::open(fd.raw(), 8192).err(),
                (missing != 0).then_some(Error::Access),
                "{missing}"
            );
        }
    }

    #[test]
    fn the_seals_hold() {
        let (_a, fd) = Segment::create(4096).unwrap();
        // SAFETY: no pointers.
        unsafe {
            assert_eq!(libc::ftruncate(fd.raw(), 0), -1);
            assert_eq!(libc::ftruncate(fd.raw(), 1 << 20), -1);
            assert_eq!(libc::fcntl(fd.raw(), libc::F_ADD_SEALS, libc::F_SEAL_WRITE), -1);
        }
    }
}
