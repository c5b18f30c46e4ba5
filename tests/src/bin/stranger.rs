//! A hostile process of another user of the host, for `tests/tests/other_users.rs`.
//!
//! `stranger UID COMMAND WHAT`: becomes the user UID, then runs COMMAND against all named Unix
//! sockets of this network namespace whose names contain WHAT, abstract ones and paths. Prints
//! `ready`, and for some commands a result; ends when its input does.
//!
//! * `descriptors`: sends each socket descriptors whose close(2) takes minutes. Result: `reached
//!   N`.
//! * `knock`: offers each socket a well-formed link of shared memory. Result: `kept N`, the number
//!   that did not close the connection.
//! * `take`: binds each name as soon as it is free, and reads what is sent to it. Result, at the
//!   end: `read BYTES`.
//! * `ask`: requests the table of the address's processes from each mailbox, as block 900. Result:
//!   `answered N`.
//! * `idle`: connects eight times to each socket that accepts. Result: `reached N`.
//! * `port`: binds the UDP port WHAT (`address:port`).
//! * `forge`: sends fatal NAKs with the source address WHAT and random PSNs, to the address and
//!   port and to the QPN of two further arguments. Result: `sent N`, repeatedly.
//! * `squat`: binds all names that devices of the address WHAT (`address:port`) may need, and makes
//!   the directories of the user that a further argument names.

use gdrcore_core::wire::IcrcFlow;
use gdrcore_tests::forge::{bth, octets};
use gdrcore_tests::linger::Sink;
use gdrcore_tests::patience::{deadline, limit};
use gdrcore_tests::rng::Rng;
use std::ffi::CString;
use std::io::Read;
use std::net::TcpStream;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::fs::DirBuilderExt;
use std::time::{Duration, Instant};

/// A name of a Unix socket, abstract or a path.
struct Name(libc::sockaddr_un, libc::socklen_t);

impl Name {
    /// Parses a name as `/proc/net/unix` prints it.
    fn parse(text: &str) -> Name {
        // SAFETY: zeroes are a valid sockaddr_un.
        let mut addr: libc::sockaddr_un = unsafe { std::mem::zeroed() };
        addr.sun_family = libc::AF_UNIX as libc::sa_family_t;
        let bytes: Vec<u8> = match text.strip_prefix('@') {
            Some(rest) => [b"\0", rest.as_bytes()].concat(),
            None => [text.as_bytes(), b"\0"].concat(),
        };
        for (to, from) in addr.sun_path.iter_mut().zip(&bytes) {
            *to = *from as libc::c_char;
        }
        let len = std::mem::offset_of!(libc::sockaddr_un, sun_path)
            + bytes.len().min(addr.sun_path.len());
        Name(addr, len as libc::socklen_t)
    }

    fn socket(kind: i32) -> OwnedFd {
        // SAFETY: no pointers.
        let fd = unsafe {
            libc::socket(libc::AF_UNIX, kind | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK, 0)
        };
        assert!(fd >= 0, "socket: {}", std::io::Error::last_os_error());
        // SAFETY: a new descriptor of ours.
        unsafe { OwnedFd::from_raw_fd(fd) }
    }

    /// A socket of the name's type that is connected to it.
    fn connect(&self) -> Option<OwnedFd> {
        [libc::SOCK_SEQPACKET, libc::SOCK_DGRAM, libc::SOCK_STREAM]
            .into_iter()
            .find_map(|kind| self.connect_as(kind))
    }

    fn connect_as(&self, kind: i32) -> Option<OwnedFd> {
        let fd = Name::socket(kind);
        // SAFETY: the name lives through the call.
        let rc = unsafe { libc::connect(fd.as_raw_fd(), (&raw const self.0).cast(), self.1) };
        (rc == 0).then_some(fd)
    }

    fn bind(&self, kind: i32) -> Option<OwnedFd> {
        let fd = Name::socket(kind);
        // SAFETY: the name lives through the call.
        let rc = unsafe { libc::bind(fd.as_raw_fd(), (&raw const self.0).cast(), self.1) };
        (rc == 0).then_some(fd)
    }
}

/// The bound names that contain `what`.
fn names(what: &str) -> Vec<Name> {
    let all = std::fs::read_to_string("/proc/net/unix").expect("procfs");
    all.lines()
        .filter_map(|l| l.rsplit(' ').next())
        .filter(|n| n.contains(what))
        .map(Name::parse)
        .collect()
}

fn set<T>(fd: RawFd, level: i32, option: i32, value: T) {
    // SAFETY: a live value and its length.
    let rc = unsafe {
        libc::setsockopt(
            fd,
            level,
            option,
            (&raw const value).cast(),
            size_of::<T>() as libc::socklen_t,
        )
    };
    assert_eq!(rc, 0, "{}", std::io::Error::last_os_error());
}

