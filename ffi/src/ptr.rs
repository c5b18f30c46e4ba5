//! The only place where pointers of C callers are dereferenced.
//!
//! Null, alignment and `struct_size` are checked. That the memory behind a pointer is the caller's
//! cannot be checked: it is the contract of each function in the header, and the macros state that
//! proof at the call sites. Nothing here panics.

use crate::c_result::{count, errno, refuse};
use crate::c_types::*;
use core::ffi::{c_char, c_int, CStr};
use core::fmt;
use core::mem::{size_of, MaybeUninit};
use gdrcore_core::{Error, Result};

/// A longer struct of a newer header is refused without reading its tail.
const STRUCT_SIZE_MAX: usize = 4096;

/// The pointer argument `name` may be neither null nor misaligned.
#[inline(always)]
pub(crate) fn check<T>(p: *const T, name: &str) -> Result<()> {
    if p.is_null() || !p.is_aligned() {
        return Err(bad_pointer(p.addr(), align_of::<T>(), name));
    }
    Ok(())
}

/// `name` is the expression at the call, so that it cannot differ from the argument's name:
/// `inout.cast_const()`.
#[cold]
#[inline(never)]
fn bad_pointer(at: usize, align: usize, name: &str) -> Error {
    let name = argument(name);
    match at {
        0 => refuse!(Invalid, "{name}: NULL"),
        at => refuse!(Invalid, "{name} {at:#x}: not aligned to {align} bytes"),
    }
}

/// The argument in an expression.
fn argument(expression: &str) -> &str {
    expression.split('.').next().unwrap_or(expression)
}

/// The name of a struct without its path.
fn type_name<T>() -> &'static str {
    core::any::type_name::<T>().rsplit("::").next().unwrap_or("")
}

/// The destination of a result. Checked for null and alignment before the call has any effect;
/// written only on success.
pub(crate) struct Out<T>(*mut T);

impl<T> Out<T> {
    /// # Safety
    /// `p` is null, misaligned, or writable for a `T` until the returned value is dropped.
    #[inline(always)]
    pub(crate) unsafe fn new(p: *mut T, name: &str) -> Result<Self> {
        check(p, name)?;
        Ok(Out(p))
    }

    /// As `new`, with null for "not wanted".
    /// # Safety
    /// As for `new`.
    pub(crate) unsafe fn optional(p: *mut T, name: &str) -> Result<Option<Self>> {
        if p.is_null() {
            return Ok(None);
        }
        // SAFETY: the same contract as ours.
        unsafe { Self::new(p, name) }.map(Some)
    }

    #[inline(always)]
    pub(crate) fn write(self, v: T) {
        // SAFETY: `new` was promised a writable place, and checked that it is non-null and aligned.
        unsafe { self.0.write(v) }
    }

    /// Writes what there is, and returns how many that are: 0 or 1.
    pub(crate) fn write_if(self, v: Option<T>) -> c_int {
        v.map_or(0, |v| {
            self.write(v);
            1
        })
    }
}

/// A struct whose first field is `u32 struct_size`.
/// # Safety
/// `repr(C)`, no niches, no drop: all-zero bytes and any mix of bytes are a value; the first field
/// is that `u32`.
pub(crate) unsafe trait Versioned: Copy {}

macro_rules! versioned {
    // SAFETY: repr(C) structs of integers and raw pointers in types.rs, each with struct_size
    // first.
    ($($t:ty)*) => { $(unsafe impl Versioned for $t {})* };
}
versioned! {
    gdrc_config gdrc_device_attr gdrc_mr_attr gdrc_srq_attr gdrc_qp_init gdrc_qp_attr gdrc_leaks
    gdrc_endpoint gdrc_qp_connect_opts gdrc_memory gdrc_cuda_attr
}

