//! Parses commands and defines answers of the kernel's rdma_cm interface as bytes
//! (`include/uapi/rdma/rdma_user_cm.h`, version 4). Native byte order; 64-bit fields aligned to 8
//! bytes, so 64- and 32-bit programs agree.
//!
//! A command is a header (`u32` number, `u16` bytes that follow, `u16` bytes of room for the
//! answer) and its fields. Any bytes parse to a [`Command`] or to an error: too short or unknown is
//! [`Error::Invalid`], too little room for the answer is `ENOSPC`.

mod answer;
mod sockaddr;
#[cfg(test)]
mod tests;

pub use answer::{
    addr_answer, created, event_answer, events_reported, path_answer, qp_attr_answer, route_answer,
    EventParam, Route,
};
pub use sockaddr::Addr;

use gdrcore_core::refuse;
use gdrcore_core::{Error, Result};

/// Largest private data of a command or an event.
pub const DATA_MAX: usize = 256;
/// `ENOSPC`: the answer does not fit.
pub const NO_SPACE: Error = Error::Os(28);
/// `ENOENT`: no such id.
pub const NO_ENTRY: Error = Error::Os(2);

const HEADER: usize = 8;

/// Numbers of the commands.
#[allow(missing_docs)]
pub mod number {
    pub const CREATE_ID: u32 = 0;
    pub const DESTROY_ID: u32 = 1;
    pub const BIND_IP: u32 = 2;
    pub const RESOLVE_IP: u32 = 3;
    pub const RESOLVE_ROUTE: u32 = 4;
    pub const QUERY_ROUTE: u32 = 5;
    pub const CONNECT: u32 = 6;
    pub const LISTEN: u32 = 7;
    pub const ACCEPT: u32 = 8;
    pub const REJECT: u32 = 9;
    pub const DISCONNECT: u32 = 10;
    pub const INIT_QP_ATTR: u32 = 11;
    pub const GET_EVENT: u32 = 12;
    pub const SET_OPTION: u32 = 14;
    pub const NOTIFY: u32 = 15;
    pub const JOIN_IP_MCAST: u32 = 16;
    pub const LEAVE_MCAST: u32 = 17;
    pub const MIGRATE_ID: u32 = 18;
    pub const QUERY: u32 = 19;
    pub const BIND: u32 = 20;
    pub const RESOLVE_ADDR: u32 = 21;
    pub const JOIN_MCAST: u32 = 22;
    pub const WRITE_CM_EVENT: u32 = 24;

    /// The call of librdmacm that a command is part of, for messages.
    pub fn call(number: u32) -> &'static str {
        match number {
            CREATE_ID => "rdma_create_id",
            DESTROY_ID => "rdma_destroy_id",
            BIND_IP | BIND => "rdma_bind_addr",
            RESOLVE_IP | RESOLVE_ADDR => "rdma_resolve_addr",
            RESOLVE_ROUTE => "rdma_resolve_route",
            QUERY_ROUTE | QUERY => "query of an id by librdmacm",
            CONNECT => "rdma_connect",
            LISTEN => "rdma_listen",
            ACCEPT => "rdma_accept",
            REJECT => "rdma_reject",
            DISCONNECT => "rdma_disconnect",
            INIT_QP_ATTR => "rdma_init_qp_attr",
            GET_EVENT => "rdma_get_cm_event",
            SET_OPTION => "rdma_set_option",
            NOTIFY => "rdma_notify",
            JOIN_IP_MCAST | JOIN_MCAST => "rdma_join_multicast",
            LEAVE_MCAST => "rdma_leave_multicast",
            MIGRATE_ID => "rdma_migrate_id",
            WRITE_CM_EVENT => "rdma_write_cm_event",
            _ => "command of librdmacm",
        }
    }
}

/// The kinds of QUERY.
#[allow(missing_docs)]
pub mod query {
    pub const ADDR: u32 = 0;
    pub const PATH: u32 = 1;
    pub const GID: u32 = 2;
}

/// Sizes of the answers.
#[allow(missing_docs)]
pub mod size {
    pub const ID: usize = 4;
    /// Least room for an answer: up to the device index, a later addition.
    pub const ROUTE_MIN: usize = 200;
    pub const ADDR_MIN: usize = 272;
    pub const PATHS_MIN: usize = 8;
    pub const QP_ATTR: usize = 144;
    /// Up to the reserved word and ECE, later additions.
    pub const EVENT_MIN: usize = 324;
    pub const EVENT: usize = 336;
}

/// The parameters of one side in CONNECT and ACCEPT: `rdma_ucm_conn_param`, 272 bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct ConnParam<'a> {
    pub qp_num: u32,
    pub qkey: u32,
    pub private_data: &'a [u8],
    pub srq: bool,
    pub responder_resources: u8,
    pub initiator_depth: u8,
    pub flow_control: bool,
    pub retry_count: u8,
    pub rnr_retry_count: u8,
    /// Whether the other fields are valid. An ACCEPT without them answers a CONNECT_RESPONSE.
    pub valid: bool,
}

