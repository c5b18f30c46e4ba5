//! The device, which has queue pairs: one trait for soft devices and NICs.

use crate::cm::types::{CmEvent, ConnParam};
use crate::consts;
use crate::counters::Counters;
use crate::error::Result;
use crate::verbs::cause::Cause;
use crate::verbs::types::{AhAttr, Handle, QpAttr, QpCap, QpInit, RecvWr, SendWr, Wc};

/// What a device can do.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DeviceAttr {
    /// Largest message in bytes.
    pub max_msg_size: u64,
    /// Node GUID in host order.
    pub node_guid: u64,
    /// Protection domains. This and the following limits are what the device can reach after
    /// [`Device::arena_add`], whatever other processes have on its address; without it there is
    /// memory for the configured numbers.
    pub max_pd: u32,
    /// Memory regions and windows.
    pub max_mr: u32,
    /// Longest region in bytes; `u64::MAX` where the device names no bound.
    pub max_mr_size: u64,
    /// Completion queues.
    pub max_cq: u32,
    /// Queue pairs.
    pub max_qp: u32,
    /// Shared receive queues.
    pub max_srq: u32,
    /// Address handles.
    pub max_ah: u32,
    /// Requests in one queue.
    pub max_qp_wr: u32,
    /// Entries of one CQ.
    pub max_cqe: u32,
    /// Pieces of a scatter/gather list.
    pub max_sge: u32,
    /// Inline bytes.
    pub max_inline: u32,
    /// READs and atomics outstanding per QP.
    pub max_rd_atomic: u32,
    /// Largest path MTU code that the link carries ([`crate::verbs::types::mtu`]).
    pub active_mtu: u32,
    /// The device's UDP port.
    pub udp_port: u32,
    /// First QPN of the device's block.
    pub qpn_base: u32,
    /// The device's own GID.
    pub gid: [u8; 16],
    /// IPv6 zone of the GID, else 0.
    pub scope_id: u32,
    /// 1: a soft device, all of whose packets leave from `udp_port`, or from a port that a peer on
    /// the same host can check. 0: they leave from any port.
    pub own_port: u32,
    /// One of [`port_state`].
    pub port_state: u32,
    /// 1: the GID's address is there. 0: it has been removed, and may come back.
    pub has_gid: u32,
}

impl DeviceAttr {
    /// How its peers address the device.
    pub fn ah(&self) -> AhAttr {
        AhAttr {
            dgid: self.gid,
            scope_id: self.scope_id,
            udp_port: self.udp_port as u16,
            ..AhAttr::default()
        }
    }

    /// Whether packets can leave by the port.
    pub fn is_up(&self) -> bool {
        self.port_state == port_state::ACTIVE
    }
}

consts! {
    /// States of a port (ibv_port_state).
    port_state: u32 {
        /// The interface is switched off or has no carrier, or is gone.
        DOWN = 1,
        /// Packets can leave. A port that cannot be watched counts as active: that of a loopback
        /// context, of one over a router, and one in a sandbox without netlink(7).
        ACTIVE = 4,
    }
}

/// Attributes of an MR.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MrAttr {
    /// The program's address of the first byte.
    pub addr: u64,
    /// Length in bytes.
    pub length: u64,
    /// The address that work requests use for the first byte.
    pub iova: u64,
    /// Local key.
    pub lkey: u32,
    /// Remote key.
    pub rkey: u32,
    /// [`crate::verbs::types::access`] flags.
    pub access: u32,
    /// Memory provider: 0 is host memory.
    pub provider: u32,
}

/// An asynchronous event. Frozen.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AsyncEvent {
    /// One of [`async_event`].
    pub event: u32,
    /// Zero.
    pub reserved: u32,
    /// Handle word of the QP, CQ or SRQ concerned; 0: the device or its port.
    pub handle: Handle,
}

