//! Who carries tenants' traffic allocates nothing: the relay's worker after its start, whoever
//! comes, talks, floods and goes; a remote device's between calls of its tenants.

use gdrcore_core::config::QPN_UNIT;
use gdrcore_core::roce::run::Run;
use gdrcore_core::wire::{Class, IcrcFlow, PacketKind, Psn};
use gdrcore_net::remote::client::RemoteDevice;
use gdrcore_net::shm::relay::{Put, Relay, PACKET_MAX};
use gdrcore_net::via::find::SocketPath;
use gdrcore_net::via::proto::Service;
use gdrcore_net::via::session::Session;
use gdrcore_router::daemon::{Daemon, Options};
use gdrcore_router::policy::tenant_of_uid;
use gdrcore_router::remote::server::Server;
use gdrcore_router::remote::shared_device::SharedDevice;
use gdrcore_testkit::ends::{connected, succeed, Op, Shape};
use gdrcore_testkit::patience::run_until;
use std::alloc::{GlobalAlloc, Layout, System};
use std::net::{SocketAddr, UdpSocket};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::atomic::{AtomicI32, AtomicU32, AtomicU64, Ordering::SeqCst};
use std::sync::{Mutex, PoisonError};

/// The system's allocator; counts what one thread asks of it.
struct Counting;

/// The thread whose calls are counted: that of one test at a time.
static THREAD: AtomicI32 = AtomicI32::new(0);
static ONE: Mutex<()> = Mutex::new(());
static CALLS: AtomicU64 = AtomicU64::new(0);

fn count() {
    // SAFETY: no precondition.
    if THREAD.load(SeqCst) == unsafe { libc::gettid() } {
        CALLS.fetch_add(1, SeqCst);
    }
}