/// A command. `response` is the program's address for the answer, `uid` the library's number of an
/// object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Command<'a> {
    CreateId { response: u64, uid: u64, ps: u16, qp_type: u8 },
    DestroyId { response: u64, id: u32 },
    Bind { id: u32, addr: Addr },
    Resolve { id: u32, src: Option<Addr>, dst: Addr },
    ResolveRoute { id: u32 },
    QueryRoute { response: u64, id: u32 },
    Query { response: u64, id: u32, option: u32 },
    Connect { id: u32, param: ConnParam<'a> },
    Listen { id: u32, backlog: u32 },
    Accept { id: u32, uid: u64, param: ConnParam<'a> },
    Reject { id: u32, reason: u8, private_data: &'a [u8] },
    Disconnect { id: u32 },
    InitQpAttr { response: u64, id: u32, qp_state: u32 },
    GetEvent { response: u64 },
    SetOption { id: u32, level: u32, name: u32, value: u64, len: u32 },
    Notify { id: u32, event: u32 },
    Join { response: u64, uid: u64, id: u32, addr: Addr, send_only: bool },
    Leave { response: u64, id: u32 },
    Migrate { response: u64, id: u32, fd: i32 },
    WriteEvent { id: u32, event: u32, status: u32, argument: u64 },
}

#[cold]
fn too_short(len: usize) -> Error {
    refuse!(Invalid, "the command of {len} bytes ends before its last field")
}

#[cold]
fn no_address() -> Error {
    refuse!(Invalid, "addr: none, its family is 0")
}

/// Reads fields out of a slice that may be too short.
#[derive(Clone, Copy)]
struct Fields<'a>(&'a [u8]);

impl<'a> Fields<'a> {
    fn bytes(&self, at: usize, len: usize) -> Result<&'a [u8]> {
        at.checked_add(len)
            .and_then(|end| self.0.get(at..end))
            .ok_or_else(|| too_short(self.0.len()))
    }

    fn array<const N: usize>(&self, at: usize) -> Result<[u8; N]> {
        self.bytes(at, N)?.try_into().map_err(|_| too_short(self.0.len()))
    }

    fn u8(&self, at: usize) -> Result<u8> {
        Ok(self.array::<1>(at)?[0])
    }

    fn u16(&self, at: usize) -> Result<u16> {
        Ok(u16::from_ne_bytes(self.array(at)?))
    }

    fn u32(&self, at: usize) -> Result<u32> {
        Ok(u32::from_ne_bytes(self.array(at)?))
    }

    fn u64(&self, at: usize) -> Result<u64> {
        Ok(u64::from_ne_bytes(self.array(at)?))
    }

    fn private_data(&self, at: usize, len: u8) -> Result<&'a [u8]> {
        self.bytes(at, usize::from(len))
    }

    fn conn_param(&self, at: usize) -> Result<ConnParam<'a>> {
        // The struct must be complete, however few of its bytes are valid.
        self.bytes(at, 272)?;
        Ok(ConnParam {
            qp_num: self.u32(at)?,
            qkey: self.u32(at + 4)?,
            private_data: self.private_data(at + 8, self.u8(at + 264)?)?,
            srq: self.u8(at + 265)? != 0,
            responder_resources: self.u8(at + 266)?,
            initiator_depth: self.u8(at + 267)?,
            flow_control: self.u8(at + 268)? != 0,
            retry_count: self.u8(at + 269)?,
            rnr_retry_count: self.u8(at + 270)?,
            valid: self.u8(at + 271)? != 0,
        })
    }

    /// A `sockaddr_in6`, or a shorter address in its room.
    fn ip(&self, at: usize) -> Result<Option<Addr>> {
        Addr::parse(self.bytes(at, sockaddr::SOCKADDR_IN6)?)
    }

    /// A `sockaddr_storage` with `len` valid bytes.
    fn storage(&self, at: usize, len: u16) -> Result<Option<Addr>> {
        let all = self.bytes(at, sockaddr::SOCKADDR_STORAGE)?;
        Addr::parse(
            all.get(..usize::from(len))
                .ok_or_else(|| refuse!(Invalid, "addr_size {len}: longer than any address"))?,
        )
    }
}

impl<'a> Command<'a> {
    /// Parses a program's command.
    ///
    /// # Errors
    /// [`Error::Invalid`]: too short, no such command, or an address of an unknown family;
    /// `ENOSPC`: the header states less room than the answer needs. The second value of the result
    /// is the room.
    pub fn parse(bytes: &'a [u8]) -> Result<(Command<'a>, usize)> {
        let head = Fields(bytes);
        let (number, len, room) =
            (head.u32(0)?, usize::from(head.u16(4)?), usize::from(head.u16(6)?));
        let f = Fields(head.bytes(HEADER, len)?);
        if room < room_needed(number, &f)? {
            return Err(NO_SPACE);
        }
        Ok((Command::from_fields(number, &f)?, room))
    }

