//! rdma-core's own ping-pongs at the far end, unmodified; ours is the other half of their protocol.
//!
//! Over TCP each tells the other "LID:QPN:PSN:GID" in hexadecimal, 52 bytes with the final zero (one for each QP of the
//! SRQ variant); the client answers the server's with "done". Then both send as many messages as was agreed, each after
//! the other's.

use super::lab::Lab;
use super::pair::Side;
use super::report::Report;
use super::Outcome;
use crate::ends::{Address, End, Op, Shape};
use crate::soft::Soft;
use gdrcore_core::verbs::types::{access, mtu, qp_type, wc_opcode, wc_status, AhAttr};
use std::io::{Read, Write};
use std::net::{Ipv6Addr, TcpStream};
use std::time::{Duration, Instant};

const PORT: u16 = 18_515;
/// Q_Key of `ibv_ud_pingpong`.
const QKEY: u32 = 0x1111_1111;
const LINE: usize = 52;

/// A variant of the tool.
#[derive(Clone, Copy)]
struct Tool {
    name: &'static str,
    qp_type: u32,
    size: u32,
    iterations: u32,
    arguments: &'static str,
}

const TOOLS: [Tool; 4] = [
    Tool { name: "ibv_rc_pingpong", qp_type: qp_type::RC, size: 5000, iterations: 200, arguments: "-m 1024" },
    Tool { name: "ibv_rc_pingpong", qp_type: qp_type::RC, size: 65_537, iterations: 30, arguments: "-m 4096 -e" },
    Tool { name: "ibv_uc_pingpong", qp_type: qp_type::UC, size: 3000, iterations: 200, arguments: "-m 1024" },
    Tool { name: "ibv_ud_pingpong", qp_type: qp_type::UD, size: 1000, iterations: 200, arguments: "" },
];

fn exchange(stream: &mut TcpStream, own: &End, psn: u32) -> Outcome<Address> {
    let fail = |e: std::io::Error| e.to_string();
    let gid: String = own.own.ah.dgid.iter().map(|b| format!("{b:02x}")).collect();
    let mut line = format!("0000:{:06x}:{psn:06x}:{gid}", own.own.qpn).into_bytes();
    line.push(0);
    stream.write_all(&line).map_err(fail)?;
    let mut theirs = [0; LINE];
    stream.read_exact(&mut theirs).map_err(fail)?;
    let text = String::from_utf8_lossy(&theirs[..LINE - 1]).into_owned();
    let parts: Vec<&str> = text.split(':').collect();
    let [_, qpn, psn, gid] = parts[..] else { return Err(format!("the tool says {text}")) };
    let number = |t: &str| u32::from_str_radix(t, 16).map_err(|e| format!("{text}: {e}"));
    let gid = u128::from_str_radix(gid, 16).map_err(|e| format!("{text}: {e}"))?;
    let ah = AhAttr { dgid: Ipv6Addr::from(gid).octets(), ..AhAttr::default() };
    Ok(Address { ah, qpn: number(qpn)?, psn: number(psn)?, ..Address::default() })
}

/// One run: the tool is the server in the machine, we connect and send first.
fn against(lab: &Lab, device: &str, index: u32, tool: Tool) -> Outcome<usize> {
    let Tool { name, qp_type, size, iterations, arguments } = tool;
    let server =
        lab.vm.begin(&format!("{name} -d rxe0 -g {index} -p {PORT} -s {size} -n {iterations} {arguments}"), 60);
    let mut stream = connect("10.77.1.2")?;
    let soft = Soft::open(device, &Default::default()).map_err(|e| e.to_string())?;
    let ahead = if qp_type == qp_type::UD { 40 } else { 0 };
    let code = if arguments.contains("4096") { mtu::MTU_4096 } else { mtu::MTU_1024 };
    let shape = Shape {
        qp_type,
        mtu: code,
        buffer: 1 << 18,
        depth: 128,
        cqe: 512,
        access: access::LOCAL_WRITE,
        ..Shape::default()
    };
    let mut end = End::new(soft.dev(), shape).map_err(|e| e.to_string())?;
    end.qkey = QKEY;
    let psn = end.own.psn;
    let peer = exchange(&mut stream, &end, psn)?;
    let post = |end: &End, id: u64| end.post_recv(id, 1 << 17, size + ahead).map_err(|e| format!("post_recv: {e}"));
    end.connect(peer).map_err(|e| format!("to RTS: {e}"))?;
    for id in 0..64 {
        post(&end, id | 1 << 32)?;
    }
    stream.write_all(b"done\0").map_err(|e| e.to_string())?;
    let limit = Instant::now() + Duration::from_secs(40);
    for i in 0..u64::from(iterations) {
        end.post(i, Op::Send(None), 0, size).map_err(|e| format!("post_send: {e}"))?;
        let (mut sent, mut received) = (false, false);
        while !(sent && received) {
            end.poll();
            for wc in std::mem::take(&mut end.done) {
                if wc.status != wc_status::SUCCESS {
                    return Err(format!("message {i}: {wc:?}; {:?}", end.dev.qp_cause(end.qp)));
                }
                if wc.opcode == wc_opcode::RECV {
                    if wc.byte_len != size + ahead {
                        return Err(format!("message {i}: {} bytes", wc.byte_len));
                    }
                    received = true;
                    post(&end, wc.wr_id)?;
                } else {
                    sent = true;
                }
            }
            if Instant::now() > limit {
                return Err(format!("message {i}: sent {sent}, received {received}; {:?}", end.dev.counters()));
            }
        }
    }
    let closing = Instant::now();
    let mut server = server;
    while server.is_running() && closing.elapsed() < Duration::from_secs(20) {
        end.poll();
        std::thread::sleep(Duration::from_micros(200));
    }
    let done = server.finish(Duration::from_secs(1));
    end.destroy().map_err(|e| e.to_string())?;
    if done.ok() {
        return Ok(2 * iterations as usize);
    }
    Err(format!("{name} ended with {:?}: {}", done.code(), done.output.trim()))
}

fn connect(far: &str) -> Outcome<TcpStream> {
    let end = Instant::now() + Duration::from_secs(20);
    loop {
        match TcpStream::connect((far, PORT)) {
            Ok(stream) => {
                stream.set_read_timeout(Some(Duration::from_secs(20))).map_err(|e| e.to_string())?;
                return Ok(stream);
            }
            Err(e) if Instant::now() > end => return Err(format!("{far}: {e}")),
            Err(_) => std::thread::sleep(Duration::from_millis(100)),
        }
    }
}

/// Every tool over IPv4 and IPv6; both directions are in each run.
pub fn pingpongs(report: &mut Report, lab: &Lab) {
    // The tools' own TCP side takes IPv4 only.
    for (device, index, family) in [("soft:10.77.1.1", 1, "IPv4"), ("soft:[fd00:78::1]", 2, "IPv6")] {
        for tool in TOOLS {
            let feature = format!("{} of rdma-core", tool.name);
            let what = format!("{family}, {} bytes", tool.size);
            report.case(&feature, Side::Ours, &what, || against(lab, device, index, tool));
            report.remark(&feature, Side::Rxe, "in the same run: each message is answered by one");
        }
    }
}
