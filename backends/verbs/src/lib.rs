//! The verbs device: a NIC, driven through libibverbs.
//!
//! * [`name`]: its device names.
//! * [`load`]: the module `libgdrcore_verbs.so`, the only part that is linked to libibverbs.
//!   [`abi`]: the table between the two.
//! * [`open`]: device, port and GID, chosen or refused with a reason; [`release`]: that of
//!   libibverbs.
//! * [`slots`]: handles; [`control`]: objects; [`qps`]: queue pairs; [`xrc`]: objects of XRC;
//!   [`recover`]: a QP back to RESET.
//! * [`data`]: post and poll; [`extended`]: requests that `ibv_post_send` does not take;
//!   [`pinned`]: post and poll without a lookup.
//! * [`events`]: waiting, and the kernel's events.
//! * [`cm`]: the host's connection manager.
//! * [`cause`]: why an operation failed; [`stats`]: counters.
//! * Data that these share is in `objects`, `cm_ids`, `facts`, `plain`, `drain`, `event_set`.
//!
//! The structs of the data path have libibverbs' layout. So a post or a poll looks up the handle,
//! checks the list, and calls the provider's function with the program's own structs. Nothing here
//! allocates after the module is loaded; libibverbs allocates for new objects.

pub mod abi;
mod cause;
mod cm;
mod cm_ids;
mod control;
mod data;
mod device;
mod drain;
mod event_set;
mod events;
pub mod extended;
mod failure_facts;
mod fast;
mod load;
pub mod name;
mod objects;
mod open;
pub mod pinned;
mod qps;
mod recover;
pub mod release;
mod slots;
mod stats;
mod sys;
#[cfg(test)]
mod tests;
mod unchanged;
mod xrc;

pub use abi::Text;
pub use device::VerbsDevice;
pub use fast::{all_succeeded, Empty, Polled, Posted};

use gdrcore_core::error::{Error, Result};
use gdrcore_core::reason;

/// The result of a module's function: 0 or a positive errno.
fn errno(rc: core::ffi::c_int) -> Result<()> {
    match rc {
        0 => Ok(()),
        // A removed device answers every command with EIO.
        libc::EIO => Err(Error::NoDevice),
        e => Err(reason::refused(
            Error::from_errno(e),
            format_args!("the NIC or its driver refused it (errno {e})"),
        )),
    }
}

/// The error of a provider's post. Providers return ENOMEM for a full queue, some a negative
/// number.
#[cold]
pub fn refused(rc: i32) -> Error {
    match rc.saturating_abs() {
        libc::ENOMEM | libc::EAGAIN | libc::ENOBUFS => Error::Again,
        libc::EIO => Error::NoDevice,
        e => reason::refused(
            Error::from_errno(e),
            format_args!("wr: the NIC's driver refused it (errno {e})"),
        ),
    }
}
