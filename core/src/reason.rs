//! Why a call was refused, in words.
//!
//! An [`Error`] is a number; its reason is a sentence: which argument, what it was, which bound or
//! state forbids it. [`refuse!`](crate::refuse) makes both where the call is refused. The words go
//! to the sink that the program's surface has installed (`gdrcore_net::reason` keeps them for each
//! thread); without a sink they go nowhere. So this crate needs no thread-local memory, an error
//! stays one word, and a call that succeeds pays nothing.
//!
//! `tests/tests/reasons.rs` finds an `EINVAL` that is made without words.

use core::fmt;

use crossbeam_utils::atomic::AtomicCell;

use crate::error::Error;
pub use crate::refuse;

/// Takes the words for an error that is about to be returned on this thread. It must not block,
/// allocate or call back.
pub type Sink = fn(Error, fmt::Arguments<'_>);

static SINK: AtomicCell<Option<Sink>> = AtomicCell::new(None);

/// Sends the words of every later refusal of this process to `sink`. Any thread, any number of
/// times.
pub fn install(sink: Sink) {
    SINK.store(Some(sink));
}

/// Passes the words of `e` to the sink, and returns `e`. Out of line: most calls succeed.
#[cold]
#[inline(never)]
pub fn refused(e: Error, words: fmt::Arguments<'_>) -> Error {
    if let Some(sink) = SINK.load() {
        sink(e, words);
    }
    e
}

/// The [`Error`] of this variant, with its reason:
/// `refuse!(Invalid, "cqe {cqe}: at most {MAX_CQE}")`.
///
/// Words begin with the argument's name as the C API and libibverbs have it, say what it was, then
/// the rule.
#[macro_export]
macro_rules! refuse {
    ($variant:ident $(($number:expr))?, $($words:tt)+) => {
        $crate::reason::refused(
            $crate::Error::$variant $(($number))?,
            ::core::format_args!($($words)+),
        )
    };
}