/// Sends one message with a descriptor; false if it was not sent.
fn send_with(to: RawFd, bytes: &[u8], fd: RawFd) -> bool {
    let mut control = [0u64; 4];
    let mut iov = libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() };
    // SAFETY: zeroes are a valid msghdr.
    let mut msg: libc::msghdr = unsafe { std::mem::zeroed() };
    (msg.msg_iov, msg.msg_iovlen) = (&mut iov, 1);
    msg.msg_control = control.as_mut_ptr().cast();
    // SAFETY: no pointers; 24 bytes, of 32.
    msg.msg_controllen = unsafe { libc::CMSG_SPACE(4) } as _;
    // SAFETY: the buffer has room for one header and one descriptor, and is aligned for the header.
    unsafe {
        let cmsg = libc::CMSG_FIRSTHDR(&msg);
        (*cmsg).cmsg_level = libc::SOL_SOCKET;
        (*cmsg).cmsg_type = libc::SCM_RIGHTS;
        (*cmsg).cmsg_len = libc::CMSG_LEN(4) as _;
        libc::CMSG_DATA(cmsg).cast::<RawFd>().write_unaligned(fd);
    }
    // SAFETY: every pointer in `msg` leads to memory that lives through the call.
    unsafe { libc::sendmsg(to, &msg, libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL) >= 0 }
}

fn descriptors(what: &str) -> Vec<TcpStream> {
    let sink = Sink::new();
    let (send, sent) = std::sync::mpsc::channel();
    let (mut deaf, names) = (Vec::new(), names(what));
    let tries = names.len();
    for name in names {
        let (stream, end) = sink.lingering();
        deaf.push(end);
        let send = send.clone();
        // In threads: a descriptor that the receiver does not take is closed here, which takes as
        // long.
        std::thread::spawn(move || {
            // A link's socket carries one byte; a mailbox takes any message.
            let fd = name.connect();
            let _ = send.send(
                fd.as_ref().is_some_and(|fd| send_with(fd.as_raw_fd(), &[1], stream.as_raw_fd())),
            );
            // From here on the receiver holds the last descriptor.
            drop(stream);
        });
    }
    let end = deadline(60);
    let left = || end.saturating_duration_since(Instant::now());
    let reached =
        (0..tries).map_while(|_| sent.recv_timeout(left()).ok()).filter(|&reached| reached).count();
    println!("reached {reached}");
    deaf
}

/// A sealed memfd in the format of a link's ring: control page and data.
fn ring() -> OwnedFd {
    // SAFETY: the name is a C string; the other calls take no pointers.
    unsafe {
        let fd = libc::memfd_create(c"ring".as_ptr(), libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING);
        assert!(fd >= 0 && libc::ftruncate(fd, 4096 + (256 << 10)) == 0);
        // Its first line: magic (8 bytes), version (4), size of the data (4).
        let head = [&b"gdrcring"[..], &3u32.to_le_bytes(), &(256u32 << 10).to_le_bytes()].concat();
        assert_eq!(libc::write(fd, head.as_ptr().cast(), head.len()), head.len() as isize);
        assert_eq!(
            libc::fcntl(
                fd,
                libc::F_ADD_SEALS,
                libc::F_SEAL_SHRINK | libc::F_SEAL_GROW | libc::F_SEAL_SEAL
            ),
            0
        );
        OwnedFd::from_raw_fd(fd)
    }
}

/// Waits until the receivers have read all messages, and a while longer for their answers.
struct Reading {
    end: Instant,
    read: Option<Instant>,
}

impl Reading {
    fn new() -> Reading {
        Reading { end: deadline(60), read: None }
    }

    /// Whether an answer may still come.
    fn goes_on(&mut self, sockets: &[OwnedFd]) -> bool {
        let unread = sockets.iter().any(|fd| {
            let mut bytes = 0i32;
            // SAFETY: room for one int, which receives the bytes that are still in the receivers'
            // queues.
            let rc = unsafe { libc::ioctl(fd.as_raw_fd(), libc::TIOCOUTQ, &mut bytes) };
            rc != 0 || bytes > 0
        });
        let now = Instant::now();
        if !unread && self.read.is_none() {
            self.read = Some(now);
        }
        now < self.end && self.read.is_none_or(|read| now < read + limit(1))
    }
}

