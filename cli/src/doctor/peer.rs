//! The way to a peer, both directions where `gdrcore doctor --listen` runs there.
//!
//! Probes are UDP datagrams of the sizes that RoCE's packets have, without fragmentation, to port
//! 4791. What arrives is told over TCP, port 4791 as well: one line each way.
//!
//! ```text
//! asks   gdrcore-doctor 1 VERSION PORT     its version, and the UDP port of its probes
//! tells  gdrcore-doctor 1 VERSION
//! asks   seen                              after its probes
//! tells  SIZE...                           those that arrived from that address and port
//! asks   send SIZE...
//! tells  sent                              after probes of these sizes to that port
//! ```

use super::{broken, calls, fine, warning, Finding};
use gdrcore_net::addr::ROCE_PORT;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::time::{Duration, Instant};

/// Bytes of UDP for each path MTU: the payload, and 40 of headers, which a WRITE's first packet has
/// with its ICRC.
const SIZES: [usize; 5] = [256 + 40, 512 + 40, 1024 + 40, 2048 + 40, 4096 + 40];
/// How often what did not arrive is sent once more.
const ROUNDS: usize = 4;
/// Longest time for an answer, after which the kernel has also given up the search for a neighbour;
/// and for probes that are under way.
const ANSWER: Duration = Duration::from_secs(4);
const UNDER_WAY: Duration = Duration::from_millis(200);
/// Longest line.
const LINE_MAX: usize = 200;
/// Longest time with one peer.
const SESSION: Duration = Duration::from_secs(60);
/// How each side begins.
const GREETING: &str = "gdrcore-doctor 1";

/// The payload's size of a probe that is a packet of such a size.
fn mtu(size: usize) -> usize {
    size - 40
}

/// A UDP socket towards a peer, whose packets are never fragmented: at RoCE's port, where it is
/// free, else at any. On this host the doctor that listens needs the port itself.
fn connected(to: SocketAddr) -> io::Result<UdpSocket> {
    let at = |port| {
        let socket = UdpSocket::bind((any(to.ip()), port))?;
        never_fragment(&socket, to.ip())?;
        socket.connect(to)?;
        Ok(socket)
    };
    let is_far = |s: &UdpSocket| s.local_addr().is_ok_and(|own| own.ip() != to.ip());
    at(ROCE_PORT).ok().filter(is_far).map_or_else(|| at(0), Ok)
}

fn never_fragment(socket: &UdpSocket, at: IpAddr) -> io::Result<()> {
    let [level, name, value] = match at {
        IpAddr::V4(_) => [libc::IPPROTO_IP, libc::IP_MTU_DISCOVER, libc::IP_PMTUDISC_PROBE],
        IpAddr::V6(_) => [libc::IPPROTO_IPV6, libc::IPV6_MTU_DISCOVER, libc::IPV6_PMTUDISC_PROBE],
    };
    calls::set_option(socket, level, name, value).map_err(io::Error::from_raw_os_error)
}

fn any(like: IpAddr) -> IpAddr {
    match like {
        IpAddr::V4(_) => IpAddr::from([0; 4]),
        IpAddr::V6(_) => IpAddr::from([0; 16]),
    }
}

/// The sizes of datagrams that have arrived from an address; ends when none has come for a while.
fn arrived(socket: &UdpSocket, from: IpAddr, seen: &mut Vec<usize>) {
    let mut bytes = [0; 8192];
    let _ = socket.set_read_timeout(Some(UNDER_WAY));
    let end = Instant::now() + ANSWER;
    while Instant::now() < end {
        match socket.recv_from(&mut bytes) {
            Ok((n, at)) if at.ip().to_canonical() == from && SIZES.contains(&n) => {
                if !seen.contains(&n) {
                    seen.push(n);
                }
                if seen.len() == SIZES.len() {
                    break;
                }
            }
            Ok(_) => {}
            Err(e) if matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => break,
            // An ICMP message of an earlier probe.
            Err(_) => {}
        }
    }
}

/// A conversation, which the other end cannot prolong.
struct Conversation {
    stream: TcpStream,
    end: Instant,
}

impl Conversation {
    fn new(stream: TcpStream) -> io::Result<Conversation> {
        stream.set_write_timeout(Some(ANSWER))?;
        Ok(Conversation { stream, end: Instant::now() + SESSION })
    }