consts! {
    /// Asynchronous events (ibv_event_type). An error that a completion reports has none.
    async_event: u32 {
        CQ_ERR = 0,
        /// The queue pair has failed (its memory is gone, or its peer's process has ended) while it
        /// had no request that could report it.
        QP_FATAL = 1,
        /// The queue pair has failed: its peer sent an invalid request that consumes no receive.
        QP_REQ_ERR = 2,
        /// The same for a request without the rights for it: key, range or access.
        QP_ACCESS_ERR = 3,
        COMM_EST = 4, SQ_DRAINED = 5,
        /// A NIC's queue pair goes on by its alternate path, or cannot. A soft device has neither
        /// alternate paths nor a subnet manager: it raises these, and the events of LID, P_Key, SM
        /// and client, only if they are injected.
        PATH_MIG = 6, PATH_MIG_ERR = 7,
        /// The device was removed or has failed for good. A NIC completes no outstanding request. A
        /// soft device raises it when the network interface of its address is removed; its requests
        /// end by their retry counts, and go on if the address comes back before.
        DEVICE_FATAL = 8,
        /// The link of the device's address is up again.
        PORT_ACTIVE = 9,
        /// The link of the device's address is down. Requests wait for it until their retries are
        /// used up.
        PORT_ERR = 10,
        LID_CHANGE = 11, PKEY_CHANGE = 12, SM_CHANGE = 13,
        SRQ_ERR = 14, SRQ_LIMIT_REACHED = 15, QP_LAST_WQE_REACHED = 16,
        CLIENT_REREGISTER = 17,
        /// The device's address was removed from its interface, or is there again.
        GID_CHANGE = 18,
    }
}

/// SRQ attributes.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SrqAttr {
    /// Outstanding requests.
    pub max_wr: u32,
    /// Pieces of a request.
    pub max_sge: u32,
    /// Raise SRQ_LIMIT_REACHED once when fewer requests are left; 0 = off.
    pub srq_limit: u32,
}

/// Objects that a program had not destroyed when it closed a device.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct Leaks {
    pub pd: u32,
    pub mr: u32,
    pub mw: u32,
    pub cq: u32,
    pub qp: u32,
    pub srq: u32,
    pub ah: u32,
}

/// A request of memory registration.
#[derive(Clone, Copy, Debug)]
pub struct MrReg {
    /// Protection domain.
    pub pd: Handle,
    /// Address of the first byte, in the provider's terms (host: a pointer).
    pub addr: u64,
    /// Length in bytes.
    pub length: u64,
    /// The address that work requests will use for the first byte.
    pub iova: u64,
    /// Access flags.
    pub access: u32,
    /// Memory provider: 0 is host memory.
    pub provider: u32,
    /// The provider's own number for the memory.
    pub cookie: u64,
}

/// Where a program serves a CQ: CQs of one place take turns, those of different places need not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CqPlace {
    /// A completion vector, below [`Device::vectors`]; 0: the calling thread.
    Vector(u32),
    /// A thread domain, by its number: those of a device are counted from 0 on.
    Domain(u32),
}

/// A device with queue pairs. Control calls may be slow and check everything; data calls (`post_*`,
/// `poll_cq`, `progress`, `cq_arm`) are bounded and allocate nothing.
///
/// # Thread-safety
/// Any thread may call anything. Two threads at once on the same side of a QP, or the same CQ or
/// SRQ, get [`crate::Error::Busy`].
#[allow(missing_docs)]
pub trait Device: Sync {
    fn query(&self) -> Result<DeviceAttr>;
    /// As [`Device::query`], but the state of the port may be that of an earlier moment. Costs no
    /// system call.
    fn facts(&self) -> Result<DeviceAttr> {
        self.query()
    }
    /// Code of the largest path MTU to a peer, as far as this side can tell.
    fn path_mtu(&self, to: &AhAttr) -> Result<u32> {
        let _ = to;
        Ok(self.query()?.active_mtu)
    }
    fn counters(&self) -> Result<Counters>;
    fn qp_counters(&self, qp: Handle) -> Result<Counters>;
    fn last_cause(&self) -> Result<Cause>;
    fn qp_cause(&self, qp: Handle) -> Result<Cause>;