/// `struct_size` of the struct at `p`, if it can be one.
/// # Safety
/// `p` is null, misaligned, or readable for 4 bytes.
unsafe fn struct_size<T: Versioned>(p: *const T, name: &str) -> Result<usize> {
    check(p, name)?;
    // SAFETY: non-null and aligned by `check`; `Versioned` says that a u32 lies first.
    let n = unsafe { p.cast::<u32>().read() } as usize;
    let name = argument(name);
    if n < size_of::<u32>() {
        return Err(refuse!(
            Invalid,
            "{name}->struct_size {n}: set it to sizeof(struct {})",
            type_name::<T>()
        ));
    }
    if n > STRUCT_SIZE_MAX {
        return Err(refuse!(
            TooBig,
            "{name}->struct_size {n}: no struct {} is so long",
            type_name::<T>()
        ));
    }
    Ok(n)
}

/// A zeroed `T` with its own size in it.
pub(crate) fn zeroed<T: Versioned>() -> T {
    let mut v = MaybeUninit::<T>::zeroed();
    // SAFETY: `Versioned`: a u32 lies first, and the struct is aligned for its fields.
    unsafe { v.as_mut_ptr().cast::<u32>().write(size_of::<T>() as u32) };
    // SAFETY: `Versioned`: all-zero bytes are a value.
    unsafe { v.assume_init() }
}

/// Copies a struct of the caller's version into one of ours: a missing tail is zero, which means
/// default; a longer tail must be zero, since otherwise the caller sets options that this library
/// does not know.
/// # Safety
/// `p` is null, misaligned, or readable for 4 bytes and for the `struct_size` that they hold.
pub(crate) unsafe fn read<T: Versioned>(p: *const T, name: &str) -> Result<T> {
    // SAFETY: our contract covers the 4 bytes.
    let n = unsafe { struct_size(p, name) }?;
    let ours = size_of::<T>();
    let bytes = p.cast::<u8>();
    for i in ours..n {
        // SAFETY: i < n = struct_size, which our contract says is readable.
        if unsafe { bytes.add(i).read() } != 0 {
            return Err(refuse!(
                TooBig,
                "{}: byte {i} of struct {} is set, which is \
                 from a newer header than this library ({})",
                argument(name),
                type_name::<T>(),
                env!("CARGO_PKG_VERSION")
            ));
        }
    }
    let mut v = zeroed::<T>();
    // SAFETY: n bytes are readable at `p`, `v` has `ours` bytes, and a local never overlaps the
    // caller's memory.
    unsafe { core::ptr::copy_nonoverlapping(bytes, (&raw mut v).cast::<u8>(), n.min(ours)) };
    Ok(v)
}

/// As [`read`], with null for "all defaults".
/// # Safety
/// As for `read`.
pub(crate) unsafe fn read_optional<T: Versioned>(p: *const T, name: &str) -> Result<T> {
    if p.is_null() {
        return Ok(zeroed());
    }
    // SAFETY: the same contract as ours.
    unsafe { read(p, name) }
}

/// The destination of a struct of the caller's version.
pub(crate) struct VersionedOut<T>(*mut T, usize);

impl<T: Versioned> VersionedOut<T> {
    /// # Safety
    /// `p` is null, misaligned, or readable for 4 bytes and writable for the `struct_size` that
    /// they hold until the returned value is dropped.
    pub(crate) unsafe fn new(p: *mut T, name: &str) -> Result<Self> {
        // SAFETY: our contract covers the 4 bytes.
        let n = unsafe { struct_size(p, name) }?;
        Ok(VersionedOut(p, n))
    }

    /// As `new`, with null for "not wanted".
    /// # Safety
    /// As for `new`.
    pub(crate) unsafe fn optional(p: *mut T, name: &str) -> Result<Option<Self>> {
        if p.is_null() {
            return Ok(None);
        }
        // SAFETY: the same contract as ours.
        unsafe { Self::new(p, name) }.map(Some)
    }

