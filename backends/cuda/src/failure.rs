//! The failure of a driver call.

use crate::codes;
use core::ffi::CStr;
use core::fmt;
use gdrcore_core::Error;

/// The failed call, and the driver's number for the reason.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Failure {
    /// The function, or the name that stands for one (`libcuda.so.1`).
    pub call: &'static str,
    /// A `CUresult`; [`Failure::MISSING`] if there is no such function.
    pub code: i32,
    /// The driver's own name of `code`, if the code is the driver's.
    pub name: Option<ResultName>,
}

impl Failure {
    /// The library or the function does not exist.
    pub const MISSING: i32 = -1;
    /// The library exists and cannot be used.
    pub const BROKEN: i32 = -2;

    pub(crate) const fn new(call: &'static str, code: i32) -> Failure {
        Failure { call, code, name: None }
    }

    /// The error that programs see.
    pub fn error(&self) -> Error {
        match self.code {
            // No words here and below: the code that reports the failure writes the reason.
            codes::INVALID_VALUE | codes::INVALID_CONTEXT | codes::INVALID_HANDLE => Error::Invalid,
            codes::OUT_OF_MEMORY => Error::NoMemory,
            codes::NO_DEVICE | codes::INVALID_DEVICE | Failure::MISSING | Failure::BROKEN => {
                Error::NoDevice
            }
            codes::NOT_PERMITTED => Error::Access,
            // No words: as above.
            codes::NOT_SUPPORTED => Error::Unsupported,
            _ => Error::Os(libc::EIO),
        }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.call, self.code) {
            (codes::LIBRARY, Failure::MISSING) => f.write_str(
                "libcuda.so.1 is not on this machine: it comes \
                 with NVIDIA's driver, which needs a GPU",
            ),
            (codes::LIBRARY, _) => {
                f.write_str("libcuda.so.1 cannot be loaded, or is no CUDA driver")
            }
            (call, Failure::MISSING) => {
                write!(f, "the driver has no {call}: a newer one is needed")
            }
            (call, code) => match self.name {
                Some(name) => write!(f, "{call}: {} ({code})", name.to_string_lossy()),
                None => write!(f, "{call}: error {code}"),
            },
        }
    }
}

/// The driver's own name of a result code.
pub type ResultName = &'static CStr;
