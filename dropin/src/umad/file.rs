//! An open file: its agents, and the requests that wait for an answer.

use super::agents::{self, PortFacts};
use super::mad::{self, class, Mad};
use super::proto::{self, Agent, UmadHeader};
use crate::adapter::Adapter;
use crate::env;
use crate::hca::Hca;
use crate::open_devices;
use crate::verb_result::last_error;
use core::ffi::c_ulong;
use core::time::Duration;
use gdrcore_core::mem::host;
use gdrcore_core::verbs::types::AhAttr;
use gdrcore_core::{refuse, Error, Result};
use std::os::fd::{AsRawFd, IntoRawFd, OwnedFd, RawFd};
use std::sync::Once;
use std::time::Instant;

/// Agents of a file, as in the kernel.
const AGENTS: usize = 32;
/// Limit of a file's requests that wait for an answer. A further one fails at once.
const WAITING: usize = 256;
/// A LID that means the port itself.
const PERMISSIVE: u16 = 0xffff;

/// An open file.
pub struct File {
    /// The inode of the program's end.
    inode: libc::ino_t,
    /// This library's end.
    end: OwnedFd,
    adapter: &'static Adapter,
    /// The device. It stays open once the file has sent to another port or expects requests from
    /// one.
    hca: Option<&'static Hca>,
    /// Bytes of the heads in its messages.
    head: usize,
    agents: [Option<Agent>; AGENTS],
    /// The first half of its transaction ids, which assigns answers to the file.
    transactions: u32,
    waiting: Vec<PendingRequest>,
}

/// A request without an answer yet.
struct PendingRequest {
    head: UmadHeader,
    mad: Mad,
    to: AhAttr,
    timeout: Duration,
    retries: u32,
    deadline: Instant,
}

/// The facts of a device's port.
pub fn facts(a: &Adapter) -> PortFacts {
    PortFacts { index: a.index, guid: a.guid(), gid: a.endpoint.ip, lid: a.lid }
}

/// The error of a command whose argument cannot be read or written.
fn unmapped(at: u64) -> Error {
    refuse!(Fault, "ioctl: no memory for its argument at {at:#x}")
}

impl File {
    /// A file without agents. `transactions`: a number that others cannot guess.
    pub fn new(
        inode: libc::ino_t,
        end: OwnedFd,
        adapter: &'static Adapter,
        transactions: u32,
    ) -> File {
        File {
            inode,
            end,
            adapter,
            hca: None,
            head: proto::OLD_HEAD,
            agents: [const { None }; AGENTS],
            transactions,
            waiting: Vec::new(),
        }
    }

    pub fn inode(&self) -> libc::ino_t {
        self.inode
    }

    pub fn end(&self) -> RawFd {
        self.end.as_raw_fd()
    }