fn knock(what: &str) {
    let mut hello = [0u8; 40];
    hello[..8].copy_from_slice(b"gdrshm\x02\0");
    hello[8..12].copy_from_slice(&(256u32 << 10).to_le_bytes());
    hello[16..18].copy_from_slice(&4791u16.to_le_bytes());
    hello[24..].copy_from_slice(&std::net::Ipv4Addr::new(127, 9, 9, 9).to_ipv6_mapped().octets());
    let calls: Vec<OwnedFd> =
        names(what).iter().filter_map(|n| n.connect_as(libc::SOCK_SEQPACKET)).collect();
    let memory = ring();
    let sent = calls.into_iter().filter(|fd| send_with(fd.as_raw_fd(), &hello, memory.as_raw_fd()));
    let mut open: Vec<OwnedFd> = sent.collect();
    let mut reading = Reading::new();
    while !open.is_empty() && reading.goes_on(&open) {
        open.retain(|fd| {
            let mut byte = 0u8;
            // SAFETY: room for one byte.
            let n = unsafe {
                libc::recv(fd.as_raw_fd(), (&raw mut byte).cast(), 1, libc::MSG_DONTWAIT)
            };
            n < 0 && std::io::Error::last_os_error().kind() == std::io::ErrorKind::WouldBlock
        });
        std::thread::sleep(Duration::from_millis(10));
    }
    println!("kept {}", open.len());
}

fn take(what: &str) {
    let names = names(what);
    println!("ready");
    let ended = std::thread::spawn(|| std::io::stdin().read_to_end(&mut Vec::new()));
    let mut mine: Vec<OwnedFd> = Vec::new();
    let (mut bytes, mut buffer) = (0, vec![0u8; 1 << 17]);
    while !ended.is_finished() {
        mine.extend(names.iter().filter_map(|n| n.bind(libc::SOCK_DGRAM)));
        for fd in &mine {
            // SAFETY: pointer and length are those of the buffer.
            let n = unsafe {
                libc::recv(
                    fd.as_raw_fd(),
                    buffer.as_mut_ptr().cast(),
                    buffer.len(),
                    libc::MSG_DONTWAIT,
                )
            };
            bytes += usize::try_from(n).unwrap_or(0);
        }
        std::thread::sleep(Duration::from_micros(50));
    }
    println!("read {bytes}");
}

fn ask(what: &str) {
    let all = std::fs::read_to_string("/proc/net/unix").expect("procfs");
    let mails: Vec<&str> = all
        .lines()
        .filter_map(|l| l.rsplit(' ').next())
        .filter(|n| n.contains(what) && n.ends_with("/mail"))
        .collect();
    let Some(first) = mails.first() else { return println!("answered 0") };
    // Answers go to the mailbox of the requesting block, in the directory of the other mailboxes.
    let address =
        std::path::Path::new(first).parent().and_then(|p| p.parent()).expect("a directory");
    let own = address.join("900");
    let path = own.join("mail");
    let name = Name::parse(path.to_str().expect("a plain path"));
    // A member that sweeps removes a directory that has no mailbox yet, and the mailbox of an
    // earlier attempt may stand.
    let bind = || {
        let _ = (std::fs::create_dir(&own), std::fs::remove_file(&path));
        name.bind(libc::SOCK_DGRAM)
    };
    let from = (0..100).find_map(|_| bind()).expect("a name");
    // SAFETY: a C string. The mailbox is made writable for the receivers, who are another user.
    unsafe {
        let path = CString::new(path.to_str().expect("a plain path")).expect("no NUL");
        assert_eq!(libc::chmod(path.as_ptr(), 0o666), 0);
    }
    let ask = [&b"gdrm\x01\x01"[..], &900u16.to_le_bytes()].concat();
    let sent = mails.iter().filter(|m| {
        let to = Name::parse(m);
        // SAFETY: the bytes and the name live through the call.
        unsafe {
            let n = libc::sendto(
                from.as_raw_fd(),
                ask.as_ptr().cast(),
                ask.len(),
                0,
                (&raw const to.0).cast(),
                to.1,
            );
            n == ask.len() as isize
        }
    });
    let sent = sent.count();
    let (mut answered, mut reading) = (0, Reading::new());
    let from = [from];
    while answered < sent && reading.goes_on(&from) {
        let [from] = &from;
        let mut buffer = [0u8; 1 << 16];
        // SAFETY: pointer and length are those of the buffer.
        let n = unsafe {
            libc::recv(
                from.as_raw_fd(),
                buffer.as_mut_ptr().cast(),
                buffer.len(),
                libc::MSG_DONTWAIT,
            )
        };
        // A member that opens asks all its neighbours for their tables; that is no answer.
        let is_request = buffer[..6] == ask[..6];
        answered += usize::from(n > 0 && !is_request);
        std::thread::sleep(Duration::from_millis(1));
    }
    let _ = std::fs::remove_dir_all(own);
    println!("answered {answered}");
}