    fn say(&mut self, words: &str) -> io::Result<()> {
        self.stream.write_all(format!("{words}\n").as_bytes())
    }

    /// A line of text, byte by byte: lines are few and short.
    fn line(&mut self) -> io::Result<String> {
        let mut text = String::new();
        while text.len() < LINE_MAX {
            let left = self.end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(ErrorKind::TimedOut.into());
            }
            self.stream.set_read_timeout(Some(left))?;
            let mut byte = [0];
            self.stream.read_exact(&mut byte)?;
            match byte[0] {
                b'\n' => return Ok(text),
                // It goes to a terminal.
                b' '..=b'~' => text.push(char::from(byte[0])),
                _ => break,
            }
        }
        Err(ErrorKind::InvalidData.into())
    }

    fn ask(&mut self, words: &str) -> io::Result<String> {
        self.say(words)?;
        self.line()
    }
}

/// The sizes in a line, each once.
fn numbers(text: &str) -> Vec<usize> {
    let named: Vec<usize> = text.split(' ').filter_map(|n| n.parse().ok()).collect();
    SIZES.into_iter().filter(|size| named.contains(size)).collect()
}

fn list(sizes: &[usize]) -> String {
    sizes.iter().map(usize::to_string).collect::<Vec<_>>().join(" ")
}

/// Greets the doctor at the other end; returns its version.
fn greet(talk: &mut Conversation, port: u16) -> io::Result<String> {
    let told = talk.ask(&format!("{GREETING} {} {port}", env!("CARGO_PKG_VERSION")))?;
    let version = told.strip_prefix(GREETING).map(|v| v.trim().to_string());
    version.ok_or_else(|| io::Error::other(told))
}

/// What became of the probes of a direction.
#[derive(Debug, Default)]
struct Direction {
    /// Sizes that could leave, and those that arrived.
    sent: Vec<usize>,
    arrived: Vec<usize>,
    /// What the network or the own kernel said.
    refusal: Option<io::Error>,
}

impl Direction {
    /// Sends what has not arrived yet.
    fn send(&mut self, socket: &UdpSocket) {
        for &size in SIZES.iter().filter(|s| !self.arrived.contains(s)) {
            let mut outcome = socket.send(&vec![0; size]);
            if outcome.as_ref().is_err_and(|e| e.raw_os_error() != Some(libc::EMSGSIZE)) {
                // Of an earlier probe, it may be.
                self.refusal = outcome.err();
                outcome = socket.send(&vec![0; size]);
            }
            // More than the interface carries is no path MTU here.
            let fits = !outcome.is_err_and(|e| e.raw_os_error() == Some(libc::EMSGSIZE));
            if fits && !self.sent.contains(&size) {
                self.sent.push(size);
            }
        }
    }

    /// Whether this machine itself refuses to send.
    fn is_refused_here(&self) -> bool {
        self.refusal.as_ref().is_some_and(|e| e.raw_os_error() == Some(libc::EPERM))
    }
}

/// Looks at the way to a peer.
pub fn diagnose(peer: IpAddr) -> Vec<Finding> {
    let to = SocketAddr::new(peer, ROCE_PORT);
    let socket = match connected(to) {
        Ok(socket) => socket,
        Err(e) => {
            let remedy = "give this machine an address in the peer's network, or a route there";
            return vec![broken("route", format!("{peer}: {e}"), remedy)];
        }
    };
    let own = socket.local_addr().map_or_else(|_| "?".into(), |a| a.ip().to_string());
    let mut all = vec![fine("route", format!("{peer} is reached from {own}"))];
    let port = socket.local_addr().map_or(0, |a| a.port());
    let mut direction = Direction::default();
    let greeted = TcpStream::connect_timeout(&to, ANSWER).and_then(|stream| {
        let mut talk = Conversation::new(stream)?;
        let version = greet(&mut talk, port)?;
        Ok((talk, version))
    });
    match greeted {
        Ok((mut talk, version)) => match both_ways(&socket, &mut talk, peer, &mut direction) {
            Ok(back) => all.extend(judge(peer, port, &version, &direction, &back)),
            Err(e) => all.push(warning(
                "peer",
                format!("the doctor of {peer} has gone: {e}"),
                "start `gdrcore doctor --listen` there again",
            )),
        },
        // It has told why it does not take part.
        Err(e) if e.kind() == ErrorKind::Other => {
            let remedy = "end the RDMA programs there, and ask again";
            all.push(warning("peer", format!("the doctor there says: {e}"), remedy));
        }
        Err(tcp) => all.push(alone(peer, &socket, &mut direction, &tcp)),
    }
    all
}

