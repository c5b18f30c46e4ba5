//! The calls of libibverbs and librdmacm as data: name, arguments and result of each, and the
//! filter that chooses among them; the settings of the drop-in; and the tables by which its
//! preloaded library calls it. `gdrcore-run` checks its
//! command line by this, and the drop-in its environment, and prints, filters and fails calls by
//! it. No system call, no unsafe code, nothing that knows the structs.

mod filter;
pub mod options;
pub mod preload;
mod table;

pub use filter::{Filter, Object};
pub use table::{is_named, may_fail, Arg, Args, Call, Outcome, Row, CALLS};