    pub fn adapter(&self) -> &'static Adapter {
        self.adapter
    }

    /// Ends the file, in the process that opened it.
    pub fn close(self) {
        if let Some(hca) = self.hca {
            open_devices::put(hca);
        }
    }

    /// Forgets the file in a child of the process that opened it. Its descriptor stays open.
    pub fn forget(self) {
        let _ = self.end.into_raw_fd();
    }

    /// The device; opens it if it is not open.
    fn device(&mut self) -> Result<&'static Hca> {
        if let Some(hca) = self.hca {
            return Ok(hca);
        }
        let hca = open_devices::get(self.adapter)?;
        self.hca = Some(hca);
        Ok(hca)
    }

    /// Handles the program's writes, up to the limit of a run. `is_closed`: the program has closed
    /// its last descriptor, but writes may wait. False: it is closed, and all writes are handled.
    pub fn take(&mut self, is_closed: bool) -> bool {
        let mut room = [0u8; proto::ROOM];
        for _ in 0..super::BATCH {
            // SAFETY: room of the length that is given.
            let n = unsafe {
                libc::recv(self.end(), room.as_mut_ptr().cast(), room.len(), libc::MSG_DONTWAIT)
            };
            match usize::try_from(n) {
                // The end, or an empty write.
                Ok(0) if is_closed => return false,
                Ok(0) => {}
                Ok(n) => self.written(&room[..n]),
                Err(_) => return matches!(last_error(), Error::Again | Error::Os(libc::EINTR)),
            }
        }
        true
    }

    /// Gives the program a datagram.
    fn deliver(&self, head: &UmadHeader, agent: u32, status: i32, mad: &[u8]) {
        let message = head.message(agent, status, mad, self.head);
        // A program that reads nothing loses datagrams, as any receiver does.
        // SAFETY: bytes of the length that is given.
        unsafe {
            libc::send(
                self.end(),
                message.as_ptr().cast(),
                message.len(),
                libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL,
            )
        };
    }

    /// Ends a request without an answer: returns the request's own head to the program.
    fn fail(&self, head: &UmadHeader, mad: &Mad, errno: i32) {
        self.deliver(head, head.agent(), errno, &mad.bytes()[..mad::HEAD]);
    }

    fn written(&mut self, bytes: &[u8]) {
        let Some((head, mut mad)) = UmadHeader::split(bytes, self.head) else { return };
        if self.agents.get(head.agent() as usize).is_none_or(Option::is_none) {
            return self.fail(&head, &mad, libc::EINVAL);
        }
        if !mad.is_response() {
            mad.set_transaction(
                u64::from(self.transactions) << 32 | mad.transaction() & 0xffff_ffff,
            );
        }
        let is_own = match head.gid() {
            Some(gid) => gid == self.adapter.endpoint.ip,
            None => [0, PERMISSIVE, self.adapter.lid].contains(&head.lid()),
        };
        let answered = match mad.class() {
            class::DIRECTED => mad.hops() == 0,
            class::SMP | class::PERFORMANCE => is_own,
            _ => false,
        };
        if answered && !mad.is_response() {
            agents::answer(&facts(self.adapter), &mut mad);
            return self.deliver(&head, head.agent(), 0, mad.bytes());
        }
        if let Err(e) = self.leave(&head, &mad) {
            self.fail(&head, &mad, e.errno());
        }
    }

    /// Sends a datagram to another port.
    ///
    /// # Errors
    /// [`Error::TimedOut`]: the address is no port's. [`Error::Again`]: too many requests wait.
    /// Those of the device.
    fn leave(&mut self, head: &UmadHeader, mad: &Mad) -> Result<()> {
        let to_subnet = matches!(mad.class(), class::SMP | class::DIRECTED | class::ADMINISTRATION);
        let dgid = head.gid().or_else(|| self.adapter.gid_of_lid(head.lid()));
        if to_subnet {
            static SAID: Once = Once::new();
            SAID.call_once(|| {
                let name = self.adapter.name();
                env::say(&format!(
                    "{name}: a RoCE device: there is no InfiniBand fabric and no subnet manager"
                ));
            });
        }
        let dgid = dgid.filter(|_| !to_subnet).ok_or(Error::TimedOut)?;
        let waits = !mad.is_response() && head.timeout_ms() > 0;
        if waits && self.waiting.len() >= WAITING {
            return Err(Error::Again);
        }
        let to = AhAttr { dgid, ..AhAttr::default() };
        self.device()?.send_other_mad(&to, mad.bytes())?;
        if waits {
            let timeout = Duration::from_millis(head.timeout_ms().into());
            self.waiting.push(PendingRequest {
                head: *head,
                mad: mad.clone(),
                to,
                timeout,
                retries: head.retries(),
                deadline: Instant::now() + timeout,
            });
        }
        Ok(())
    }

    /// The time of the next [`File::expire`].
    pub fn deadline(&self) -> Option<Instant> {
        self.waiting.iter().map(|w| w.deadline).min()
    }

    /// Repeats or ends the requests without an answer in time.
    pub fn expire(&mut self, now: Instant) {
        let (late, rest) = self.waiting.drain(..).partition(|w| w.deadline <= now);
        self.waiting = rest;
        let late: Vec<PendingRequest> = late;
        for mut w in late {
            match (w.retries, self.hca) {
                (1.., Some(hca)) => {
                    w.retries -= 1;
                    w.deadline = now + w.timeout;
                    // The datagram may get lost here as anywhere.
                    let _ = hca.send_other_mad(&w.to, w.mad.bytes());
                    self.waiting.push(w);
                }
                _ => self.fail(&w.head, &w.mad, libc::ETIMEDOUT),
            }
        }
    }

    /// Takes a datagram from another port. False: no agent of this file wants it.
    pub fn receive(&mut self, from: &[u8; 16], mad: &Mad) -> bool {
        if mad.is_response() {
            let asked = |w: &PendingRequest| {
                (w.mad.transaction(), w.mad.class()) == (mad.transaction(), mad.class())
                    && w.to.dgid == *from
            };
            let Some(at) = self.waiting.iter().position(asked) else { return false };
            let w = self.waiting.swap_remove(at);
            self.deliver(&w.head, w.head.agent(), 0, mad.bytes());
            return true;
        }
        let taker = self.agents.iter().position(|a| a.as_ref().is_some_and(|a| a.takes(mad)));
        let Some(agent) = taker else { return false };
        let lid = u16::from_be_bytes([from[14], from[15]]);
        let lid = if self.adapter.gid_of_lid(lid).as_ref() == Some(from) { lid } else { 0 };
        self.deliver(&UmadHeader::from_sender(from, lid), agent as u32, 0, mad.bytes());
        true
    }

    /// Registers an agent; returns its number.
    ///
    /// # Errors
    /// [`Error::Invalid`]: an unknown QP or flag, requests that another agent gets, or requests of
    /// communication management, which the device itself handles. [`Error::NoMemory`]: too many
    /// agents. Those of opening the device, if the agent gets requests.
    fn register(&mut self, agent: Agent) -> Result<u32> {
        // `IB_USER_MAD_USER_RMPP`: the program itself handles longer messages.
        const USER_RMPP: u32 = 1;
        let taken = self.agents.iter().flatten().any(|a| a.overlaps(&agent));
        let own = agent.class == class::COMMUNICATION;
        if agent.qpn > 1 || agent.flags & !USER_RMPP != 0 || taken || own {
            return Err(refuse!(
                Invalid,
                "qpn {}, mgmt_class {:#x}, flags {:#x}: QP0 or QP1, USER_RMPP, and a class and \
                 methods that no other agent has",
                agent.qpn,
                agent.class,
                agent.flags
            ));
        }
        let free = self.agents.iter().position(Option::is_none);
        let free = free.ok_or_else(|| refuse!(NoMemory, "the file has {AGENTS} agents"))?;
        if agent.methods != 0 {
            self.device()?;
        }
        self.agents[free] = Some(agent);
        Ok(free as u32)
    }

    /// A command of ioctl(2), with its argument.
    ///
    /// # Errors
    /// [`Error::Fault`]: a bad address. ENOTTY: no such command. Those of [`File::register`].
    pub fn command(&mut self, request: c_ulong, at: u64) -> Result<()> {
        let fetch = |to: &mut [u8]| host::fetch(at, to).map_err(|_| unmapped(at));
        match request {
            proto::ENABLE_PKEY => self.head = proto::HEAD,
            proto::REGISTER => {
                let mut bytes = [0; proto::REGISTER_LEN];
                fetch(&mut bytes)?;
                return self.registered(Agent::parse(&bytes), at);
            }
            proto::REGISTER_2 => {
                let mut bytes = [0; proto::REGISTER_2_LEN];
                fetch(&mut bytes)?;
                return self.registered(Agent::of_second(&bytes), at);
            }
            proto::UNREGISTER => {
                let mut id = [0; 4];
                fetch(&mut id)?;
                let id = u32::from_ne_bytes(id);
                let agent = self.agents.get_mut(id as usize).and_then(Option::take);
                agent.ok_or_else(|| refuse!(Invalid, "agent {id}: not of this file"))?;
                self.waiting.retain(|w| w.head.agent() != id);
            }
            _ => return Err(Error::Os(libc::ENOTTY)),
        }
        Ok(())
    }

    /// Registers an agent, and writes its number to the beginning of the argument.
    fn registered(&mut self, agent: Agent, at: u64) -> Result<()> {
        let id = self.register(agent)?;
        host::place(at, &id.to_ne_bytes()).map_err(|_| {
            self.agents[id as usize] = None;
            unmapped(at)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use gdrcore_core::wire::ip::gid_of_v4;
    use gdrcore_net::addr::{Endpoint, ROCE_PORT};
    use std::os::fd::OwnedFd;
    use std::os::unix::net::UnixDatagram;

    /// A file, and the program's end of it.
    fn file() -> (File, UnixDatagram) {
        let place = (Endpoint::v4([10, 0, 0, 1], ROCE_PORT), 0, None);
        let adapter: &'static Adapter = Box::leak(Box::new(Adapter::new(0, place)));
        let (end, program) = UnixDatagram::pair().unwrap();
        program.set_nonblocking(true).unwrap();
        let mut file = File::new(1, OwnedFd::from(end), adapter, 0xabcd);
        file.head = proto::HEAD;
        (file, program)
    }

    fn agent(class: u8, methods: u128) -> Agent {
        Agent { qpn: 1, class, methods, oui: [0, 0, 0], flags: 0 }
    }

    fn waiting(mad: &Mad, dgid: [u8; 16], retries: u32) -> PendingRequest {
        let timeout = Duration::from_secs(1);
        PendingRequest {
            head: UmadHeader::from_sender(&dgid, 0),
            mad: mad.clone(),
            to: AhAttr { dgid, ..AhAttr::default() },
            timeout,
            retries,
            deadline: Instant::now() + timeout,
        }
    }

    #[test]
    fn an_answer_is_that_of_a_request_from_the_port_that_was_asked() {
        let (mut file, program) = file();
        let [peer, other] = [2, 3].map(|n| gid_of_v4([10, 0, 0, n]));
        let mut request = Mad::request(class::PERFORMANCE, 1, 0x12, 0);
        request.set_transaction(7);
        file.waiting.push(waiting(&request, peer, 0));
        let answer = |class, transaction| {
            let mut mad = Mad::request(class, 0x81, 0x12, 0);
            mad.set_transaction(transaction);
            mad
        };
        assert!(!file.receive(&other, &answer(class::PERFORMANCE, 7)));
        assert!(!file.receive(&peer, &answer(class::PERFORMANCE, 8)));
        assert!(!file.receive(&peer, &answer(0x32, 7)));
        let mut room = [0; proto::ROOM];
        assert!(program.recv(&mut room).is_err());
        assert!(file.receive(&peer, &answer(class::PERFORMANCE, 7)));
        assert_eq!(program.recv(&mut room).unwrap(), proto::HEAD + mad::MAD);
        assert!(!file.receive(&peer, &answer(class::PERFORMANCE, 7)), "once");
    }

    #[test]
    fn a_request_ends_when_its_time_is_over() {
        let (mut file, program) = file();
        let request = Mad::request(class::PERFORMANCE, 1, 0x12, 0);
        let now = Instant::now();
        for _ in 0..2 {
            file.waiting.push(waiting(&request, [9; 16], 3));
        }
        assert!(file.deadline().is_some());
        file.expire(now);
        let mut room = [0; proto::ROOM];
        assert!(program.recv(&mut room).is_err());
        // No device is open that could send it again.
        file.expire(now + Duration::from_secs(3600));
        for _ in 0..2 {
            assert_eq!(program.recv(&mut room).unwrap(), proto::HEAD + mad::HEAD);
            assert_eq!(room[4..8], libc::ETIMEDOUT.to_ne_bytes());
        }
        assert!(file.deadline().is_none());
    }

    #[test]
    fn a_request_goes_to_the_agent_that_asked_for_it() {
        let (mut file, program) = file();
        let request = Mad::request(0x0b, 2, 0, 0);
        assert!(!file.receive(&[9; 16], &request));
        file.agents[3] = Some(agent(0x0b, 1 << 1));
        assert!(!file.receive(&[9; 16], &request));
        file.agents[4] = Some(agent(0x0b, 1 << 2));
        assert!(file.receive(&[9; 16], &request));
        let mut room = [0; proto::ROOM];
        assert_eq!(program.recv(&mut room).unwrap(), proto::HEAD + mad::MAD);
        assert_eq!(room[..4], 4u32.to_ne_bytes());
    }
}
