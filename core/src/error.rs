//! The one error type of gdrcore and its errno numbers.

use core::fmt;

/// Why a call failed. Every variant has one errno; the C API returns its negative.
///
/// Back-pressure ([`Error::Again`]), an exhausted pool ([`Error::NoMemory`]) and a bad argument
/// ([`Error::Invalid`]) are distinct, so that a caller knows whether to poll, to grow or to fix its
/// code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Error {
    /// `EINVAL`: an argument is out of range, an attribute is missing or not allowed in this state.
    Invalid,
    /// `EINVAL`: the handle is stale (its object was destroyed), of another type, or never existed.
    StaleHandle,
    /// `ENOMEM`: a pool or the ring heap is exhausted; give more with `arena_add` or raise the
    /// bound in `Config`.
    NoMemory,
    /// `ENOMEM`: there are as many as a limit allows; more memory does not help.
    Limit,
    /// `EAGAIN`: a ring is full; poll, then try again.
    Again,
    /// `EBUSY`: another thread uses this object now, or other objects still depend on it.
    Busy,
    /// `EACCES`: the memory, key or protection domain does not allow the access.
    Access,
    /// `EFAULT`: memory that cannot be read or written.
    Fault,
    /// `EOPNOTSUPP`: the device cannot do this.
    Unsupported,
    /// `E2BIG`: a struct from a newer header sets fields this library does not know.
    TooBig,
    /// `EMSGSIZE`: a message or work request is larger than the object allows.
    MessageSize,
    /// `ENODEV`: no such device.
    NoDevice,
    /// `EADDRNOTAVAIL`: the address is not one of this machine's.
    AddressNotLocal,
    /// `EADDRINUSE`: the UDP port is taken.
    AddressInUse,
    /// `ETIMEDOUT`: the time ran out.
    TimedOut,
    /// `EOWNERDEAD`: the context belongs to the parent process of this fork.
    OwnerDead,
    /// Another errno of the operating system, positive.
    Os(i32),
}

/// Shorthand for results of this crate.
pub type Result<T, E = Error> = core::result::Result<T, E>;

impl Error {
    /// The error that a positive errno of the system stands for. EOWNERDEAD is [`Error::Os`]: it
    /// says that the owner of a mutex has ended, and nothing of a fork.
    pub const fn from_errno(errno: i32) -> Self {
        match errno {
            22 => Error::Invalid,
            12 | 105 => Error::NoMemory, // ENOMEM, ENOBUFS
            11 => Error::Again,
            16 => Error::Busy,
            1 | 13 => Error::Access, // EPERM, EACCES
            14 => Error::Fault,
            95 | 38 => Error::Unsupported, // EOPNOTSUPP, ENOSYS
            7 => Error::TooBig,
            90 => Error::MessageSize,
            19 => Error::NoDevice,
            99 => Error::AddressNotLocal,
            98 => Error::AddressInUse,
            110 => Error::TimedOut,
            e => Error::Os(e),
        }
    }

    /// The positive errno number on Linux (asm-generic/errno.h).
    pub const fn errno(self) -> i32 {
        match self {
            Error::Invalid | Error::StaleHandle => 22,
            Error::NoMemory | Error::Limit => 12,
            Error::Again => 11,
            Error::Busy => 16,
            Error::Access => 13,
            Error::Fault => 14,
            Error::Unsupported => 95,
            Error::TooBig => 7,
            Error::MessageSize => 90,
            Error::NoDevice => 19,
            Error::AddressNotLocal => 99,
            Error::AddressInUse => 98,
            Error::TimedOut => 110,
            Error::OwnerDead => 130,
            Error::Os(e) => e,
        }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = match self {
            Error::Invalid => "invalid argument",
            Error::StaleHandle => "stale or foreign handle",
            Error::NoMemory => "pool or arena exhausted",
            Error::Limit => "as many as a limit allows",
            Error::Again => "ring full, poll first",
            Error::Busy => "object in use, by another thread or by objects that depend on it",
            Error::Access => "access not allowed",
            Error::Fault => "bad memory address",
            Error::Unsupported => "not supported by this device",
            Error::TooBig => "struct is newer than the library",
            Error::MessageSize => "message too large",
            Error::NoDevice => "no such device",
            Error::AddressNotLocal => "address is not local",
            Error::AddressInUse => "address and port in use",
            Error::TimedOut => "timed out",
            Error::OwnerDead => "context belongs to the parent of this fork",
            Error::Os(e) => return write!(f, "operating system error {e}"),
        };
        f.write_str(text)
    }
}
