//! Volatile copies for targets without the assembly. A fault ends the process.

pub(super) use super::two_passes::{fetch_crc, place_crc};
use super::Fault;
use core::sync::atomic::{fence, AtomicU64, Ordering};

// Program memory is an address that came over the API, hence the casts from integer to pointer
// below. Null is refused, because Rust code must not access it.

/// No hint here: a store takes the line when it comes.
#[inline(always)]
pub(super) fn expect_write(_addr: u64) {}

pub(super) fn fetch(addr: u64, dst: &mut [u8]) -> Result<(), Fault> {
    let mut off = 0;
    while let Some(rest) = dst.get_mut(off..).filter(|r| !r.is_empty()) {
        let at = addr.wrapping_add(off as u64);
        if let (true, Some(word)) = (at & 7 == 0, rest.first_chunk_mut::<8>()) {
            *word = load8(at)?.to_ne_bytes();
            off += 8;
        } else {
            let p = check(at)? as *const u8;
            // SAFETY: the program registered this address as memory of its own; volatile, so a
            // racing change is no assumption of the compiler's.
            rest[0] = unsafe { p.read_volatile() };
            off += 1;
        }
    }
    Ok(())
}

pub(super) fn place(addr: u64, src: &[u8], last: usize) -> Result<(), Fault> {
    let (body, last) = src.split_at(src.len() - last);
    put(addr, body)?;
    // Pairs with the acquire of the program that polls the last word.
    fence(Ordering::Release);
    put(addr.wrapping_add(body.len() as u64), last)
}

pub(super) fn transfer(from: u64, to: u64, len: usize, last: usize) -> Result<(), Fault> {
    let mut piece = [0; 256];
    let body = len - last;
    let mut off = 0;
    while off < body {
        let n = (body - off).min(piece.len());
        fetch(from.wrapping_add(off as u64), &mut piece[..n])?;
        put(to.wrapping_add(off as u64), &piece[..n])?;
        off += n;
    }
    fetch(from.wrapping_add(body as u64), &mut piece[..last])?;
    fence(Ordering::Release);
    put(to.wrapping_add(body as u64), &piece[..last])
}

fn put(addr: u64, src: &[u8]) -> Result<(), Fault> {
    macro_rules! unit {
        ($t:ty, $at:expr, $rest:expr) => {
            match $rest.first_chunk::<{ size_of::<$t>() }>() {
                Some(b) if $at % size_of::<$t>() as u64 == 0 => {
                    let p = check($at)? as *mut $t;
                    // SAFETY: as in `fetch`; the pointer is aligned by the condition above.
                    unsafe { p.write_volatile(<$t>::from_ne_bytes(*b)) };
                    Some(size_of::<$t>())
                }
                _ => None,
            }
        };
    }
    let mut off = 0;
    while let Some(rest) = src.get(off..).filter(|r| !r.is_empty()) {
        let at = addr.wrapping_add(off as u64);
        let done = match unit!(u64, at, rest) {
            None => match unit!(u32, at, rest) {
                None => match unit!(u16, at, rest) {
                    None => unit!(u8, at, rest),
                    some => some,
                },
                some => some,
            },
            some => some,
        };
        off += done.unwrap_or(1);
    }
    Ok(())
}

pub(super) fn load8(addr: u64) -> Result<u64, Fault> {
    let p = check(addr)? as *const u64;
    if addr & 7 == 0 {
        // SAFETY: as in `fetch`; aligned.
        return Ok(unsafe { p.read_volatile() });
    }
    let mut b = [0; 8];
    for (i, b) in b.iter_mut().enumerate() {
        let p = (addr.wrapping_add(i as u64)) as *const u8;
        // SAFETY: as in `fetch`.
        *b = unsafe { p.read_volatile() };
    }
    Ok(u64::from_ne_bytes(b))
}

pub(super) fn store8(addr: u64, value: u64) -> Result<(), Fault> {
    let p = check(addr)? as *mut u64;
    fence(Ordering::Release);
    // SAFETY: as in `fetch`; the caller saw to the alignment.
    unsafe { p.write_volatile(value) };
    Ok(())
}

pub(super) fn fetch_add(addr: u64, add: u64) -> Result<u64, Fault> {
    Ok(atomic(addr)?.fetch_add(add, Ordering::SeqCst))
}

pub(super) fn cmp_swap(addr: u64, compare: u64, swap: u64) -> Result<u64, Fault> {
    match atomic(addr)?.compare_exchange(compare, swap, Ordering::SeqCst, Ordering::SeqCst) {
        Ok(old) | Err(old) => Ok(old),
    }
}

fn atomic<'a>(addr: u64) -> Result<&'a AtomicU64, Fault> {
    let p = check(addr)? as *mut u64;
    // SAFETY: registered memory as in `fetch`, aligned by the caller, used for one operation and
    // dropped.
    Ok(unsafe { AtomicU64::from_ptr(p) })
}

fn check(addr: u64) -> Result<usize, Fault> {
    match usize::try_from(addr) {
        Ok(a) if a != 0 => Ok(a),
        _ => Err(Fault),
    }
}

pub(super) fn fixup(_pc: usize) -> Option<usize> {
    None
}
