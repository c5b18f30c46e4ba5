//! The wire between the two stacks, with faults on demand: frames cross between a tap device of ours and the emulated
//! machine's network card, and on their way packets of RoCEv2 are dropped, doubled, overtaken, damaged or late, as a
//! seeded generator says. Everything else passes untouched.

use std::fs::File;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::{AsRawFd, RawFd};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::Relaxed};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The kinds of faults.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The packet does not arrive.
    Drop,
    /// It arrives twice.
    Duplicate,
    /// Later ones overtake it.
    Reorder,
    /// One bit of it, from the BTH on, is another.
    Corrupt,
    /// It comes some milliseconds late.
    Delay,
}

/// Number of kinds of faults.
pub const FAULTS: usize = 5;

#[derive(Default)]
struct Shared {
    /// By kind of fault, in packets of ten thousand.
    rates: [AtomicU32; FAULTS],
    done: [AtomicU64; FAULTS],
    packets: AtomicU64,
    seed: AtomicU64,
    stop: AtomicBool,
}

/// The wire. It ends with this value.
pub struct Mangler {
    shared: Arc<Shared>,
    port: u16,
    threads: Vec<std::thread::JoinHandle<()>>,
}

impl Mangler {
    /// Makes the tap device `name` (the caller gives it addresses) and waits for the emulated machine on a TCP port of
    /// 127.0.0.1, as QEMU's `-netdev socket,connect=` has it.
    pub fn start(name: &str) -> std::io::Result<Mangler> {
        let tap = open_tap(name)?;
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let port = listener.local_addr()?.port();
        let shared = Arc::new(Shared::default());
        let s = shared.clone();
        let accept = std::thread::spawn(move || {
            let Ok((machine, _)) = listener.accept() else { return };
            let both = (|| {
                machine.set_nodelay(true)?;
                Ok::<_, std::io::Error>((machine.try_clone()?, tap.try_clone()?))
            })();
            let Ok((machine2, tap2)) = both else { return };
            let t = s.clone();
            let out = std::thread::spawn(move || to_machine(&t, tap, machine));
            from_machine(&s, machine2, tap2);
            let _ = out.join();
        });
        Ok(Mangler { shared, port, threads: vec![accept] })
    }

    /// The TCP port that the emulated machine connects to.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// From now on these faults, each in so many packets of ten thousand. No faults: a clean wire.
    pub fn set(&self, seed: u64, faults: &[(Fault, u32)]) {
        for rate in &self.shared.rates {
            rate.store(0, Relaxed);
        }
        self.shared.seed.store(seed, Relaxed);
        for &(fault, rate) in faults {
            self.shared.rates[fault as usize].store(rate, Relaxed);
        }
    }

    /// RoCEv2 packets that came by, and how many were hit by each kind of fault.
    pub fn counts(&self) -> (u64, [u64; FAULTS]) {
        (self.shared.packets.load(Relaxed), std::array::from_fn(|i| self.shared.done[i].load(Relaxed)))
    }
}

impl Drop for Mangler {
    fn drop(&mut self) {
        self.shared.stop.store(true, Relaxed);
        // Ends an accept that nobody has answered yet.
        let _ = TcpStream::connect(("127.0.0.1", self.port));
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

/// A tap device without packet information, made if it is not there.
fn open_tap(name: &str) -> std::io::Result<File> {
    let tap = File::options().read(true).write(true).open("/dev/net/tun")?;
    // SAFETY: zeroes are a valid ifreq.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    for (to, from) in request.ifr_name.iter_mut().zip(name.bytes().take(15)) {
        *to = from as libc::c_char;
    }
    request.ifr_ifru.ifru_flags = (libc::IFF_TAP | libc::IFF_NO_PI) as libc::c_short;
    // SAFETY: the descriptor is open and the request is a whole ifreq.
    if unsafe { libc::ioctl(tap.as_raw_fd(), libc::TUNSETIFF as _, &request) } < 0 {
        return Err(std::io::Error::last_os_error());
    }
    Ok(tap)
}

/// Whether the descriptor is readable within the time.
fn readable(fd: RawFd, limit: Duration) -> bool {
    let mut poll = libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
    let time = libc::timespec { tv_sec: limit.as_secs() as _, tv_nsec: limit.subsec_nanos() as _ };
    // SAFETY: one whole pollfd, one whole timespec, no signal mask.
    unsafe { libc::ppoll(&mut poll, 1, &time, std::ptr::null()) > 0 }
}

/// Where the BTH of a RoCEv2 frame begins.
fn bth(frame: &[u8]) -> Option<usize> {
    let kind = u16::from_be_bytes([*frame.get(12)?, *frame.get(13)?]);
    let (protocol, udp) = match kind {
        0x0800 => (*frame.get(23)?, 14 + usize::from(frame.get(14)? & 15) * 4),
        0x86DD => (*frame.get(20)?, 54),
        _ => return None,
    };
    let port = u16::from_be_bytes([*frame.get(udp + 2)?, *frame.get(udp + 3)?]);
    (protocol == 17 && port == 4791 && frame.len() > udp + 8 + 16).then_some(udp + 8)
}

/// One direction: what happens to each frame, and those that wait for their time.
struct Lane<'s> {
    shared: &'s Shared,
    seed: u64,
    state: u64,
    waiting: Vec<(Instant, Vec<u8>)>,
}

