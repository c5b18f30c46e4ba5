//! Why the last open failed, in words, per thread. Fixed memory: an open that fails for want of memory can still say so.

use crate::ptr;
use core::cell::UnsafeCell;
use core::ffi::{c_char, c_int};
use core::fmt;
use gdrcore_core::{Error, Result};

const TEXT_MAX: usize = 512;

struct Text(UnsafeCell<[u8; TEXT_MAX]>);

thread_local! {
    // Const and without drop: no allocation, no destructor to register.
    static TEXT: Text = const { Text(UnsafeCell::new([0; TEXT_MAX])) };
}

/// Keeps the text of this thread's failure.
pub(crate) fn set(args: fmt::Arguments<'_>) {
    TEXT.with(|t| {
        // SAFETY: the cell is this thread's own and no reference into it lives across calls; TEXT_MAX bytes are writable.
        let _ = unsafe { ptr::format(t.0.get().cast(), TEXT_MAX, args) };
    });
}

/// Forgets it: an open succeeded.
pub(crate) fn clear() {
    set(format_args!(""));
}

/// Words for the error of an open, with what to do about it.
pub(crate) fn explain(device: &str, stage: Stage, e: Error) {
    match (stage, e) {
        (_, Error::AddressNotLocal) => set(format_args!(
            "'{device}': no interface of this machine has this address; `ip address` lists them"
        )),
        (_, Error::AddressInUse) => set(format_args!(
            "'{device}': another process has this UDP port; stop it, or give another port, \"soft:<address>:<port>\" (peers learn it from the endpoint descriptor)"
        )),
        (Stage::Config, Error::TooBig) => set(format_args!(
            "'{device}': gdrc_config is from a newer header and sets a field that this library ({}) does not know",
            env!("CARGO_PKG_VERSION")
        )),
        (Stage::Config, _) => set(format_args!(
            "'{device}': gdrc_config: struct_size is not sizeof(struct gdrc_config), or a flag or reserved field is set that has no meaning"
        )),
        (Stage::Name, _) => set(format_args!(
            "the device name must be \"soft:<address>[:port]\" (IPv6 in brackets), \"verbs:<device>[:port][:gid-index]\" or \"loopback\", at most {} bytes of UTF-8",
            crate::consts::GDRC_DEVICE_NAME_MAX
        )),
        (Stage::Size, Error::Invalid | Error::NoDevice) => set(format_args!(
            "'{device}': not a device name (\"soft:<address>[:port]\", \"soft:[<IPv6>]:<port>\", \"verbs:<device>[:port][:gid-index]\", \"loopback\"), or a bound of gdrc_config is out of range"
        )),
        (Stage::Size, e) => set(format_args!("'{device}': {e}: a bound of gdrc_config is out of range")),
        (Stage::Memory { need, have }, Error::Invalid) => set(format_args!(
            "memory for '{device}' must not be NULL and must be aligned to {} bytes ({have} bytes given, {need} needed)",
            crate::consts::GDRC_CONTEXT_ALIGN
        )),
        (Stage::Memory { need, have }, Error::NoMemory) => set(format_args!(
            "'{device}' needs {need} bytes for this gdrc_config, {have} were given; ask gdrc_context_size, or lower the bounds"
        )),
        (Stage::Memory { need, .. }, e) => set(format_args!(
            "cannot map {need} bytes for '{device}': {e}; lower the bounds of gdrc_config or raise `ulimit -v`"
        )),
        (Stage::Slots, _) => set(format_args!("'{device}': this process has {} contexts open; close some", crate::context::SLOTS)),
        (Stage::Device, Error::Os(n)) => set(format_args!(
            "'{device}': the system refused: {} (errno {n})",
            crate::strings::describe(n).to_str().unwrap_or("error")
        )),
        (Stage::Device, Error::NoMemory) => set(format_args!(
            "'{device}': memory or a resource limit is exhausted (`ulimit -n` bounds sockets, `ulimit -l` locked memory)"
        )),
        (Stage::Device, e) => set(format_args!("'{device}': cannot open: {e}")),
        (Stage::Argument, _) => set(format_args!("the out pointer of the call is NULL or misaligned")),
    }
}

/// Where an open failed.
#[derive(Clone, Copy)]
pub(crate) enum Stage {
    Argument,
    Name,
    Config,
    Size,
    Memory { need: usize, have: usize },
    Slots,
    Device,
}

/// Copies the reason why this thread's last gdrc_context_size, gdrc_context_init, gdrc_open, gdrc_mr_reg_memory or
/// gdrc_cuda_ call failed, and what to do about it, into `buf` like snprintf: NUL-terminated, cut at `len`. Empty after a success.
///
/// Returns the length of the whole text without the NUL; `buf` may be NULL when `len` is 0.
/// Errors: -EINVAL: buf is NULL and len is not 0.
/// Threads: any. Cost: no system call, no allocation.
#[no_mangle]
pub unsafe extern "C" fn gdrc_open_error(buf: *mut c_char, len: usize) -> c_int {
    ptr::ret(copy(buf, len))
}

fn copy(buf: *mut c_char, len: usize) -> Result<c_int> {
    TEXT.with(|t| {
        // SAFETY: this thread's own cell; `format` copies out of it before anything can write it.
        let text = unsafe { ptr::cstr(t.0.get().cast(), TEXT_MAX - 1) }?.to_str().unwrap_or("");
        // SAFETY: the header's contract: buf is NULL or writable for len bytes. A buffer is never our cell.
        unsafe { ptr::format(buf, len, format_args!("{text}")) }
    })
}
