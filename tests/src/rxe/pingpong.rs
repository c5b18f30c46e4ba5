//! Unmodified ping-pongs of rdma-core at the far end; this file is the other half of their
//! protocol, as server or client.
//!
//! Over TCP each side sends "LID:QPN:PSN:GID" in hexadecimal, 52 bytes with the final zero, one
//! line for each QP, the client first; then the client sends "done". On each QP a message is sent
//! after the former one is both complete and answered, until the agreed number has been sent and
//! received in all.

use super::lab::Lab;
use super::report::Report;
use super::side::Side;
use super::tools::{accept, connect, ends_well, expect, read, Role};
use super::Outcome;
use crate::ends::{Address, End, Op, Shape};
use crate::patience::deadline;
use crate::soft::Soft;
use crate::tools::Running;
use gdrcore_core::verbs::types::{access, mtu, qp_type, wc_opcode, wc_status, AhAttr};
use std::io::Write;
use std::net::{Ipv6Addr, TcpStream};
use std::time::Instant;

/// Q_Key of `ibv_ud_pingpong`.
const QKEY: u32 = 0x1111_1111;
const LINE: usize = 52;
/// `ibv_srq_pingpong` always sends so many lines, however many QPs it has.
const SRQ_LINES: usize = 256;

/// A variant of the tool.
#[derive(Clone, Copy)]
struct Tool {
    name: &'static str,
    qp_type: u32,
    qps: usize,
    size: u32,
    iterations: u32,
    arguments: &'static str,
}

const fn tool(
    name: &'static str,
    (qps, qp_type): (usize, u32),
    (iterations, size): (u32, u32),
    arguments: &'static str,
) -> Tool {
    Tool { name, qp_type, qps, size, iterations, arguments }
}

const TOOLS: [Tool; 5] = [
    tool("ibv_rc_pingpong", (1, qp_type::RC), (100, 5000), "-m 1024 -c"),
    tool("ibv_rc_pingpong", (1, qp_type::RC), (30, 65_537), "-m 4096 -e"),
    tool("ibv_uc_pingpong", (1, qp_type::UC), (100, 3000), "-m 1024"),
    tool("ibv_ud_pingpong", (1, qp_type::UD), (100, 1000), ""),
    tool("ibv_srq_pingpong", (4, qp_type::RC), (100, 3000), "-m 1024 -q 4"),
];

/// Sends our QPs as lines in the tool's format; the last QP fills the lines that are left.
fn send_lines(stream: &mut TcpStream, ends: &[End], lines: usize) -> Outcome<()> {
    for end in (0..lines).filter_map(|i| ends.get(i).or(ends.last())) {
        let gid: String = end.own.ah.dgid.iter().map(|b| format!("{b:02x}")).collect();
        let mut line = format!("0000:{:06x}:{:06x}:{gid}", end.own.qpn, end.own.psn).into_bytes();
        line.push(0);
        stream.write_all(&line).map_err(|e| e.to_string())?;
    }
    Ok(())
}

/// Reads one line of the tool's.
fn read_line(stream: &mut TcpStream) -> Outcome<Address> {
    let theirs = read::<LINE>(stream)?;
    let text = String::from_utf8_lossy(&theirs[..LINE - 1]).into_owned();
    let parts: Vec<&str> = text.split(':').collect();
    let [_, qpn, psn, gid] = parts[..] else { return Err(format!("the tool sent {text}")) };
    let number = |t: &str| u32::from_str_radix(t, 16).map_err(|e| format!("{text}: {e}"));
    let gid = u128::from_str_radix(gid, 16).map_err(|e| format!("{text}: {e}"))?;
    let ah = AhAttr { dgid: Ipv6Addr::from(gid).octets(), ..AhAttr::default() };
    Ok(Address { ah, qpn: number(qpn)?, psn: number(psn)?, ..Address::default() })
}

/// What a QP waits for before it may send again.
#[derive(Clone, Copy)]
struct Pending {
    send: bool,
    recv: bool,
}

