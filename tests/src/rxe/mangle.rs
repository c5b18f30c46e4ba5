//! The wire between the two stacks, with faults on demand. Frames cross between a tap device of
//! ours and the far end (the emulated machine's network card, or an interface of the same machine).
//! On their way RoCEv2 packets are dropped, duplicated, reordered, corrupted or delayed by a seeded
//! generator, marked as a congested switch would, changed by a test's script, and recorded. All
//! other frames pass unchanged.

use super::packets::{
    bth, mark, passes_without_ident, roce, set_icrc, shifted, swap_flush_icrc, write_pcap, Moment,
    Seen,
};
use super::side::Side;
use super::Outcome;
use crate::rng::Rng;
use std::collections::VecDeque;
use std::ffi::CString;
use std::fs::File;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::{AsRawFd, FromRawFd, RawFd};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// The kinds of faults.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The packet does not arrive.
    Drop,
    /// It arrives twice.
    Duplicate,
    /// Later packets overtake it.
    Reorder,
    /// One bit of it, from the BTH on, is flipped.
    Corrupt,
    /// It arrives some milliseconds late.
    Delay,
}

/// Number of kinds of faults.
pub const FAULTS: usize = 5;

/// Most packets that a recording keeps: 80 MB of them.
const SEEN_MAX: usize = 20_000;

/// A test's function for RoCEv2 packets that cross: gets the sender, and the bytes from the BTH to
/// before the ICRC, which it may change; the ICRC is computed anew afterwards. Returns false to
/// drop the packet.
pub type Script = Box<dyn FnMut(Side, &mut [u8]) -> bool + Send>;

#[derive(Default)]
struct Shared {
    /// Packets of ten thousand that are hit, by kind of fault.
    rates: [AtomicU32; FAULTS],
    done: [AtomicU64; FAULTS],
    packets: AtomicU64,
    /// Packets of ten thousand that are marked, of ours and of the far end's; and how many were.
    marks: [AtomicU32; 2],
    marked: AtomicU64,
    /// Packets that are delayed now.
    late: AtomicU64,
    seed: AtomicU64,
    stop: AtomicBool,
    /// Whether the ICRCs of FLUSHes are mended, and how many of rxe's were.
    mends: AtomicBool,
    mended: AtomicU64,
    script: Mutex<Option<Script>>,
    seen: Mutex<Option<VecDeque<Seen>>>,
}

impl Shared {
    /// Ignores poisoning: a case that panicked while it held a lock left the data whole.
    fn lock<T>(lock: &Mutex<T>) -> MutexGuard<'_, T> {
        lock.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn note(&self, from: Side, moment: Moment, frame: &[u8]) {
        if let Some(seen) = Shared::lock(&self.seen).as_mut() {
            if seen.len() == SEEN_MAX {
                seen.pop_front();
            }
            seen.push_back(Seen { at: Instant::now(), from, moment, frame: frame.to_vec() });
        }
    }
}

/// The wire. It ends when this value is dropped.
pub struct Mangler {
    shared: Arc<Shared>,
    port: u16,
    evidence: Option<PathBuf>,
    threads: Vec<std::thread::JoinHandle<()>>,
}

impl Mangler {
    /// Makes the tap device `name` (the caller assigns addresses) and waits for the emulated
    /// machine on a TCP port of 127.0.0.1, as QEMU's `-netdev socket,connect=` expects.
    pub fn start(name: &str) -> std::io::Result<Mangler> {
        let tap = open_tap(name)?;
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let port = listener.local_addr()?.port();
        let shared = Arc::new(Shared::default());
        let s = shared.clone();
        let accept = std::thread::spawn(move || {
            let Ok((machine, _)) = listener.accept() else { return };
            if machine.set_nodelay(true).is_ok() {
                let _ = cross(&s, tap, Far::Machine(machine));
            }
        });
        Ok(Mangler { shared, port, evidence: None, threads: vec![accept] })
    }

    /// Makes the tap device `name` and joins it to the interface `far` of this network namespace.
    /// `far` must have no addresses, and not the MAC that the frames are sent to: otherwise the
    /// namespace's own stack would take them too.
    pub fn between(name: &str, far: &str) -> std::io::Result<Mangler> {
        let (tap, socket) = (open_tap(name)?, open_interface(far)?);
        let shared = Arc::new(Shared::default());
        let s = shared.clone();
        let thread = std::thread::spawn(move || drop(cross(&s, tap, Far::Interface(socket))));
        Ok(Mangler { shared, port: 0, evidence: None, threads: vec![thread] })
    }