/// Probes there and back.
fn both_ways(
    socket: &UdpSocket,
    talk: &mut Conversation,
    peer: IpAddr,
    direction: &mut Direction,
) -> io::Result<Direction> {
    for _ in 0..ROUNDS {
        direction.send(socket);
        direction.arrived = numbers(&talk.ask("seen")?);
        if direction.arrived.len() == direction.sent.len() {
            break;
        }
    }
    let mut back = Direction { sent: direction.sent.clone(), ..Direction::default() };
    for _ in 0..ROUNDS {
        let missing: Vec<usize> =
            back.sent.iter().copied().filter(|s| !back.arrived.contains(s)).collect();
        if missing.is_empty() {
            break;
        }
        talk.ask(&format!("send {}", list(&missing)))?;
        arrived(socket, peer, &mut back.arrived);
    }
    Ok(back)
}

/// Both directions, as the doctor there has told.
fn judge(
    peer: IpAddr,
    port: u16,
    version: &str,
    direction: &Direction,
    back: &Direction,
) -> Vec<Finding> {
    let own = env!("CARGO_PKG_VERSION");
    let mut all = vec![match version == own {
        true => fine("versions", format!("{peer} has {version} as well")),
        false => warning(
            "versions",
            format!("{peer} has {version}, this is {own}"),
            "install one version on both machines",
        ),
    }];
    all.push(one_way(direction, &format!("to {peer}, UDP port {ROCE_PORT}"), "there", "here"));
    all.push(one_way(back, &format!("from {peer} to UDP port {port}"), "here", "there"));
    if port != ROCE_PORT {
        let seen =
            format!("a program has UDP port {ROCE_PORT} here: {port} was tried in its place");
        all.push(warning("peer", seen, "ask again when it has ended: firewalls look at ports"));
    }
    all
}

fn one_way(direction: &Direction, what: &str, end: &str, start: &str) -> Finding {
    if direction.arrived.is_empty() {
        let (by, remedy) = match &direction.refusal {
            Some(e) if direction.is_refused_here() => (
                format!("this machine's own firewall refuses to send ({e})"),
                format!("let the output of UDP port {ROCE_PORT} pass {start}"),
            ),
            Some(e) => (
                format!("a firewall rejects it ({e})"),
                format!("let UDP port {ROCE_PORT} pass {end}, and on the way"),
            ),
            None => (
                "a firewall drops it".to_string(),
                format!("let UDP port {ROCE_PORT} pass: input {end}, output {start}, on the way"),
            ),
        };
        return broken("firewall", format!("{what}: nothing arrives: {by}"), remedy);
    }
    let best = direction.arrived.iter().copied().max().unwrap_or(0);
    let lost = direction.sent.iter().copied().filter(|s| !direction.arrived.contains(s)).min();
    if let Some(lost) = lost {
        let seen = format!(
            "{what}: packets of path MTU {} arrive, those of {} vanish: something on the way \
             carries less than its ends",
            mtu(best),
            mtu(lost)
        );
        let remedy = format!(
            "ask for path MTU {} (--mtu), lower the MTU of both interfaces, or let ICMP pass",
            mtu(best)
        );
        return broken("mtu", seen, remedy);
    }
    fine("way", format!("{what}: packets of path MTU {} arrive", mtu(best)))
}

