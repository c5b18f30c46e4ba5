//! The kernel's end of librdmacm. Debian's library opens `/dev/infiniband/rdma_cm` and writes
//! commands into it (the interface of `<rdma/rdma_user_cm.h>`, ABI version 4). Here a device's
//! connection manager answers them, so that the library runs unmodified on machines without kernel
//! RDMA.
//!
//! Layers, low to high. [`proto`] parses commands and writes answers. [`session`] has the state
//! that the kernel would have: ids, their states, and queues of events. It makes no system call,
//! and reaches devices through the trait [`session::Devices`]. [`mod@file`] is the open file: a
//! descriptor that is readable while events are queued, and calls that wait. [`memory`] copies from
//! and to the program.

pub mod file;
pub mod memory;
pub mod proto;
pub mod session;