fn forge(from: &str, to: &str, qpn: u32) -> ! {
    /// BTH, AETH and ICRC.
    const LEN: usize = 20;
    const TRAIN: usize = 50;
    let socket = std::net::UdpSocket::bind((from, 0)).expect("the peer's address");
    let to: std::net::SocketAddr = to.parse().expect("address:port");
    // Identifications 0, 1, 2, …, which the ICRC covers.
    set(socket.as_raw_fd(), libc::IPPROTO_IP, libc::IP_MTU_DISCOVER, libc::IP_PMTUDISC_PROBE);
    // SOL_UDP, UDP_SEGMENT
    set(socket.as_raw_fd(), 17, 103, LEN as i32);
    let own = socket.local_addr().expect("bound");
    let flow = IcrcFlow::v4(octets(own), octets(to), own.port(), to.port());
    let (mut rng, mut sent) = (Rng::new(1), 0u64);
    loop {
        let mut train = Vec::with_capacity(LEN * TRAIN);
        for ident in 0..TRAIN {
            let mut p = bth(0x11, 0, qpn, false, rng.below(1 << 24) as u32);
            // NAK, remote access error.
            p.extend_from_slice(&[0x62, 0, 0, 0, 0, 0, 0, 0]);
            flow.append_icrc(ident as u16, &mut p);
            train.append(&mut p);
        }
        sent += if socket.send_to(&train, to).is_ok() { TRAIN as u64 } else { 0 };
        if sent % 200_000 == 0 && sent > 0 {
            // Without a pause the test would measure how the processes share the CPU.
            println!("sent {sent}");
            let more = std::io::stdin().read_line(&mut String::new());
            assert!(more.is_ok_and(|n| n > 0), "the test has ended");
        }
    }
}

fn squat(address: &str, victim: &str) -> (Vec<OwnedFd>, Vec<String>) {
    let address = address.replace(':', "/");
    let mut mine = Vec::new();
    for n in 1..=1015 {
        for (kind, what) in [
            (libc::SOCK_DGRAM, "block"),
            (libc::SOCK_SEQPACKET, "door"),
            (libc::SOCK_SEQPACKET, "life"),
        ] {
            mine.extend(Name::parse(&format!("@gdrc/{address}/{what}/{n}")).bind(kind));
        }
    }
    let dirs = ["/dev/shm", "/tmp"].map(|base| format!("{base}/gdrcore-{victim}"));
    let dirs = dirs.into_iter().flat_map(|dir| [format!("{dir}.1"), dir]);
    let made = |d: &String| std::fs::DirBuilder::new().mode(0o700).create(d).is_ok();
    (mine, dirs.filter(made).collect())
}

fn main() {
    let mut arguments = std::env::args().skip(1);
    let mut next = |what: &str| arguments.next().unwrap_or_else(|| panic!("{what} is missing"));
    let (uid, command, what) =
        (next("UID").parse::<u32>().expect("a number"), next("COMMAND"), next("WHAT"));
    let many = libc::rlimit { rlim_cur: 8192, rlim_max: 8192 };
    // SAFETY: a live struct; the others take no pointers.
    unsafe {
        libc::setrlimit(libc::RLIMIT_NOFILE, &many);
        assert_eq!(
            (libc::setgroups(0, std::ptr::null()), libc::setgid(uid), libc::setuid(uid)),
            (0, 0, 0)
        );
    }
    let mut kept: Vec<OwnedFd> = Vec::new();
    let (mut deaf, mut dirs) = (Vec::new(), Vec::new());
    match command.as_str() {
        "descriptors" => deaf = descriptors(&what),
        "knock" => knock(&what),
        "ask" => ask(&what),
        "forge" => forge(&what, &next("TO"), next("QPN").parse().expect("a number")),
        "take" => return take(&what),
        "idle" => {
            kept = names(&what).iter().flat_map(|n| (0..8).filter_map(|_| n.connect())).collect();
            println!("reached {}", kept.len());
        }
        "port" => kept = vec![std::net::UdpSocket::bind(what.as_str()).expect("the port").into()],
        "squat" => (kept, dirs) = squat(&what, &next("VICTIM")),
        other => panic!("unknown command {other}"),
    }
    println!("ready");
    let _ = std::io::stdin().read_to_end(&mut Vec::new());
    drop((kept, deaf));
    for dir in dirs {
        let dir = CString::new(dir).expect("no NUL");
        // SAFETY: a C string.
        unsafe { libc::rmdir(dir.as_ptr()) };
    }
}