    /// Joins two tap devices, each in a network namespace of its own. Their stacks send whole
    /// frames: segments of a burst are cut, and checksums computed, before frames get here.
    pub fn join(near: File, far: File) -> Mangler {
        let shared = Arc::new(Shared::default());
        let s = shared.clone();
        let thread = std::thread::spawn(move || drop(cross(&s, near, Far::Interface(far))));
        Mangler { shared, port: 0, evidence: None, threads: vec![thread] }
    }

    /// The folder for evidence (see [`Mangler::evidence`]).
    pub fn keep_in(mut self, folder: PathBuf) -> Mangler {
        self.evidence = Some(folder);
        self
    }

    /// The TCP port that the emulated machine connects to.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Sets the faults, each with its rate in packets of ten thousand. None: a clean wire.
    pub fn set(&self, seed: u64, faults: &[(Fault, u32)]) {
        for rate in &self.shared.rates {
            rate.store(0, Relaxed);
        }
        self.shared.seed.store(seed, Relaxed);
        for &(fault, rate) in faults {
            self.shared.rates[fault as usize].store(rate, Relaxed);
        }
    }

    /// Sets how many packets of ten thousand from one side are marked as congested (CE).
    pub fn mark(&self, from: Side, rate: u32) {
        self.shared.marks[from as usize].store(rate, Relaxed);
    }

    /// Number of packets that were marked.
    pub fn marked(&self) -> u64 {
        self.shared.marked.load(Relaxed)
    }

    /// Whether no packet is delayed now.
    pub fn is_empty(&self) -> bool {
        self.shared.late.load(Relaxed) == 0
    }

    /// Sets the script that every packet goes through before any fault; `None`: no script.
    pub fn script(&self, script: Option<Script>) {
        *Shared::lock(&self.shared.script) = script;
    }

    /// Starts a recording of every packet; if there are too many, it keeps the newest.
    pub fn watch(&self) {
        *Shared::lock(&self.shared.seen) = Some(VecDeque::new());
    }

    /// Inspects the recording so far.
    pub fn so_far<T>(&self, look: impl FnOnce(&VecDeque<Seen>) -> T) -> T {
        look(Shared::lock(&self.shared.seen).as_ref().unwrap_or(&VecDeque::new()))
    }

    /// Ends the recording and returns it.
    pub fn seen(&self) -> Vec<Seen> {
        Shared::lock(&self.shared.seen).take().unwrap_or_default().into()
    }

    /// Ends the recording of a case; the error of a failed one names its capture.
    pub fn explain<T>(&self, done: Outcome<T>) -> Outcome<T> {
        let seen = self.seen();
        self.name(done, &seen)
    }

    /// Runs a case while packets are recorded; the error of a failed one names its capture. One in
    /// which rxe itself has gone wrong as [`shifted`] says tells nothing, and is run again, at most
    /// twice.
    pub fn observe<T>(&self, mut case: impl FnMut() -> Outcome<T>) -> Outcome<T> {
        let mut repeats = 2;
        loop {
            self.watch();
            let done = case();
            let seen = self.seen();
            let repeated = (done.is_err() && repeats > 0).then(|| shifted(&seen, Side::Rxe));
            let Some(psn) = repeated.flatten() else { return self.name(done, &seen) };
            println!("once more: rxe has begun a message again at PSN {psn}");
            repeats -= 1;
        }
    }

    /// Writes what was recorded of a failed case, where it outlives the machine, and names it.
    fn name<T>(&self, done: Outcome<T>, seen: &[Seen]) -> Outcome<T> {
        done.map_err(|e| {
            let folder = self.evidence.clone().unwrap_or_else(std::env::temp_dir);
            let path = folder.join(format!("failed-{}-{}.pcap", std::process::id(), seen.len()));
            match write_pcap(&path, seen) {
                Ok(()) => format!("{e}; what arrived is in {}", path.display()),
                Err(why) => format!("{e}; no capture: {why}"),
            }
        })
    }

    /// Keeps a capture of the packets that arrived, as evidence of what a stack does, in the folder
    /// of [`Mangler::keep_in`], if one was set.
    pub fn evidence(&self, name: &str, seen: &[Seen]) -> Outcome<()> {
        let Some(folder) = &self.evidence else { return Ok(()) };
        write_pcap(&folder.join(format!("{name}.pcap")), seen).map_err(|e| e.to_string())
    }

