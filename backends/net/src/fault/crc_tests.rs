//! Memory that vanishes under copies that compute a CRC.

use super::*;
use crate::map::Map;
use gdrcore_core::wire::icrc::{crc32_with, Impl};

fn implementations() -> impl Iterator<Item = Impl> {
    Impl::ALL.iter().copied().filter(|which| {
        if !which.is_available() {
            gdrcore_testkit::skip::skipped(format_args!(
                "{which:?}: this machine lacks its instructions"
            ));
        }
        which.is_available()
    })
}

/// The memory may end in the first round of a loop, between two rounds, or in the rest behind them.
#[test]
fn a_copy_that_sums_ends_where_its_memory_does() {
    const LEN: usize = 4096;
    install().unwrap();
    let page = page_size();
    let map = Map::new(2 * page).unwrap();
    let end = map.as_ptr() as u64 + page as u64;
    // SAFETY: a page of our own map.
    let rc = unsafe { libc::mprotect(map.as_ptr().add(page).cast(), page, libc::PROT_NONE) };
    assert_eq!(rc, 0);
    let mut room = vec![0x5A; LEN];
    for which in implementations() {
        for left in [0, 1, 8, 31, 63, 64, 100, 127, 255, 256, 1000, 2048, LEN - 300, LEN - 1] {
            let at = end - left as u64;
            let fetched = host::fetch_crc_with(which, at, &mut room, 0);
            assert!(fetched.is_err(), "{which:?}: {left} bytes to read");
            let placed = host::place_crc_with(which, at, &room, 0);
            assert!(placed.is_err(), "{which:?}: room for {left} bytes");
        }
        let mut src: Vec<u8> = (0..LEN).map(|i| i as u8).collect();
        let sum = crc32_with(Impl::Table, 7, &src);
        let at = end - LEN as u64;
        // SAFETY: `LEN` bytes of the first page.
        unsafe { core::ptr::copy_nonoverlapping(src.as_ptr(), at as *mut u8, LEN) };
        assert_eq!(host::fetch_crc_with(which, at, &mut room, 7), Ok(sum), "{which:?}");
        assert_eq!(room, src, "{which:?}");
        room.fill(0x5A);
        let sum = crc32_with(Impl::Table, 7, &room);
        assert_eq!(host::place_crc_with(which, at, &room, 7), Ok(sum), "{which:?}");
        assert_eq!(host::fetch(at, &mut src), Ok(()));
        assert_eq!(room, src, "{which:?}");
    }
}