    /// Writes the fields of both versions, zeroes those of the caller's version only, keeps the
    /// caller's `struct_size`.
    pub(crate) fn write(self, v: &T) {
        let VersionedOut(p, n) = self;
        let head = size_of::<u32>();
        let known = n.min(size_of::<T>());
        let src = (&raw const *v).cast::<u8>();
        let dst = p.cast::<u8>();
        // SAFETY: head <= known (struct_size is at least 4), so the start lies within `v` and
        // within the n bytes of `p`.
        let (src, to) = unsafe { (src.add(head), dst.add(head)) };
        // SAFETY: known <= size_of::<T>() and known <= n, which the caller of `new` declared
        // writable; `v` is ours.
        unsafe { core::ptr::copy_nonoverlapping(src, to, known - head) };
        // SAFETY: known <= n.
        let tail = unsafe { dst.add(known) };
        // SAFETY: the n - known bytes after `known` are writable by the contract of `new`.
        unsafe { core::ptr::write_bytes(tail, 0, n - known) };
    }
}

/// A C string of at most [`GDRC_DEVICE_NAME_MAX`](crate::c_consts::GDRC_DEVICE_NAME_MAX) bytes as
/// text.
/// # Safety
/// `p` is null or points to a NUL-terminated string that outlives `'a`.
pub(crate) unsafe fn text<'a>(p: *const c_char, name: &str) -> Result<&'a str> {
    // SAFETY: the same contract as ours.
    let s = unsafe { cstr(p, crate::c_consts::GDRC_DEVICE_NAME_MAX as usize, name) }?;
    s.to_str().map_err(|_| refuse!(Invalid, "{name}: not UTF-8"))
}

/// A C string of at most `max` bytes.
/// # Safety
/// As for `text`.
pub(crate) unsafe fn cstr<'a>(p: *const c_char, max: usize, name: &str) -> Result<&'a CStr> {
    check(p, name)?;
    for n in 0..=max {
        // SAFETY: bytes up to and including the NUL are readable, and none before n was NUL.
        if unsafe { p.add(n).read() } == 0 {
            // SAFETY: the NUL lies at n, within readable memory that outlives 'a.
            return Ok(unsafe { CStr::from_ptr(p) });
        }
    }
    Err(refuse!(Invalid, "{name}: longer than {max} bytes"))
}

/// Formats into a caller's buffer like snprintf: NUL-terminated, truncated if it does not fit;
/// returns the length of the whole without the NUL.
/// # Safety
/// `buf` is null or writable for `len` bytes.
pub(crate) unsafe fn format(
    buf: *mut c_char,
    len: usize,
    args: fmt::Arguments<'_>,
) -> Result<c_int> {
    if buf.is_null() && len != 0 {
        return Err(refuse!(Invalid, "buf: NULL, and len is {len}"));
    }
    let mut w = Writer { buf: buf.cast(), room: len.saturating_sub(1), needed: 0 };
    // Writer never fails, and neither do the Display implementations of core.
    let _ = fmt::write(&mut w, args);
    if len > 0 {
        let end = w.needed.min(len - 1);
        // SAFETY: end < len, and `buf` is writable for len bytes.
        unsafe { buf.add(end).write(0) };
    }
    Ok(count(w.needed))
}

struct Writer {
    buf: *mut u8,
    room: usize,
    needed: usize,
}

impl fmt::Write for Writer {
    fn write_str(&mut self, s: &str) -> fmt::Result {
        let take = self.room.saturating_sub(self.needed).min(s.len());
        if take > 0 {
            // SAFETY: needed < room <= the buffer's length where take > 0 (see `take`).
            let to = unsafe { self.buf.add(self.needed) };
            // SAFETY: needed + take <= room, within the buffer that `format` was promised; a str of
            // ours does not overlap it.
            unsafe { core::ptr::copy_nonoverlapping(s.as_ptr(), to, take) };
        }
        self.needed = self.needed.saturating_add(s.len());
        Ok(())
    }
}

/// Copies a name into a field of a struct of ours: truncated if it does not fit, and
/// NUL-terminated.
pub(crate) fn put_text<const N: usize>(field: &mut [c_char; N], text: &str) {
    for (to, byte) in field[..N - 1].iter_mut().zip(text.bytes()) {
        *to = byte as c_char;
    }
}