    fn pd_alloc(&self) -> Result<Handle>;
    fn pd_dealloc(&self, pd: Handle) -> Result<()>;
    /// An XRC domain: its SRQs serve its XRC_RECV queue pairs.
    fn xrcd_alloc(&self) -> Result<Handle> {
        Err(lacks("XRC"))
    }
    fn xrcd_dealloc(&self, _xrcd: Handle) -> Result<()> {
        Err(lacks("XRC"))
    }
    fn mr_reg(&self, reg: &MrReg) -> Result<(Handle, MrAttr)>;
    /// Registers a region anew, under the same handle and keys; a NIC of a router gives others.
    fn mr_rereg(&self, _mr: Handle, _reg: &MrReg) -> Result<MrAttr> {
        Err(lacks("registering a region anew"))
    }
    /// Lets peers of this host write the region's memory by themselves, as far as its keys permit.
    /// The region begins `offset` bytes into the memory of `fd`, which stays the caller's. Ends
    /// with the region. [`crate::Error::Invalid`]: `fd` is not that memory. The default does
    /// nothing.
    fn mr_share(&self, mr: Handle, _fd: i32, _offset: u64) -> Result<()> {
        self.mr_query(mr).map(|_| ())
    }
    fn mr_query(&self, mr: Handle) -> Result<MrAttr>;
    fn mr_dereg(&self, mr: Handle) -> Result<()>;
    /// `mw_type` 1 or 2; returns the handle and the first rkey.
    fn mw_alloc(&self, pd: Handle, mw_type: u32) -> Result<(Handle, u32)>;
    fn mw_dealloc(&self, mw: Handle) -> Result<()>;
    fn ah_create(&self, pd: Handle, attr: &AhAttr) -> Result<Handle>;
    fn ah_destroy(&self, ah: Handle) -> Result<()>;

    /// Makes a UD QP a member of a multicast group, which is a GID. Twice is no error.
    fn mcast_attach(&self, _qp: Handle, _gid: &[u8; 16]) -> Result<()> {
        Err(lacks("multicast"))
    }
    /// Ends a membership; a QP that has one is not destroyed.
    fn mcast_detach(&self, _qp: Handle, _gid: &[u8; 16]) -> Result<()> {
        Err(lacks("multicast"))
    }

    fn cq_create(&self, cqe: u32) -> Result<(Handle, u32)>;
    /// Completion vectors: a program spreads CQs over them that are to be served at the same time.
    fn vectors(&self) -> u32 {
        1
    }
    /// A CQ for those that a program serves at the same place.
    fn cq_create_at(&self, cqe: u32, _place: CqPlace) -> Result<(Handle, u32)> {
        self.cq_create(cqe)
    }
    fn cq_resize(&self, cq: Handle, cqe: u32) -> Result<u32>;
    /// Removes the completions of a QP, by its number, from a CQ, as drivers do when a QP is reset
    /// or destroyed.
    fn cq_purge(&self, _cq: Handle, _qpn: u32) -> Result<()> {
        Err(lacks("taking completions out of a CQ"))
    }
    fn cq_destroy(&self, cq: Handle) -> Result<()>;
    fn srq_create(&self, pd: Handle, attr: &SrqAttr) -> Result<(Handle, SrqAttr)>;
    /// An SRQ of a thread domain, by its number, as [`CqPlace::Domain`].
    fn srq_create_in(&self, _domain: u32, pd: Handle, attr: &SrqAttr) -> Result<(Handle, SrqAttr)> {
        self.srq_create(pd, attr)
    }
    /// An SRQ of an XRC domain, whose receives complete in a CQ of its own: of a PD, an XRC domain
    /// and a CQ.
    fn srq_create_xrc(&self, _of: [Handle; 3], _attr: &SrqAttr) -> Result<(Handle, SrqAttr)> {
        Err(lacks("XRC"))
    }
    fn srq_modify(&self, srq: Handle, limit: u32) -> Result<()>;
    /// Gives an SRQ another size, and with `limit` another limit in the same step; what is posted
    /// stays in its order. Returns the size given.
    fn srq_resize(&self, _srq: Handle, _max_wr: u32, _limit: Option<u32>) -> Result<u32> {
        Err(lacks("resizing an SRQ"))
    }
    fn srq_query(&self, srq: Handle) -> Result<SrqAttr>;
    /// The SRQ's number.
    fn srq_number(&self, _srq: Handle) -> Result<u32> {
        Err(lacks("numbers of SRQs"))
    }
    fn srq_destroy(&self, srq: Handle) -> Result<()>;
    /// Returns the handle, the QPN and the sizes given.
    fn qp_create(&self, init: &QpInit) -> Result<(Handle, u32, QpCap)>;
    fn qp_modify(&self, qp: Handle, attr: &QpAttr, mask: u32) -> Result<()>;
    fn qp_query(&self, qp: Handle) -> Result<(QpAttr, QpInit)>;
    /// Back to RESET from any state, after every posted request has its completion.
    /// [`crate::Error::Again`]: not yet; poll the QP's CQs and call again. Handle, QPN and sizes
    /// stay. [`Device::qp_query`] then has in `sq_psn` one past the last PSN that the QP sent, or 0
    /// if the device does not know it.
    fn qp_reset(&self, qp: Handle) -> Result<()>;
    fn qp_destroy(&self, qp: Handle) -> Result<()>;
    /// Keeps a QP from being destroyed ([`crate::Error::Busy`]) until [`Device::qp_unpin`] was
    /// called as often.
    fn qp_pin(&self, _qp: Handle) -> Result<()> {
        Err(lacks("pins"))
    }
    /// Undoes one [`Device::qp_pin`].
    fn qp_unpin(&self, _qp: Handle) -> Result<()> {
        Err(lacks("pins"))
    }
    /// As [`Device::qp_pin`], for a CQ.
    fn cq_pin(&self, _cq: Handle) -> Result<()> {
        Err(lacks("pins"))
    }
    /// Undoes one [`Device::cq_pin`].
    fn cq_unpin(&self, _cq: Handle) -> Result<()> {
        Err(lacks("pins"))
    }
    /// The QP's number on the wire.
    fn qp_num(&self, qp: Handle) -> Result<u32>;