impl<'s> Lane<'s> {
    fn new(shared: &'s Shared) -> Lane<'s> {
        Lane { shared, seed: 0, state: 1, waiting: Vec::new() }
    }

    fn random(&mut self, below: u64) -> u64 {
        let seed = self.shared.seed.load(Relaxed);
        if seed != self.seed {
            (self.seed, self.state) = (seed, seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1);
        }
        self.state ^= self.state << 13;
        self.state ^= self.state >> 7;
        self.state ^= self.state << 17;
        (self.state >> 20) % below
    }

    fn hits(&mut self, fault: Fault) -> bool {
        let rate = self.shared.rates[fault as usize].load(Relaxed);
        let hit = rate > 0 && self.random(10_000) < u64::from(rate);
        if hit {
            self.shared.done[fault as usize].fetch_add(1, Relaxed);
        }
        hit
    }

    /// Passes a frame on, or does something else with it.
    fn frame(&mut self, mut frame: Vec<u8>, send: &mut dyn FnMut(&[u8])) {
        let Some(from) = bth(&frame) else { return send(&frame) };
        self.shared.packets.fetch_add(1, Relaxed);
        if self.hits(Fault::Drop) {
            return;
        }
        if self.hits(Fault::Corrupt) {
            let at = from + self.random((frame.len() - from) as u64) as usize;
            // The fifth byte of the BTH is for switches to change and is under no checksum: its neighbour instead.
            let at = if at == from + 4 { at + 1 } else { at };
            frame[at] ^= 1 << self.random(8);
        }
        let now = Instant::now();
        if self.hits(Fault::Duplicate) {
            let late = Duration::from_micros(self.random(1500));
            self.waiting.push((now + late, frame.clone()));
        }
        if self.hits(Fault::Reorder) {
            let late = Duration::from_micros(100 + self.random(1000));
            return self.waiting.push((now + late, frame));
        }
        if self.hits(Fault::Delay) {
            let late = Duration::from_micros(2000 + self.random(8000));
            return self.waiting.push((now + late, frame));
        }
        send(&frame);
    }

    /// Sends what is due; how long until the next.
    fn due(&mut self, send: &mut dyn FnMut(&[u8])) -> Duration {
        let now = Instant::now();
        let mut next = now + Duration::from_millis(50);
        let mut i = 0;
        while i < self.waiting.len() {
            if self.waiting[i].0 <= now {
                let (_, frame) = self.waiting.remove(i);
                send(&frame);
            } else {
                next = next.min(self.waiting[i].0);
                i += 1;
            }
        }
        next - now
    }
}

/// Frames of the host to the machine: each behind its length.
fn to_machine(shared: &Shared, mut tap: File, mut machine: TcpStream) {
    let mut lane = Lane::new(shared);
    let mut bytes = vec![0; 65_536];
    let mut send = |frame: &[u8]| {
        let mut out = (frame.len() as u32).to_be_bytes().to_vec();
        out.extend_from_slice(frame);
        let _ = machine.write_all(&out);
    };
    while !shared.stop.load(Relaxed) {
        let wait = lane.due(&mut send);
        if readable(tap.as_raw_fd(), wait) {
            match tap.read(&mut bytes) {
                Ok(n) => lane.frame(bytes[..n].to_vec(), &mut send),
                Err(_) => return,
            }
        }
    }
}

/// Frames of the machine to the host.
fn from_machine(shared: &Shared, mut machine: TcpStream, mut tap: File) {
    let mut lane = Lane::new(shared);
    let mut bytes = vec![0; 1 << 18];
    let mut held = Vec::new();
    let mut send = |frame: &[u8]| {
        // Refused while the device is down.
        let _ = tap.write(frame);
    };
    while !shared.stop.load(Relaxed) {
        let wait = lane.due(&mut send);
        if !readable(machine.as_raw_fd(), wait) {
            continue;
        }
        match machine.read(&mut bytes) {
            Ok(0) | Err(_) => return,
            Ok(n) => held.extend_from_slice(&bytes[..n]),
        }
        let mut at = 0;
        while let Some(head) = held.get(at..at + 4) {
            let len = u32::from_be_bytes([head[0], head[1], head[2], head[3]]) as usize;
            let Some(frame) = held.get(at + 4..at + 4 + len) else { break };
            lane.frame(frame.to_vec(), &mut send);
            at += 4 + len;
        }
        held.drain(..at);
    }
}