/// `Out` of a pointer argument; returns from the function with -EINVAL on null or misaligned.
macro_rules! out {
    ($p:expr) => {{
        // SAFETY: the header's contract: the argument is NULL or a writable struct of its type, for
        // the call's length.
        (unsafe { $crate::ptr::Out::new($p, stringify!($p)) })?
    }};
}
/// As `out!`, NULL allowed.
macro_rules! out_optional {
    ($p:expr) => {{
        // SAFETY: as for out!.
        (unsafe { $crate::ptr::Out::optional($p, stringify!($p)) })?
    }};
}
/// A struct with struct_size that the caller filled.
macro_rules! sized_in {
    ($p:expr) => {{
        // SAFETY: the header's contract: NULL or a readable struct of struct_size bytes.
        (unsafe { $crate::ptr::read($p, stringify!($p)) })?
    }};
}
/// As `sized_in!`, NULL means all defaults.
macro_rules! sized_in_optional {
    ($p:expr) => {{
        // SAFETY: as for sized_in!.
        (unsafe { $crate::ptr::read_optional($p, stringify!($p)) })?
    }};
}
/// A struct with struct_size that the call fills.
macro_rules! sized_out {
    ($p:expr) => {{
        // SAFETY: the header's contract: NULL or a writable struct of struct_size bytes, for the
        // call's length.
        (unsafe { $crate::ptr::VersionedOut::new($p, stringify!($p)) })?
    }};
}
/// As `sized_out!`, NULL allowed.
macro_rules! sized_out_optional {
    ($p:expr) => {{
        // SAFETY: as for sized_out!.
        (unsafe { $crate::ptr::VersionedOut::optional($p, stringify!($p)) })?
    }};
}
/// A frozen struct that the caller filled, copied.
macro_rules! plain_in {
    ($p:expr) => {{
        let p = $p;
        // SAFETY: the header's contract: NULL or a readable struct of its type.
        (unsafe { $crate::ptr::read_plain(p, stringify!($p)) })?
    }};
}
pub(crate) use {
    out, out_optional, plain_in, sized_in, sized_in_optional, sized_out, sized_out_optional,
};

/// Copies a frozen struct.
/// # Safety
/// `p` is null, misaligned, or readable for a `T`.
pub(crate) unsafe fn read_plain<T: Copy>(p: *const T, name: &str) -> Result<T> {
    check(p, name)?;
    // SAFETY: non-null and aligned by `check`, readable by our contract.
    Ok(unsafe { p.read() })
}

/// The caller's array of `n` completions.
/// # Safety
/// `p` is null, misaligned, or writable for `n` structs, and not used by others during `'a`.
#[inline(always)]
pub(crate) unsafe fn wc_slice<'a>(p: *mut Wc, n: c_int) -> Result<&'a mut [Wc]> {
    check(p, "wc")?;
    let n = usize::try_from(n).map_err(|_| negative(n))?;
    // SAFETY: aligned and non-null by `check`; writable for n by our contract; integers only, so
    // that any bytes are values; n * 48 < isize::MAX as n is a C int.
    Ok(unsafe { core::slice::from_raw_parts_mut(p, n) })
}

#[cold]
#[inline(never)]
fn negative(n: c_int) -> Error {
    refuse!(Invalid, "num_entries {n}: negative")
}

/// The result of a post of the list at `wr`. `post` gets the place for the first request that it
/// did not post, which is `wr` at first.
///
/// # Safety
/// `bad` is NULL or writable; `post` may follow the list.
#[inline(always)]
pub(crate) unsafe fn posted<T>(
    wr: *const T,
    bad: *mut *const T,
    post: impl FnOnce(&mut *const T) -> Result<()>,
) -> c_int {
    let mut first = wr;
    match check(wr, "wr").and_then(|()| post(&mut first)) {
        Ok(()) => 0,
        // SAFETY: our contract.
        Err(e) => unsafe { report_bad(e, bad, first) },
    }
}

/// Reports the first request that was not posted.
/// # Safety
/// `bad` is null, misaligned or writable.
#[cold]
#[inline(never)]
pub(crate) unsafe fn report_bad<T>(e: Error, bad: *mut *const T, first: *const T) -> c_int {
    if !bad.is_null() && bad.is_aligned() {
        // SAFETY: our contract.
        unsafe { bad.write(first) };
    }
    errno(e)
}