    /// Posts a list of send requests and rings the doorbell.
    /// On error `bad` names the first request that was not posted; those before it were.
    /// # Safety
    /// `wr` and every `next` and `sg_list` of it are null or point to readable structs.
    unsafe fn post_send(
        &self,
        qp: Handle,
        wr: *const SendWr,
        bad: &mut *const SendWr,
    ) -> Result<()>;
    /// As [`Device::post_send`], but on error none of the list is posted (`ibv_wr_complete`).
    /// # Safety
    /// As for `post_send`.
    unsafe fn post_send_all(&self, _qp: Handle, _wr: *const SendWr) -> Result<()> {
        Err(lacks("lists that are posted whole"))
    }
    /// Posts a list of receive requests.
    /// # Safety
    /// As for `post_send`.
    unsafe fn post_recv(
        &self,
        qp: Handle,
        wr: *const RecvWr,
        bad: &mut *const RecvWr,
    ) -> Result<()>;
    /// Posts a list of receive requests to an SRQ.
    /// # Safety
    /// As for `post_send`.
    unsafe fn post_srq_recv(
        &self,
        srq: Handle,
        wr: *const RecvWr,
        bad: &mut *const RecvWr,
    ) -> Result<()>;
    /// Takes completions; runs the engine if there are none yet. Returns their number.
    fn poll_cq(&self, cq: Handle, wc: &mut [Wc]) -> Result<usize>;
    /// Takes completions that are there already. For a caller that runs the engine by
    /// [`Device::progress`].
    fn take_completions(&self, cq: Handle, wc: &mut [Wc]) -> Result<usize> {
        self.poll_cq(cq, wc)
    }
    /// The next completion (or the next solicited one) makes the descriptor readable. Arming twice
    /// is harmless.
    fn cq_arm(&self, cq: Handle, solicited_only: bool) -> Result<()>;
    /// A completion channel: a descriptor of its own for the events of the CQs that are created
    /// with it.
    fn channel_create(&self) -> Result<Handle> {
        Err(lacks("completion channels"))
    }
    /// [`crate::Error::Busy`]: a CQ has it, or a thread sleeps on it.
    fn channel_destroy(&self, _channel: Handle) -> Result<()> {
        Err(lacks("completion channels"))
    }
    /// A descriptor that is readable while an event of the channel waits.
    fn channel_fd(&self, _channel: Handle) -> Result<i32> {
        Err(lacks("completion channels"))
    }
    /// Takes an armed CQ of a channel that has an event, if any.
    fn channel_event(&self, _channel: Handle) -> Result<Option<Handle>> {
        Err(lacks("completion channels"))
    }
    /// Sleeps until a channel has an event, and takes it; runs the engine meanwhile. `None`: timed
    /// out (−1: never).
    fn channel_wait(&self, _channel: Handle, _timeout_ms: i32) -> Result<Option<Handle>> {
        Err(lacks("completion channels"))
    }
    /// As [`Device::cq_create`], for a CQ whose events go to a channel.
    fn cq_create_on(&self, _cqe: u32, _channel: Handle) -> Result<(Handle, u32)> {
        Err(lacks("completion channels"))
    }
    /// Takes one armed CQ without a channel that has an event, if any.
    fn cq_event(&self) -> Result<Option<Handle>>;
    /// Takes one asynchronous event, if any.
    fn async_event(&self) -> Result<Option<AsyncEvent>>;

