//! Prints the commands of librdmacm to the kernel, which are its calls.

use super::names::Named;
use super::words::Words;
use crate::peek::peek;
use core::fmt::{self, Write};
use gdrcore_calls::{Object, Row};
use gdrcore_core::mem::host;
use gdrcore_ucma::proto::{number, Addr, Command, ConnParam};

/// Longest command that is read, as the device file reads them.
const COMMAND_MAX: usize = 512;
/// Where event, id and status stand in the answer of GET_EVENT.
const EVENT_ID: usize = 8;

/// The row of the command at `at`.
pub fn row(at: usize) -> usize {
    let number = peek::<u32>(at);
    let name = match number {
        Some(number::QUERY_ROUTE | number::QUERY) => "rdma_query",
        Some(number) => number::call(number),
        None => "",
    };
    Row::of(name).unwrap_or(Row::rdma_command as usize)
}

/// `rdma_cm_event_type` without its prefix.
fn event_name(event: u32) -> &'static str {
    const NAMES: [&str; 16] = [
        "ADDR_RESOLVED",
        "ADDR_ERROR",
        "ROUTE_RESOLVED",
        "ROUTE_ERROR",
        "CONNECT_REQUEST",
        "CONNECT_RESPONSE",
        "CONNECT_ERROR",
        "UNREACHABLE",
        "REJECTED",
        "ESTABLISHED",
        "DISCONNECTED",
        "DEVICE_REMOVAL",
        "MULTICAST_JOIN",
        "MULTICAST_ERROR",
        "ADDR_CHANGE",
        "TIMEWAIT_EXIT",
    ];
    NAMES.get(event as usize).unwrap_or(&"?")
}

/// The bytes of a command, as many as there are.
fn bytes(at: usize, len: usize, buffer: &mut [u8; COMMAND_MAX]) -> Option<&[u8]> {
    let bytes = &mut buffer[..len.min(COMMAND_MAX)];
    host::fetch(at as u64, bytes).ok()?;
    Some(bytes)
}

fn id(w: &mut Words<'_>, n: u32) -> fmt::Result {
    w.names(Object::Id, n);
    write!(w, "id#{n}")
}

fn address(w: &mut Words<'_>, name: &str, a: &Addr) -> fmt::Result {
    write!(w, ", {name}={} port {}", a.ip, a.port)
}

fn param(w: &mut Words<'_>, p: &ConnParam<'_>) -> fmt::Result {
    w.names(Object::Qp, p.qp_num);
    write!(w, ", qp_num={:#x}, private_data_len={}", p.qp_num, p.private_data.len())?;
    write!(w, ", responder_resources={}", p.responder_resources)?;
    write!(w, ", initiator_depth={}", p.initiator_depth)?;
    write!(w, ", retry_count={}, rnr_retry_count={}", p.retry_count, p.rnr_retry_count)
}

/// The fields of the command of `len` bytes at `at`.
pub fn command(w: &mut Words<'_>, at: usize, len: usize) -> fmt::Result {
    let mut buffer = [0; COMMAND_MAX];
    let parsed = bytes(at, len, &mut buffer).and_then(|b| Command::parse(b).ok());
    let Some((command, _)) = parsed else { return write!(w, ", {len} bytes at {at:#x}") };
    if let Some(of) = id_of(&command) {
        w.write_str(", ")?;
        id(w, of)?;
    }
    fields(w, &command)
}

/// The id that a command is about.
fn id_of(c: &Command<'_>) -> Option<u32> {
    use Command as C;
    match *c {
        C::DestroyId { id, .. }
        | C::Bind { id, .. }
        | C::Resolve { id, .. }
        | C::ResolveRoute { id }
        | C::QueryRoute { id, .. }
        | C::Query { id, .. }
        | C::Connect { id, .. }
        | C::Listen { id, .. }
        | C::Accept { id, .. }
        | C::Reject { id, .. }
        | C::Disconnect { id }
        | C::InitQpAttr { id, .. }
        | C::SetOption { id, .. }
        | C::Notify { id, .. }
        | C::Join { id, .. }
        | C::Leave { id, .. }
        | C::Migrate { id, .. }
        | C::WriteEvent { id, .. } => Some(id),
        C::CreateId { .. } | C::GetEvent { .. } => None,
    }
}

/// What else a command says.
fn fields(w: &mut Words<'_>, c: &Command<'_>) -> fmt::Result {
    match c {
        Command::CreateId { ps, qp_type, .. } => write!(w, ", ps={ps:#x}, qp_type={qp_type}"),
        Command::Bind { addr, .. } => address(w, "addr", addr),
        Command::Resolve { src, dst, .. } => {
            if let Some(src) = src {
                address(w, "src_addr", src)?;
            }
            address(w, "dst_addr", dst)
        }
        Command::Query { option, .. } => write!(w, ", option={option}"),
        Command::Connect { param: p, .. } | Command::Accept { param: p, .. } => param(w, p),
        Command::Listen { backlog, .. } => write!(w, ", backlog={backlog}"),
        Command::Reject { reason, private_data, .. } => {
            write!(w, ", reason={reason}, private_data_len={}", private_data.len())
        }
        Command::InitQpAttr { qp_state, .. } => {
            let name = gdrcore_core::verbs::types::qp_state::name;
            write!(w, ", qp_state={}", Named(*qp_state, "IBV_QPS_", name))
        }
        Command::SetOption { level, name, len, .. } => {
            write!(w, ", level={level}, optname={name}, optlen={len}")
        }
        Command::Notify { event, .. } => write!(w, ", event={event}"),
        Command::Join { addr, .. } => address(w, "addr", addr),
        Command::Migrate { fd, .. } => write!(w, ", new fd={fd}"),
        Command::WriteEvent { event, status, .. } => write!(w, ", event={event}, status={status}"),
        _ => Ok(()),
    }
}

/// What a command that succeeded has answered: a new id, an event.
pub fn answer(w: &mut Words<'_>, at: usize, len: usize) -> fmt::Result {
    let mut buffer = [0; COMMAND_MAX];
    match bytes(at, len, &mut buffer).and_then(|b| Command::parse(b).ok()) {
        Some((Command::CreateId { response, .. }, _)) => {
            let Some(n) = peek::<u32>(response as usize) else { return Ok(()) };
            w.write_str(" ")?;
            id(w, n)
        }
        Some((Command::GetEvent { response }, _)) => {
            let Some([n, event, status]) = peek::<[u32; 3]>(response as usize + EVENT_ID) else {
                return Ok(());
            };
            write!(w, " {} ", Named(event, "RDMA_CM_EVENT_", event_name))?;
            id(w, n)?;
            write!(w, " status={}", status as i32)
        }
        _ => Ok(()),
    }
}