/// Exchanges the messages. `first`: our side begins.
fn exchange(ends: &mut [End], tool: Tool, first: bool, other: &mut Running) -> Outcome<()> {
    let ahead = if tool.qp_type == qp_type::UD { 40 } else { 0 };
    let post = |end: &End, id: u64| {
        end.post_recv(id, 1 << 17, tool.size + ahead).map_err(|e| format!("recv: {e}"))
    };
    let send =
        |end: &End| end.post(0, Op::Send(None), 0, tool.size).map_err(|e| format!("send: {e}"));
    let mut pending = vec![Pending { send: first, recv: true }; ends.len()];
    if first {
        ends.iter().try_for_each(send)?;
    }
    let limit = deadline(60);
    let (mut sent, mut received) = (0, 0);
    // The tool ends when it has received all messages: it does not answer our last one.
    while received < tool.iterations || sent < tool.iterations && other.still_runs() {
        for (end, pending) in ends.iter_mut().zip(&mut pending) {
            end.poll();
            for wc in std::mem::take(&mut end.done) {
                if wc.status != wc_status::SUCCESS {
                    return Err(format!(
                        "message {received}: {wc:?}; {:?}",
                        end.dev.qp_cause(end.qp)
                    ));
                }
                if wc.opcode != wc_opcode::RECV {
                    (pending.send, sent) = (false, sent + 1);
                } else if wc.byte_len == tool.size + ahead {
                    (pending.recv, received) = (false, received + 1);
                    post(end, wc.wr_id)?;
                } else {
                    return Err(format!("message {received}: {} bytes", wc.byte_len));
                }
                if sent < tool.iterations && !pending.send && !pending.recv {
                    send(end)?;
                    *pending = Pending { send: true, recv: true };
                }
            }
        }
        if Instant::now() > limit {
            return Err(format!("sent {sent}, received {received}; {:?}", ends[0].dev.counters()));
        }
    }
    if received < tool.iterations {
        return Err(format!("the tool ended after {received} messages"));
    }
    Ok(())
}

/// Runs one tool.
fn against(lab: &Lab, device: &str, index: u32, tool: Tool, role: Role) -> Outcome<usize> {
    let Tool { name, qp_type, qps, size, iterations, arguments } = tool;
    let command = format!("{name} -d rxe0 -g {index} -s {size} -n {iterations} {arguments}");
    let (mut other, mut stream) = match role {
        Role::Client => connect(lab, &command)?,
        Role::Server => accept(lab, &command)?,
    };
    let soft = Soft::open(device, &Default::default()).map_err(|e| e.to_string())?;
    let code = if arguments.contains("4096") { mtu::MTU_4096 } else { mtu::MTU_1024 };
    let shape = Shape {
        qp_type,
        mtu: code,
        buffer: 1 << 18,
        depth: 128,
        cqe: 512,
        access: access::LOCAL_WRITE,
        timeout: 17,
        ..Shape::default()
    };
    let lines = if qps > 1 { SRQ_LINES } else { 1 };
    let mut ends = Vec::new();
    for _ in 0..qps {
        let mut end = End::new(soft.dev(), shape).map_err(|e| e.to_string())?;
        end.qkey = QKEY;
        // Option -c of the tools checks for bytes of this value.
        end.buffer.write(0, &vec![0x7B; size as usize]);
        ends.push(end);
    }
    if role == Role::Client {
        send_lines(&mut stream, &ends, lines)?;
    }
    for end in &mut ends {
        let peer = read_line(&mut stream)?;
        end.connect(peer).map_err(|e| format!("to RTS: {e}"))?;
        for id in 0..64u64 {
            let ahead = if qp_type == gdrcore_core::verbs::types::qp_type::UD { 40 } else { 0 };
            end.post_recv(id | 1 << 32, 1 << 17, size + ahead).map_err(|e| format!("recv: {e}"))?;
        }
    }
    for _ in qps..lines {
        read_line(&mut stream)?;
    }
    if role == Role::Client {
        stream.write_all(b"done\0").map_err(|e| e.to_string())?;
    } else {
        send_lines(&mut stream, &ends, lines)?;
        expect(&read::<5>(&mut stream)?, b"done\0")?;
    }
    exchange(&mut ends, tool, role == Role::Client, &mut other)?;
    ends_well(other, name, || {
        ends[0].poll();
    })?;
    for end in ends {
        end.destroy().map_err(|e| e.to_string())?;
    }
    Ok(2 * iterations as usize)
}

/// Every tool over IPv4 and IPv6, as server and as client.
pub fn all(report: &mut Report, lab: &Lab) {
    // The TCP exchange of the tools is IPv4 only.
    for (device, index, family) in [("soft:10.77.1.1", 1, "IPv4"), ("soft:[fd00:78::1]", 2, "IPv6")]
    {
        for tool in TOOLS {
            let feature = format!("{} of rdma-core, it answers or begins", tool.name);
            let what = format!("{family}, {} bytes", tool.size);
            report.case(&feature, Side::Ours, &what, || {
                against(lab, device, index, tool, Role::Client)
            });
            report.case(&feature, Side::Rxe, &what, || {
                against(lab, device, index, tool, Role::Server)
            });
        }
    }
}