/// Without a doctor there: what the network itself says of probes.
fn alone(peer: IpAddr, socket: &UdpSocket, direction: &mut Direction, tcp: &io::Error) -> Finding {
    const LISTEN: &str = "run `gdrcore doctor --listen` there, and ask again";
    for _ in 0..ROUNDS {
        direction.send(socket);
        let _ = socket.set_read_timeout(Some(UNDER_WAY));
        match socket.recv(&mut [0; 64]) {
            Err(e) if !matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {
                direction.refusal = Some(e);
            }
            _ => {}
        }
        if direction.refusal.is_some() {
            break;
        }
    }
    let to = format!("{peer}, UDP port {ROCE_PORT}");
    let nobody = (tcp.kind() == ErrorKind::HostUnreachable).then_some(tcp);
    match direction.refusal.as_ref().or(nobody) {
        Some(e) if e.kind() == ErrorKind::ConnectionRefused => {
            let seen = format!("{to}: packets arrive, or are rejected; no program has the port");
            warning("peer", seen, format!("start the program there first, or {LISTEN}"))
        }
        Some(e) if direction.is_refused_here() => broken(
            "firewall",
            format!("{to}: this machine's own firewall refuses to send ({e})"),
            format!("let the output of UDP port {ROCE_PORT} pass here"),
        ),
        Some(e) => broken(
            "firewall",
            format!("{to}: {e}: nobody has that address, or a firewall rejects packets to it"),
            "correct the address, or let UDP port 4791 pass there and on the way",
        ),
        None => {
            let seen = format!(
                "{to}: silence: a program takes the packets, or a firewall drops them (TCP: {tcp})"
            );
            warning("peer", seen, LISTEN)
        }
    }
}

/// Serves other doctors until the process ends.
///
/// # Errors
/// In words: the port is taken, or `say` fails.
pub fn listen(
    at: Option<IpAddr>,
    mut say: impl FnMut(String) -> Result<(), String>,
) -> Result<u8, String> {
    let said = |e: io::Error| format!("TCP port {ROCE_PORT}: {e}");
    let tcp = match at {
        Some(at) => TcpListener::bind((at, ROCE_PORT)),
        None => TcpListener::bind((IpAddr::from([0; 16]), ROCE_PORT))
            .or_else(|_| TcpListener::bind((IpAddr::from([0; 4]), ROCE_PORT))),
    };
    let tcp = tcp.map_err(said)?;
    let own = tcp.local_addr().map_err(said)?;
    say(format!("listening at {own}"))?;
    loop {
        let Ok((stream, from)) = tcp.accept() else { continue };
        let peer = from.ip().to_canonical();
        match serve(stream, peer) {
            Ok(seen) if seen.is_empty() => say(format!("{peer}: no probe has arrived"))?,
            Ok(seen) => say(format!("{peer}: probes of {} bytes have arrived", list(&seen)))?,
            Err(e) => say(format!("{peer}: {e}"))?,
        }
    }
}

/// One doctor; returns the sizes of its probes.
fn serve(stream: TcpStream, to: IpAddr) -> io::Result<Vec<usize>> {
    // Others wait meanwhile.
    let own = stream.local_addr()?.ip().to_canonical();
    let mut talk = Conversation::new(stream)?;
    let hello = talk.line()?;
    let port = hello.strip_prefix(GREETING).and_then(|h| h.rsplit(' ').next()?.parse().ok());
    let to = SocketAddr::new(to, port.ok_or(ErrorKind::InvalidData)?);
    // At this address alone: programs may have the port at others.
    let udp = match UdpSocket::bind((own, ROCE_PORT)) {
        Ok(udp) => udp,
        Err(e) => {
            let words = format!("UDP port {ROCE_PORT} of {own}: {e}");
            talk.say(&words)?;
            return Err(io::Error::other(words));
        }
    };
    never_fragment(&udp, own)?;
    let mut seen = Vec::new();
    let mut answer = format!("{GREETING} {}", env!("CARGO_PKG_VERSION"));
    // Far more than a doctor asks.
    for _ in 0..4 * ROUNDS {
        talk.say(&answer)?;
        let Ok(asked) = talk.line() else { return Ok(seen) };
        answer = match asked.split_once(' ').unwrap_or((&asked, "")) {
            ("seen", _) => {
                arrived(&udp, to.ip(), &mut seen);
                list(&seen)
            }
            ("send", sizes) => {
                for size in numbers(sizes) {
                    let _ = udp
                        .send_to(&vec![0; size], to)
                        .or_else(|_| udp.send_to(&vec![0; size], to));
                }
                "sent".into()
            }
            _ => return Err(ErrorKind::InvalidData.into()),
        };
    }
    Ok(seen)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_asks_for_each_size_once() {
        assert_eq!(numbers("1064 296 296 7 x 99999999999999999999 1064"), [296, 1064]);
        assert_eq!(numbers(""), [0; 0]);
    }
}
