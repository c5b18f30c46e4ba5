//! The calls of libibverbs and librdmacm as data: name, arguments and result of each, and the
//! filter that chooses among them; and the settings of the drop-in. `gdrcore-run` checks its
//! command line by this, and the drop-in its environment, and prints, filters and fails calls by
//! it. No system call, no unsafe code, nothing that knows the structs.

mod filter;
pub mod options;
mod table;

pub use filter::{Filter, Object};
pub use table::{is_named, may_fail, Arg, Args, Call, Outcome, Row, CALLS};