    /// From now on, or no more, gives rxe's FLUSHes the ICRC of the standard where it is that of
    /// rxe (see [`swap_flush_icrc`]), and ours that of rxe, once one of rxe's has come.
    pub fn mend(&self, on: bool) {
        self.shared.mends.store(on, Relaxed);
    }

    /// How many FLUSHes of rxe had another ICRC than that of the standard.
    pub fn mended(&self) -> u64 {
        self.shared.mended.load(Relaxed)
    }

    /// Number of RoCEv2 packets that crossed, and of those hit by each kind of fault.
    pub fn counts(&self) -> (u64, [u64; FAULTS]) {
        (
            self.shared.packets.load(Relaxed),
            std::array::from_fn(|i| self.shared.done[i].load(Relaxed)),
        )
    }
}

impl Drop for Mangler {
    fn drop(&mut self) {
        self.shared.stop.store(true, Relaxed);
        if self.port != 0 {
            // Ends an accept that no connection has ended yet.
            let _ = TcpStream::connect(("127.0.0.1", self.port));
        }
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

/// A tap device without packet information; made if it does not exist.
pub fn open_tap(name: &str) -> std::io::Result<File> {
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

/// A packet socket that sends and receives whole frames of an interface, without the frames that it
/// sends.
fn open_interface(name: &str) -> std::io::Result<File> {
    let failed = || Err(std::io::Error::last_os_error());
    let protocol = (libc::ETH_P_ALL as u16).to_be();
    // SAFETY: no pointers.
    let fd = unsafe {
        libc::socket(libc::AF_PACKET, libc::SOCK_RAW | libc::SOCK_CLOEXEC, i32::from(protocol))
    };
    if fd < 0 {
        return failed();
    }
    // SAFETY: the descriptor is fresh and nobody else's.
    let socket = unsafe { File::from_raw_fd(fd) };
    let name = CString::new(name)?;
    // SAFETY: zeroes are a valid sockaddr_ll.
    let mut at: libc::sockaddr_ll = unsafe { std::mem::zeroed() };
    at.sll_family = libc::AF_PACKET as u16;
    at.sll_protocol = protocol;
    // SAFETY: a terminated string.
    at.sll_ifindex = unsafe { libc::if_nametoindex(name.as_ptr()) } as i32;
    let (length, one) = (size_of::<libc::sockaddr_ll>() as u32, 1i32);
    // SAFETY: the address is whole and of that length.
    if at.sll_ifindex == 0 || unsafe { libc::bind(fd, (&raw const at).cast(), length) } < 0 {
        return failed();
    }
    let (level, option) = (libc::SOL_PACKET, libc::PACKET_IGNORE_OUTGOING);
    // SAFETY: the value is one whole int.
    if unsafe { libc::setsockopt(fd, level, option, (&raw const one).cast(), 4) } < 0 {
        return failed();
    }
    Ok(socket)
}

/// Whether the descriptor becomes readable within the time.
fn readable(fd: RawFd, limit: Duration) -> bool {
    let mut poll = libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
    let time = libc::timespec { tv_sec: limit.as_secs() as _, tv_nsec: limit.subsec_nanos() as _ };
    // SAFETY: one whole pollfd, one whole timespec, no signal mask.
    unsafe { libc::ppoll(&mut poll, 1, &time, std::ptr::null()) > 0 }
}

/// One direction: the faults of each frame, and the frames that are delayed.
struct Lane<'s> {
    shared: &'s Shared,
    from: Side,
    seed: u64,
    rng: Rng,
    waiting: Vec<(Instant, Vec<u8>)>,
}

impl<'s> Lane<'s> {
    fn new(shared: &'s Shared, from: Side) -> Lane<'s> {
        Lane { shared, from, seed: 0, rng: Rng::new(0), waiting: Vec::new() }
    }

    fn random(&mut self, below: u64) -> u64 {
        let seed = self.shared.seed.load(Relaxed);
        if seed != self.seed {
            (self.seed, self.rng) = (seed, Rng::new(seed));
        }
        self.rng.below(below)
    }

    fn hits(&mut self, fault: Fault) -> bool {
        let rate = self.shared.rates[fault as usize].load(Relaxed);
        let hit = rate > 0 && self.random(10_000) < u64::from(rate);
        if hit {
            self.shared.done[fault as usize].fetch_add(1, Relaxed);
        }
        hit
    }

    /// Passes a frame on, or applies a fault to it.
    fn frame(&mut self, mut frame: Vec<u8>, out: &mut dyn FnMut(&[u8])) {
        let Some(from) = bth(&frame) else { return out(&frame) };
        self.shared.packets.fetch_add(1, Relaxed);
        self.shared.note(self.from, Moment::Sent, &frame);
        if let (Some(script), Some(range)) =
            (Shared::lock(&self.shared.script).as_mut(), roce(&frame))
        {
            let before = frame[range.clone()].to_vec();
            if !script(self.from, &mut frame[range.clone()]) {
                return;
            }
            if frame[range] != before[..] {
                set_icrc(&mut frame);
            }
        }
        self.mend(&mut frame);
        let marks = self.shared.marks[self.from as usize].load(Relaxed);
        if marks > 0 && self.random(10_000) < u64::from(marks) {
            mark(&mut frame);
            self.shared.marked.fetch_add(1, Relaxed);
        }
        let (shared, side) = (self.shared, self.from);
        let mut send = |frame: &[u8]| {
            shared.note(side, Moment::Delivered, frame);
            out(frame);
        };
        if self.hits(Fault::Drop) {
            return;
        }
        if self.hits(Fault::Corrupt) {
            self.corrupt(&mut frame, from);
        }
        if self.hits(Fault::Duplicate) {
            let late = self.random(1500);
            self.keep_back(late, frame.clone());
        }
        if self.hits(Fault::Reorder) {
            let late = 100 + self.random(1000);
            return self.keep_back(late, frame);
        }
        if self.hits(Fault::Delay) {
            let late = 2000 + self.random(8000);
            return self.keep_back(late, frame);
        }
        send(&frame);
    }

    fn mend(&self, frame: &mut [u8]) {
        let shared = self.shared;
        if !shared.mends.load(Relaxed) {
            return;
        }
        match self.from {
            Side::Rxe if swap_flush_icrc(frame, false) => _ = shared.mended.fetch_add(1, Relaxed),
            Side::Ours if shared.mended.load(Relaxed) > 0 => _ = swap_flush_icrc(frame, true),
            _ => {}
        }
    }

    /// Flips one bit from byte `from` on. Not one of those, about one in 2^15, whose flip looks to
    /// a receiver that does not see the IPv4 identification like another identification: no such
    /// receiver can find that damage.
    fn corrupt(&mut self, frame: &mut [u8], from: usize) {
        loop {
            let at = from + self.random((frame.len() - from) as u64) as usize;
            // No checksum covers the fifth byte of the BTH, which switches may change; its
            // neighbour is corrupted instead.
            let at = if at == from + 4 { at + 1 } else { at };
            let bit = 1 << self.random(8);
            frame[at] ^= bit;
            if !passes_without_ident(frame) {
                return;
            }
            frame[at] ^= bit;
        }
    }

    fn keep_back(&mut self, late_us: u64, frame: Vec<u8>) {
        self.shared.late.fetch_add(1, Relaxed);
        self.waiting.push((Instant::now() + Duration::from_micros(late_us), frame));
    }

    /// Sends the frames that are due; returns the time until the next.
    fn due(&mut self, out: &mut dyn FnMut(&[u8])) -> Duration {
        let now = Instant::now();
        let mut next = now + Duration::from_millis(50);
        let mut i = 0;
        while i < self.waiting.len() {
            if self.waiting[i].0 <= now {
                let (_, frame) = self.waiting.remove(i);
                self.shared.note(self.from, Moment::Delivered, &frame);
                out(&frame);
                self.shared.late.fetch_sub(1, Relaxed);
            } else {
                next = next.min(self.waiting[i].0);
                i += 1;
            }
        }
        next - now
    }
}

/// The far end of the wire.
enum Far {
    /// QEMU's stream of frames, each behind its length.
    Machine(TcpStream),
    /// A packet socket, or a tap device.
    Interface(File),
}

impl Far {
    fn try_clone(&self) -> std::io::Result<Far> {
        Ok(match self {
            Far::Machine(s) => Far::Machine(s.try_clone()?),
            Far::Interface(s) => Far::Interface(s.try_clone()?),
        })
    }

    fn fd(&self) -> RawFd {
        match self {
            Far::Machine(s) => s.as_raw_fd(),
            Far::Interface(s) => s.as_raw_fd(),
        }
    }

    fn send(&mut self, frame: &[u8]) {
        // A frame that is refused is lost, as on a network.
        let _ = match self {
            Far::Machine(s) => {
                let mut out = (frame.len() as u32).to_be_bytes().to_vec();
                out.extend_from_slice(frame);
                s.write_all(&out)
            }
            Far::Interface(s) => s.write(frame).map(drop),
        };
    }

    /// Receives what has come; `held` keeps the beginning of a frame whose end is missing. `None`:
    /// the far end has closed.
    fn take(&mut self, bytes: &mut [u8], held: &mut Vec<u8>) -> Option<Vec<Vec<u8>>> {
        let n = match self {
            Far::Machine(s) => s.read(bytes),
            Far::Interface(s) => s.read(bytes),
        };
        let n = n.ok().filter(|&n| n > 0)?;
        if let Far::Interface(_) = self {
            return Some(vec![bytes[..n].to_vec()]);
        }
        held.extend_from_slice(&bytes[..n]);
        let (mut frames, mut at) = (Vec::new(), 0);
        while let Some(head) = held.get(at..at + 4) {
            let len = u32::from_be_bytes([head[0], head[1], head[2], head[3]]) as usize;
            let Some(frame) = held.get(at + 4..at + 4 + len) else { break };
            frames.push(frame.to_vec());
            at += 4 + len;
        }
        held.drain(..at);
        Some(frames)
    }
}

/// Runs both directions until the wire ends.
fn cross(shared: &Arc<Shared>, tap: File, far: Far) -> std::io::Result<()> {
    let (there, tap2, s) = (far.try_clone()?, tap.try_clone()?, shared.clone());
    let out = std::thread::spawn(move || outward(&s, tap, there));
    inward(shared, far, tap2);
    let _ = out.join();
    Ok(())
}

/// Passes frames from our tap device to the far end.
fn outward(shared: &Shared, mut tap: File, mut far: Far) {
    let mut lane = Lane::new(shared, Side::Ours);
    let mut bytes = vec![0; 65_536];
    while !shared.stop.load(Relaxed) {
        let wait = lane.due(&mut |frame| far.send(frame));
        if readable(tap.as_raw_fd(), wait) {
            match tap.read(&mut bytes) {
                Ok(n) => lane.frame(bytes[..n].to_vec(), &mut |frame| far.send(frame)),
                Err(_) => return,
            }
        }
    }
}

/// Passes frames from the far end to our tap device.
fn inward(shared: &Shared, mut far: Far, mut tap: File) {
    let mut lane = Lane::new(shared, Side::Rxe);
    let mut bytes = vec![0; 1 << 18];
    let mut held = Vec::new();
    let mut send = |frame: &[u8]| {
        // Refused while the device is down.
        let _ = tap.write(frame);
    };
    while !shared.stop.load(Relaxed) {
        let wait = lane.due(&mut send);
        if !readable(far.fd(), wait) {
            continue;
        }
        let Some(frames) = far.take(&mut bytes, &mut held) else { return };
        for frame in frames {
            lane.frame(frame, &mut send);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn damage_never_looks_like_another_identification() {
        let mut frame = vec![0u8; 14 + 20 + 8 + 12 + 4096 + 4];
        let udp_len = (frame.len() - 34) as u16;
        frame[12..14].copy_from_slice(&[8, 0]);
        frame[14] = 0x45;
        frame[23] = 17;
        frame[36..38].copy_from_slice(&4791u16.to_be_bytes());
        frame[38..40].copy_from_slice(&udp_len.to_be_bytes());
        set_icrc(&mut frame);
        assert!(passes_without_ident(&frame));
        let mut hidden = 0;
        for bit in 42 * 8..frame.len() * 8 {
            frame[bit / 8] ^= 1 << (bit % 8);
            hidden += u32::from(bit / 8 != 46 && passes_without_ident(&frame));
            frame[bit / 8] ^= 1 << (bit % 8);
        }
        assert!(hidden > 0, "no flip of this packet looks so: another length is needed");
        let shared = Shared::default();
        let mut lane = Lane::new(&shared, Side::Rxe);
        for _ in 0..200_000 {
            let mut damaged = frame.clone();
            lane.corrupt(&mut damaged, 42);
            assert!(!passes_without_ident(&damaged));
        }
    }
}