// SAFETY: passes everything on to the system's allocator.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count();
        // SAFETY: the caller's promise.
        unsafe { System.alloc(layout) }
    }
    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        count();
        // SAFETY: the caller's promise.
        unsafe { System.dealloc(ptr, layout) }
    }
    unsafe fn realloc(&self, ptr: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        count();
        // SAFETY: the caller's promise.
        unsafe { System.realloc(ptr, layout, size) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// A datagram from one session to another.
fn datagram(from: &Session, to: &Session, payload: usize) -> Vec<u8> {
    between(from.welcome().qpns.0 + 3, to.welcome().qpns.0 + 3, payload)
}

/// A datagram between queue pairs.
fn between(from: u32, to: u32, payload: usize) -> Vec<u8> {
    let mut run = Run::new(Class::Ud, PacketKind::Send, to, Psn::new(1));
    run.src_qpn = from;
    let opcode = run.opcode(true, true);
    let mut bytes = vec![0; opcode.header_len()];
    run.emit_headers(opcode, run.psn, false, 0, &mut bytes);
    bytes.resize(bytes.len() + payload + 4, 7);
    bytes
}

fn open(at: &Path) -> (Session, Relay) {
    let path = SocketPath::new(at.as_os_str().as_bytes()).expect("a path");
    let (session, relay) = Session::open(&path, QPN_UNIT).expect("a session");
    (session, relay.expect("rings"))
}

fn until(what: &str, mut done: impl FnMut() -> bool) {
    run_until(120, what, || {
        std::thread::yield_now();
        done()
    });
}

/// The thread of that name.
fn thread(name: &str) -> Option<i32> {
    let tasks = std::fs::read_dir("/proc/self/task").ok()?;
    let is = |path: &Path| std::fs::read_to_string(path).is_ok_and(|text| text.trim() == name);
    let mut found = tasks.flatten().filter(|t| is(&t.path().join("comm")));
    found.next()?.file_name().to_str()?.parse().ok()
}

const HERE: &str = "127.0.77.1";
const THERE: &str = "127.0.77.2";
const FAR_VIP: [u8; 4] = [10, 99, 7, 7];
/// Above the ports that the kernel chooses by itself.
const BLOCK: u16 = 800;

/// Another host, as far as the router sees it.
struct FarHost {
    socket: UdpSocket,
    router: SocketAddr,
}

impl FarHost {
    fn new() -> FarHost {
        // Whoever has a port of this address for a moment leaves it.
        let free = UdpSocket::bind((HERE, 0)).expect("a socket").local_addr().expect("bound");
        let socket = UdpSocket::bind((THERE, 0xc000 | BLOCK << 4)).expect("a socket");
        socket.set_nonblocking(true).expect("a socket");
        FarHost { socket, router: free }
    }

    fn map(&self) -> String {
        let [own, far] = [self.router.port(), self.socket.local_addr().expect("bound").port()];
        format!(
            "[here]\naddress = \"{HERE}\"\nport = {own}\n[here.tenant.a]\nvip = \"10.99.7.1\"\n\
             blocks = [750, 250]\n[there]\naddress = \"{THERE}\"\nport = {far}\n\
             [there.tenant.b]\nvip = \"10.99.7.7\"\nblocks = [{BLOCK}, 1]\n"
        )
    }

    /// Packets to and from a session, whole ones and damaged ones: each arrives as right as it was.
    fn talk(&self, (session, relay): &mut (Session, Relay)) {
        let own = u32::from(BLOCK) * QPN_UNIT + 3;
        let local = session.welcome().qpns.0 + 3;
        let there = self.socket.local_addr().expect("bound");
        let gid = std::net::Ipv4Addr::from(FAR_VIP).to_ipv6_mapped().octets();
        let mut space = [0; PACKET_MAX];
        let v4 = |a: &SocketAddr| match a.ip() {
            std::net::IpAddr::V4(ip) => ip.octets(),
            std::net::IpAddr::V6(_) => unreachable!("IPv4 here"),
        };
        for (n, damage) in (0..600usize).map(|n| (n / 2, n as u8 % 2)) {
            let mut packet = between(local, own, n * 7);
            IcrcFlow::from_gids(&session.gid(), &gid, 4791, 4791).append_icrc(0, &mut packet);
            packet[8] ^= damage;
            until("no room", || relay.put(&gid, &packet) == Ok(Put::Done));
            let mut came = [0; 4096];
            until("it does not leave", || {
                self.socket.recv_from(&mut came).is_ok_and(|(len, from)| {
                    let block = session.welcome().qpns.0 / QPN_UNIT;
                    assert_eq!(from.port(), 0xc000 | (block as u16) << 4);
                    let flow = IcrcFlow::v4(v4(&from), v4(&there), from.port(), there.port());
                    assert_eq!(flow.check(0, &came[..len]).is_ok(), damage == 0);
                    came[..len - 4] == packet[..packet.len() - 4]
                })
            });
            let mut packet = between(own, local, n * 7);
            let flow = IcrcFlow::v4(v4(&there), v4(&self.router), there.port(), self.router.port());
            flow.append_icrc(0, &mut packet);
            packet[8] ^= damage;
            self.socket.send_to(&packet, self.router).expect("sent");
            until("it does not arrive", || {
                let Some(frame) = relay.take(&mut space).expect("a ring") else { return false };
                let flow = IcrcFlow::from_gids(&gid, &session.gid(), 4791, 4791);
                assert_eq!(flow.check(0, frame.packet).is_ok(), damage == 0);
                assert_eq!(frame.address, gid);
                assert_eq!(frame.packet[..frame.packet.len() - 4], packet[..packet.len() - 4]);
                true
            });
            relay.settle();
        }
    }
}

#[test]
fn a_worker_allocates_nothing_after_its_start() {
    let _one = ONE.lock().unwrap_or_else(PoisonError::into_inner);
    let dir = std::env::temp_dir().join(format!("gdrc-worker-{}", std::process::id()));
    std::fs::create_dir_all(&dir).expect("a folder");
    let at = dir.join("s");
    // Limits that are reached.
    let file = dir.join("policy");
    let far = FarHost::new();
    std::fs::write(dir.join("map"), far.map()).expect("a map");
    let policy = format!(
        "[router]\nline_rate = \"1GB\"\n[tenant.a]\nlisten = \"{}\"\ntx_rate = \"20MB\"\n\
         rx_rate = \"100MB\"\ntx_pps = 100000\nweight = 3\n[host]\nid = \"here\"\naddress = \
         \"{HERE}\"\nport = {}\nmap = \"{}\"\n",
        at.display(),
        far.router.port(),
        dir.join("map").display()
    );
    std::fs::write(&file, policy).expect("a policy");
    let options = Options { file: Some(file), ..Options::default() };
    let mut daemon = Daemon::open(&options).expect("a router");
    std::thread::spawn(move || daemon.run());
    until("there is no worker", || thread("relay").is_some());
    // One round with all of it, in which whatever is done once is done.
    for round in 0..4 {
        if round == 1 {
            THREAD.store(thread("relay").expect("the worker"), SeqCst);
        }
        let mut ends: Vec<_> = (0..5).map(|_| open(&at)).collect();
        let service = Service { space: 0x106, port: 7 };
        ends[1].0.request_guard().listen(service, true).expect("a listener");
        let mut space = [0; PACKET_MAX];
        for n in 0..2000usize {
            let (from, to) = (n % 5, (n * 7 + 3) % 5);
            let packet = datagram(&ends[from].0, &ends[to].0, n % 3000);
            let gid = ends[to].0.gid();
            until("no room", || ends[from].1.put(&gid, &packet) == Ok(Put::Done));
            until("it does not arrive", || {
                let came = ends[to].1.take(&mut space).expect("a ring");
                came.is_some_and(|frame| frame.packet == packet && frame.address == gid)
            });
            ends[to].1.settle();
        }
        far.talk(&mut ends[3]);
        // More than its ring holds, to one that does not read; then one that breaks its ring.
        for _ in 0..2000 {
            let packet = datagram(&ends[0].0, &ends[2].0, 1000);
            let gid = ends[2].0.gid();
            until("no room", || ends[0].1.put(&gid, &packet) == Ok(Put::Done));
        }
        let (lost, relay) = ends.pop().expect("a session");
        drop(relay);
        until("it is not thrown out", || {
            lost.receive_all(|_| {});
            lost.is_gone()
        });
        ends[1].0.request_guard().listen(service, false).expect("a listener");
        // What one has sent before its end arrives.
        let (from, mut relay) = ends.pop().expect("a session");
        let (to, gid) = (&ends[1].0, ends[1].0.gid());
        for n in 0..200 {
            let packet = datagram(&from, to, n);
            until("no room", || relay.put(&gid, &packet) == Ok(Put::Done));
        }
        drop((from, relay));
        let mut came = 0;
        until("some was lost with its sender", || {
            came += usize::from(ends[1].1.take(&mut space).expect("a ring").is_some());
            came == 200
        });
    }
    assert_eq!(CALLS.load(SeqCst), 0, "the worker called the allocator");
    let _ = std::fs::remove_dir_all(&dir);
}

/// A tenant's requests are posted and completed between two calls, while the other's wait.
#[test]
fn a_remote_device_allocates_nothing_between_calls() {
    let _one = ONE.lock().unwrap_or_else(PoisonError::into_inner);
    let mut server = Server::new(SharedDevice::open("loopback").expect("a device"));
    let (session, ends) = gdrcore_router::remote::session::Session::new(1).expect("a session");
    server.join(session, &tenant_of_uid(0));
    // 1: connected. 2: counted. 3: all requests have completed. 4: no longer counted.
    let phase = AtomicU32::new(0);
    std::thread::scope(|s| {
        let phase = &phase;
        s.spawn(move || {
            let device = RemoteDevice::over(ends.0, None).expect("a remote device");
            let (mut a, mut b) = connected(&device, &device, Shape::default()).expect("ends");
            phase.store(1, SeqCst);
            until("the count", || phase.load(SeqCst) == 2);
            for i in 0..500 {
                b.post_recv(9, 0, 4096).expect("post_recv");
                a.post(i, [Op::Send(None), Op::Write(0, Some(3))][i as usize % 2], 0, 4096)
                    .expect("post_send");
                succeed(&mut a, &mut b, i);
                succeed(&mut b, &mut a, 9);
            }
            phase.store(3, SeqCst);
            until("the end of the count", || phase.load(SeqCst) == 4);
            a.destroy().expect("destroy a");
            b.destroy().expect("destroy b");
        });
        let mut serve = |calls: bool, last: u32| {
            until("the tenant", || {
                _ = calls && server.hear_all();
                server.round();
                phase.load(SeqCst) == last
            });
        };
        serve(true, 1);
        CALLS.store(0, SeqCst);
        // SAFETY: no precondition.
        THREAD.store(unsafe { libc::gettid() }, SeqCst);
        phase.store(2, SeqCst);
        serve(false, 3);
        THREAD.store(0, SeqCst);
        phase.store(4, SeqCst);
        until("the session's end", || {
            server.hear_all();
            server.round();
            !server.take_broken().is_empty()
        });
    });
    assert_eq!(CALLS.load(SeqCst), 0, "the device's thread called the allocator");
}