    /// One bounded round of the engine: receive, send, timers. Returns the number of packets
    /// handled.
    fn progress(&self) -> Result<usize>;
    /// A descriptor that is readable when `progress` has work, or an armed CQ or an asynchronous
    /// event has something.
    fn fd(&self) -> Result<i32>;
    /// Prepares the descriptor for sleeping: sets its timer from the engine's next deadline. True:
    /// there is work already, do not sleep.
    fn arm(&self) -> Result<bool>;
    /// Sleeps until there is an event, or the time (−1: for ever) is over; runs the engine
    /// meanwhile. False: timed out.
    fn wait(&self, timeout_ms: i32) -> Result<bool>;
    /// Starts or stops the helper thread.
    fn helper(&self, on: bool) -> Result<()>;
    /// Gives the device more memory for tables and rings.
    /// # Safety
    /// The memory is used by nobody else and outlives the device.
    unsafe fn arena_add(&self, memory: *mut u8, bytes: usize) -> Result<()>;
    /// Objects that are not destroyed.
    fn leaks(&self) -> Result<Leaks>;

    /// The device's connection manager.
    fn cm(&self) -> Result<&dyn CmDevice> {
        Err(lacks("a connection manager"))
    }
}

/// The connection manager of a device. Ids are listeners, connections and requests for them.
///
/// # Thread-safety
/// Any thread may call anything. Calls that name a QP count as use of that QP.
#[allow(missing_docs)]
pub trait CmDevice: Sync {
    /// A new id in a port space; `context` comes back with its events.
    fn create(&self, port_space: u16, context: u64) -> Result<Handle>;
    /// Gives an id another context.
    fn set_context(&self, id: Handle, context: u64) -> Result<()>;
    /// Gives an id a port (0: some free one); returns it.
    fn bind(&self, id: Handle, port: u16) -> Result<u16>;
    /// The program will soon listen at the id's port (`soon`), or will not. Requests for the port
    /// are kept meanwhile.
    fn announce(&self, _id: Handle, _soon: bool) -> Result<()> {
        Ok(())
    }
    /// Listens at the id's port.
    fn listen(&self, id: Handle, backlog: u32) -> Result<()>;
    /// Sends `to` a request for a connection of `qp` to the listener at `port`; `qp` 0: the program
    /// moves its QP by itself.
    fn connect(
        &self,
        id: Handle,
        to: &AhAttr,
        port: u16,
        qp: Handle,
        param: &ConnParam<'_>,
    ) -> Result<()>;
    /// Accepts a request with `qp`, which is brought into RTS first.
    fn accept(&self, id: Handle, qp: Handle, param: &ConnParam<'_>) -> Result<()>;
    /// The program's own QP is in RTS: the accepted connection may be established.
    fn establish(&self, id: Handle) -> Result<()>;
    /// Rejects a request, or an answer.
    fn reject(&self, id: Handle, private_data: &[u8]) -> Result<()>;
    /// Ends a connection.
    fn disconnect(&self, id: Handle) -> Result<()>;
    /// Destroys an id, whatever its state.
    fn destroy(&self, id: Handle) -> Result<()>;
    /// Attributes and mask that bring the id's QP into INIT, RTR or RTS.
    fn qp_attr(&self, id: Handle, state: u32) -> Result<(QpAttr, u32)>;
    /// Takes an event, if any, and moves the id's QP to the state that it requires.
    fn event(&self) -> Result<Option<CmEvent>>;
}

/// The error of a call that a device does not implement.
#[cold]
fn lacks(what: &str) -> crate::Error {
    crate::reason::refuse!(Unsupported, "this device has not got {what}")
}

/// Implements a trait of devices for one that stands in front of another: each call of the list
/// goes to `$to` as it is, behind what stands in brackets before it. What follows in braces is done
/// otherwise.
#[macro_export]
macro_rules! forward_calls {
    ([$($head:tt)*], |$own:ident| $to:expr;
     $($([$($before:tt)*])? fn $method:ident($($arg:ident: $type:ty),* $(,)?) -> $out:ty;)*
     { $($rest:tt)* }) => {
        $($head)* {
            $(fn $method(&self, $($arg: $type),*) -> $out {
                let $own = self;
                $($($before)*)?
                $to.$method($($arg),*)
            })*
            $($rest)*
        }
    };
}
