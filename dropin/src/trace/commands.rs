//! Prints the commands of librdmacm to the kernel, which are its calls.

use super::names::Named;
use super::words::{put, Hex, Put, Words};
use crate::peek::peek;
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
    Row::number_of(name).unwrap_or(Row::rdma_command as usize)
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
    host::fetch(at as u64, bytes).ok();
    Some(bytes)
}

fn id(w: &mut Words<'_>, n: u32) {
    w.names(Object::Id, n);
    put!(w, "id#", n)
}

fn address(w: &mut Words<'_>, name: &str, a: &Addr) {
    put!(w, ", ", name, "=", a.ip, " port ", a.port)
}

fn param(w: &mut Words<'_>, p: &ConnParam<'_>) {
    w.names(Object::Qp, p.qp_num);
    put!(w, ", qp_num=", Hex(p.qp_num), ", private_data_len=", p.private_data.len());
    put!(w, ", responder_resources=", p.responder_resources);
    put!(w, ", initiator_depth=", p.initiator_depth);
    put!(w, ", retry_count=", p.retry_count, ", rnr_retry_count=", p.rnr_retry_count)
}

/// The fields of the command of `len` bytes at `at`.
pub fn command(w: &mut Words<'_>, at: usize, len: usize) {
    let mut buffer = [0; COMMAND_MAX];
    let parsed = bytes(at, len, &mut buffer).and_then(|b| Command::parse(b).ok());
    let Some((command, _)) = parsed else { return put!(w, ", ", len, " bytes at ", Hex(at)) };
    if let Some(of) = id_of(&command) {
        put!(w, ", ");
        id(w, of);
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
fn fields(w: &mut Words<'_>, c: &Command<'_>) {
    match c {
        Command::CreateId { ps, qp_type, .. } => put!(w, ", ps=", Hex(*ps), ", qp_type=", qp_type),
        Command::Bind { addr, .. } => address(w, "addr", addr),
        Command::Resolve { src, dst, .. } => {
            if let Some(src) = src {
                address(w, "src_addr", src);
            }
            address(w, "dst_addr", dst)
        }
        Command::Query { option, .. } => put!(w, ", option=", option),
        Command::Connect { param: p, .. } | Command::Accept { param: p, .. } => param(w, p),
        Command::Listen { backlog, .. } => put!(w, ", backlog=", backlog),
        Command::Reject { reason, private_data, .. } => {
            put!(w, ", reason=", reason, ", private_data_len=", private_data.len())
        }
        Command::InitQpAttr { qp_state, .. } => {
            let name = gdrcore_core::verbs::types::qp_state::name;
            put!(w, ", qp_state=", Named(*qp_state, "IBV_QPS_", name))
        }
        Command::SetOption { level, name, len, .. } => {
            put!(w, ", level=", level, ", optname=", name, ", optlen=", len)
        }
        Command::Notify { event, .. } => put!(w, ", event=", event),
        Command::Join { addr, .. } => address(w, "addr", addr),
        Command::Migrate { fd, .. } => put!(w, ", new fd=", fd),
        Command::WriteEvent { event, status, .. } => {
            put!(w, ", event=", event, ", status=", status)
        }
        _ => {}
    }
}

/// What a command that succeeded has answered: a new id, an event.
pub fn answer(w: &mut Words<'_>, at: usize, len: usize) {
    let mut buffer = [0; COMMAND_MAX];
    match bytes(at, len, &mut buffer).and_then(|b| Command::parse(b).ok()) {
        Some((Command::CreateId { response, .. }, _)) => {
            let Some(n) = peek::<u32>(response as usize) else { return };
            put!(w, " ");
            id(w, n)
        }
        Some((Command::GetEvent { response }, _)) => {
            let Some([n, event, status]) = peek::<[u32; 3]>(response as usize + EVENT_ID) else {
                return;
            };
            put!(w, " ", Named(event, "RDMA_CM_EVENT_", event_name), " ");
            id(w, n);
            put!(w, " status=", status as i32)
        }
        _ => {}
    }
}
