//! The ICRC reads no byte outside its slice: data between two pages that may not be read, at every
//! length.
#![cfg(target_os = "linux")]

use gdrcore_core::wire::icrc::{crc32_with, Impl};
use gdrcore_core::wire::IcrcFlow;

/// A page of memory between two that fault.
struct Guarded {
    base: *mut u8,
    page: usize,
}

impl Guarded {
    fn new() -> Guarded {
        // SAFETY: no pointer is involved.
        let page = unsafe { libc::sysconf(libc::_SC_PAGESIZE) } as usize;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        // SAFETY: a fresh mapping at an address that the system chooses.
        let base =
            unsafe { libc::mmap(std::ptr::null_mut(), 3 * page, libc::PROT_NONE, flags, -1, 0) };
        assert_ne!(base, libc::MAP_FAILED);
        let base: *mut u8 = base.cast();
        // SAFETY: the second of the three pages just mapped.
        let rc = unsafe {
            libc::mprotect(base.add(page).cast(), page, libc::PROT_READ | libc::PROT_WRITE)
        };
        assert_eq!(rc, 0);
        Guarded { base, page }
    }

    fn bytes(&mut self) -> &mut [u8] {
        // SAFETY: the middle page is mapped, readable, writable, initialised by the system, and
        // borrowed with `self`.
        unsafe { std::slice::from_raw_parts_mut(self.base.add(self.page), self.page) }
    }
}

impl Drop for Guarded {
    fn drop(&mut self) {
        // SAFETY: the mapping that `new` made; `bytes` cannot outlive `self`.
        unsafe { libc::munmap(self.base.cast(), 3 * self.page) };
    }
}

#[test]
fn no_byte_outside_is_read() {
    let mut guarded = Guarded::new();
    let bytes = guarded.bytes();
    for (i, byte) in bytes.iter_mut().enumerate() {
        *byte = ((i * 7) >> 3) as u8;
    }
    let flow = IcrcFlow::v4([10, 0, 0, 1], [10, 0, 0, 2], 0xC000, 4791);
    for len in (0..700).chain(bytes.len() - 70..=bytes.len()) {
        for piece in [&bytes[..len], &bytes[bytes.len() - len..]] {
            let elsewhere = piece.to_vec();
            for &which in Impl::ALL {
                assert_eq!(
                    crc32_with(which, 7, piece),
                    crc32_with(Impl::Table, 7, &elsewhere),
                    "{which:?} {len}"
                );
                let table = flow.icrc_with(Impl::Table, 3, &elsewhere);
                assert_eq!(flow.icrc_with(which, 3, piece), table, "{which:?} {len}");
            }
        }
    }
}
