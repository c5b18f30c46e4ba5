//! Checks that cannot run on this machine.

use std::io::Write;

/// Says that the running test, or a part of it, cannot run here: `test NAME ... skipped: REASON`.
///
/// The line goes to the standard error stream itself, so that it is seen without `--show-output`,
/// by which libtest hides what passed tests print. `scripts/test.sh` counts it. It begins on a line
/// of its own, since libtest may have begun one.
pub fn skipped(reason: std::fmt::Arguments) {
    let thread = std::thread::current();
    let name = thread.name().unwrap_or("?");
    let line = format!("\ntest {name} ... skipped: {reason}\n");
    // In one write, because other tests write meanwhile. There is nobody to tell of a failure.
    let _ = std::io::stderr().write_all(line.as_bytes());
}

/// Ends the test as skipped, with a reason.
#[macro_export]
macro_rules! skip {
    ($($reason:tt)*) => {{
        $crate::skip::skipped(format_args!($($reason)*));
        return;
    }};
}

/// The value of a `Result`. Without one the test ends as skipped, for the reason in the error.
#[macro_export]
macro_rules! or_skip {
    ($made:expr) => {
        match $made {
            Ok(made) => made,
            Err(why) => $crate::skip!("{why}"),
        }
    };
}