    /// A command by its number and its fields.
    fn from_fields(number: u32, f: &Fields<'a>) -> Result<Command<'a>> {
        Ok(match number {
            number::CREATE_ID => {
                f.bytes(0, 24)?;
                let (ps, qp_type) = (f.u16(16)?, f.u8(18)?);
                Command::CreateId { uid: f.u64(0)?, response: f.u64(8)?, ps, qp_type }
            }
            number::DESTROY_ID => Command::DestroyId { response: f.u64(0)?, id: f.u32(8)? },
            number::LEAVE_MCAST => Command::Leave { response: f.u64(0)?, id: f.u32(8)? },
            number::BIND_IP => {
                Command::Bind { addr: f.ip(8)?.ok_or_else(no_address)?, id: f.u32(36)? }
            }
            number::BIND => Command::Bind {
                id: f.u32(0)?,
                addr: f.storage(8, f.u16(4)?)?.ok_or_else(no_address)?,
            },
            number::RESOLVE_IP => Command::Resolve {
                src: f.ip(0)?,
                dst: f.ip(28)?.ok_or_else(no_address)?,
                id: f.u32(56)?,
            },
            number::RESOLVE_ADDR => Command::resolve_addr(f)?,
            number::RESOLVE_ROUTE => {
                f.bytes(0, 8)?;
                Command::ResolveRoute { id: f.u32(0)? }
            }
            number::QUERY_ROUTE => Command::QueryRoute { response: f.u64(0)?, id: f.u32(8)? },
            number::QUERY => {
                let option = f.u32(12)?;
                Command::Query { response: f.u64(0)?, id: f.u32(8)?, option }
            }
            number::CONNECT => Command::Connect { param: f.conn_param(0)?, id: f.u32(272)? },
            number::LISTEN => Command::Listen { id: f.u32(0)?, backlog: f.u32(4)? },
            number::ACCEPT => {
                Command::Accept { uid: f.u64(0)?, param: f.conn_param(8)?, id: f.u32(280)? }
            }
            number::REJECT => {
                f.bytes(0, 8 + DATA_MAX)?;
                let private_data = f.private_data(8, f.u8(4)?)?;
                Command::Reject { id: f.u32(0)?, reason: f.u8(5)?, private_data }
            }
            number::DISCONNECT => Command::Disconnect { id: f.u32(0)? },
            number::INIT_QP_ATTR => {
                Command::InitQpAttr { response: f.u64(0)?, id: f.u32(8)?, qp_state: f.u32(12)? }
            }
            number::GET_EVENT => Command::GetEvent { response: f.u64(0)? },
            number::SET_OPTION => Command::SetOption {
                value: f.u64(0)?,
                id: f.u32(8)?,
                level: f.u32(12)?,
                name: f.u32(16)?,
                len: f.u32(20)?,
            },
            number::NOTIFY => Command::Notify { id: f.u32(0)?, event: f.u32(4)? },
            number::JOIN_IP_MCAST | number::JOIN_MCAST => Command::join(number, f)?,
            number::MIGRATE_ID => {
                Command::Migrate { response: f.u64(0)?, id: f.u32(8)?, fd: f.u32(12)? as i32 }
            }
            number::WRITE_CM_EVENT => Command::WriteEvent {
                id: f.u32(0)?,
                event: f.u32(8)?,
                status: f.u32(12)?,
                argument: f.u64(16)?,
            },
            _ => return Err(refuse!(Invalid, "command {number}: unknown")),
        })
    }

    fn resolve_addr(f: &Fields<'a>) -> Result<Command<'a>> {
        let src = match f.u16(8)? {
            0 => None,
            len => f.storage(16, len)?,
        };
        let dst = f.storage(16 + sockaddr::SOCKADDR_STORAGE, f.u16(10)?)?;
        Ok(Command::Resolve { id: f.u32(0)?, src, dst: dst.ok_or_else(no_address)? })
    }

    /// Parses either of the two commands that join a group.
    fn join(number: u32, f: &Fields<'a>) -> Result<Command<'a>> {
        let (response, uid) = (f.u64(0)?, f.u64(8)?);
        if number == number::JOIN_IP_MCAST {
            let addr = f.ip(16)?.ok_or_else(no_address)?;
            return Ok(Command::Join { response, uid, addr, id: f.u32(44)?, send_only: false });
        }
        let addr = f.storage(24, f.u16(20)?)?.ok_or_else(no_address)?;
        let send_only = match f.u16(22)? {
            0 => false,
            1 => true,
            flags => return Err(refuse!(Invalid, "join_flags {flags}: 0 or 1")),
        };
        Ok(Command::Join { response, uid, id: f.u32(16)?, addr, send_only })
    }
}

/// Least room of a command's answer.
fn room_needed(number: u32, f: &Fields<'_>) -> Result<usize> {
    Ok(match number {
        number::CREATE_ID | number::DESTROY_ID | number::MIGRATE_ID => size::ID,
        number::JOIN_IP_MCAST | number::JOIN_MCAST | number::LEAVE_MCAST => size::ID,
        number::QUERY_ROUTE => size::ROUTE_MIN,
        number::QUERY if f.u32(12)? == query::PATH => size::PATHS_MIN,
        number::QUERY => size::ADDR_MIN,
        number::INIT_QP_ATTR => size::QP_ATTR,
        number::GET_EVENT => size::EVENT_MIN,
        _ => 0,
    })
}
