//! Entries of `/proc/net/udp` for the UDP sockets of this network namespace: the user of a port,
//! and whether a socket is read.

mod port_owner;
mod udp_list;
mod unread;

pub use port_owner::{port_owner, ports_towards};
pub use unread::{unread, Unread};
