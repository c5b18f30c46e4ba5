//! Ports of the soft device, and the parts of the operating system that it uses.
//!
//! * [`addr`]: device names and endpoints.
//! * [`port`]: the trait of a port that carries packets. [`udp`]: bursts over an unprivileged UDP
//!   socket. [`shm`]: links to other processes of this host.
//! * [`pcap`]: captures of a port's packets as frames. [`inject`]: faults of a port's packets.
//! * [`sock_diag`]: the user and the unread packets of one UDP socket, by the kernel.
//! * [`interface_state`]: the interface of an address: its link, and changes of both.
//!   [`interfaces`]: all interfaces.
//! * [`wait`], [`clock`], [`map`], [`fork`], [`fault`]: descriptors to sleep on, time and
//!   randomness, memory, the fork check, faults on memory that vanished.
//! * [`rights`]: descriptors that travel between processes. [`closing`]: closes those of other
//!   processes.
//! * [`reason`]: the reason text of a thread's last refused call. [`signals`]: system calls that
//!   would end the process.
//! * [`threads`]: stacks and signal masks of this library's threads.
//! * [`addr_group`]: many processes on one address; `local`: the sockets by which processes of one
//!   host find each other.
//! * [`soft`]: the soft device: engine, ports, progress.
//! * [`via`]: a device over a router: the protocol and the tenant's end of it.
//! * [`remote`]: a device whose verbs a router executes: what both ends share, the tenant's end.
//! * [`status`]: what a device tells other processes of its user, and who asks.
//!
//! Only `interfaces`, [`status::ask`] and the control calls of [`remote`] allocate: all other
//! memory comes from the caller at creation.

pub mod addr;
pub mod addr_group;
pub mod clock;
pub mod closing;
pub mod error_stream;
pub mod fault;
pub mod fork;
pub mod inject;
pub mod interface_state;
pub mod interfaces;
mod local;
pub mod map;
mod memfd;
mod netlink;
pub mod pcap;
pub mod port;
pub mod reason;
pub mod remote;
pub mod rights;
mod rseq;
pub mod shm;
pub mod signals;
pub mod sock_diag;
pub mod soft;
pub mod status;
mod sys;
pub mod thread_lock;
mod thread_token;
pub mod threads;
pub mod udp;
pub mod via;
pub mod wait;

/// A burst or frame of this many bytes takes microseconds to handle, more than batching saves. So
/// it is sent at once, and the peer does not wait for the bursts behind it.
const LONG: usize = 16 << 10;
