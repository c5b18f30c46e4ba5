//! The connection manager: how two programs that know only an address and a port get their QPs connected.
//!
//! Its messages (REQ, REP, RTU, REJ, DREQ, DREP, MRA; SIDR_REQ and SIDR_REP for UD) travel as MADs from QP1 to QP1, and
//! its service ids and private data are those of rdma_cm, so the other end may be a Linux kernel (IBTA volume 1,
//! chapter 12 and annex A11).
//!
//! Sans-IO and without QPs: it is told messages ([`Cm::handle_mad`]), asked for messages ([`Cm::poll_transmit`]) and for
//! its next deadline, and keeps a fixed table of ids. A program drives it by [`Cm::listen`], [`Cm::connect`],
//! [`Cm::accept`] and so on, and hears what happened from [`Cm::take_event`]. Moving the QPs is the caller's:
//! [`Cm::qp_attr`] says how.
//!
//! Files: `mad` is bytes, `types` what programs see, `conn` one id and its states, `program` what programs ask,
//! `input` messages in, `output` messages out and time.
//!
//! Hostile peers: every table is bounded and what finds no room is dropped and counted, or refused with NO_RESOURCES;
//! a message counts for a connection only if both communication ids and the source address are right; each message in
//! causes at most one message out; timeouts that a peer dictates are bounded by [`TIMEOUT_MAX`] and [`SERVICE_TIMEOUT`].

mod conn;
mod input;
pub mod mad;
mod output;
mod program;
#[cfg(test)]
mod tests;
pub mod types;

pub use types::*;

pub use conn::State;

use crate::arena::{RawSlice, Walk, CHUNK};
use crate::bitmap::Bitmap;
use crate::config::Config;
use crate::error::{Error, Result};
use crate::pool::Pool;
use crate::roce::peer::PeerAddr;
use crate::verbs::objects::NONE;
use crate::verbs::shared::tag;
use crate::verbs::types::Handle;
use crate::wheel::Wheel;
use crate::wire::ack_timeout_ns;
use conn::Id;

const _: () = {
    use mad::{private_len, IP_HEADER_LEN};
    assert!(CONNECT_DATA_MAX == private_len::REQ - IP_HEADER_LEN);
    assert!(ACCEPT_DATA_MAX == private_len::REP);
    assert!(REJECT_DATA_MAX == private_len::REJ);
    assert!(UD_CONNECT_DATA_MAX == private_len::SIDR_REQ - IP_HEADER_LEN);
    assert!(UD_ACCEPT_DATA_MAX == private_len::SIDR_REP);
};

/// Timeout code within which a peer shall answer, where the program names none: 0.54 s.
pub const RESPONSE_TIMEOUT: u8 = 17;
/// Largest timeout code that a peer may dictate: 4.3 s.
pub const TIMEOUT_MAX: u8 = 20;
/// Timeout code of our MRAs, and the largest that a peer's MRA may ask for: 69 s.
pub const SERVICE_TIMEOUT: u8 = 24;
/// How often a message is sent again.
pub const MAX_RETRIES: u8 = 15;
/// A request for a port whose listener has gone is not refused for this long, but dropped, so that its sender asks again:
/// programs that end a listener to begin another (perftest does between two connections, a second and more apart) are not overtaken
/// by their peers.
pub const LISTENER_GRACE_NS: u64 = 4_000_000_000;
/// Listeners that are remembered so.
const FORMER: usize = 8;
/// Answers to nobody in particular that may wait to be sent.
const REPLIES: usize = 64;

/// This device, as its peers know it.
#[derive(Clone, Copy, Debug, Default)]
pub struct Local {
    /// GID.
    pub gid: [u8; 16],
    /// Node GUID.
    pub guid: u64,
    /// Largest path MTU code.
    pub path_mtu: u32,
    /// READs and atomics that a QP can have in either direction.
    pub max_rd_atomic: u8,
    /// Number of the device's QPN block, [`crate::config::QPN_UNIT`] QPNs each: the upper bits of its communication ids.
    pub block: u16,
}

/// Bits of a communication id, the upper ones, that name the block of whoever made it.
pub const BLOCK_BITS: u32 = (1u32 << 24).ilog2() - crate::config::QPN_UNIT.ilog2();

/// For whom a message is, of several devices with one address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Addressee {
    /// The device whose block has this number: the message names an id of its.
    Block(u16),
    /// Whoever listens at this port.
    Service {
        /// Port space.
        port_space: u16,
        /// Port.
        port: u16,
    },
    /// It does not say.
    Anyone,
}

impl Addressee {
    /// Whose a communication id is.
    fn of_id(id: u32) -> Addressee {
        match id {
            0 => Addressee::Anyone,
            _ => Addressee::Block((id >> (32 - BLOCK_BITS)) as u16),
        }
    }

    /// Reads it from a message as it travels. Anything is legal input.
    pub fn of(mad: &[u8]) -> Addressee {
        use mad::{Mad, Message};
        let Ok(mad) = Mad::parse(mad) else { return Addressee::Anyone };
        let of_id = Addressee::of_id;
        let of_service = |id: u64| match input::service(id) {
            Some((port_space, port)) => Addressee::Service { port_space, port },
            None => Addressee::Anyone,
        };
        match mad.message {
            Message::Req(m) => of_service(m.service_id),
            Message::SidrReq(m) => of_service(m.service_id),
            Message::SidrRep(m) => of_id(m.request_id),
            Message::Mra(m) => of_id(m.remote_comm_id),
            Message::Rej(m) => of_id(m.remote_comm_id),
            Message::Rep(m) => of_id(m.remote_comm_id),
            Message::Rtu(m) | Message::Drep(m) => of_id(m.remote_comm_id),
            Message::Dreq(m) => of_id(m.remote_comm_id),
        }
    }
}

/// What a connection manager has counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CmCounters {
    /// Messages received.
    pub rcvd: u64,
    /// Messages sent.
    pub sent: u64,
    /// Messages sent again for want of an answer.
    pub retries: u64,
    /// REJs, and SIDR_REPs that refuse, sent.
    pub rejected: u64,
    /// Messages that could not be read, belonged to nobody, or found no room.
    pub dropped: u64,
}

/// An answer that no id stands behind.
#[derive(Clone, Copy)]
struct Reply {
    to: PeerAddr,
    tid: u64,
    what: ReplyKind,
}

#[derive(Clone, Copy)]
enum ReplyKind {
    /// REJ of message `about` from the comm id given; one byte of information for INVALID_MTU.
    Rej { remote_id: u32, about: u8, reason: u16, info: Option<u8> },
    /// DREP to a DREQ that belongs to no connection (any more).
    Drep { local_id: u32, remote_id: u32 },
    /// SIDR_REP that refuses.
    Sidr { request_id: u32, status: u8, service_id: u64 },
}

/// A connection manager.
pub struct Cm {
    ids: RawSlice<Id>,
    pool: Pool,
    /// Ids with messages to send.
    tx: Bitmap,
    /// Ids with events.
    events: Bitmap,
    /// One timer per id.
    wheel: Wheel,
    replies: RawSlice<Reply>,
    reply_head: usize,
    reply_len: usize,
    /// Where the search for the next event begins, so that no id starves another.
    event_cursor: usize,
    tx_cursor: usize,
    random: u64,
    local: Local,
    /// Ports whose listeners have gone, and until when that counts.
    former: [(u16, u64); FORMER],
    former_next: usize,
    /// An event was raised since somebody looked.
    raised: bool,
    counters: CmCounters,
}

fn timeout_ns(code: u8) -> u64 {
    ack_timeout_ns(code.max(1)).unwrap_or(u64::MAX)
}

impl Cm {
    /// Lays out a connection manager of `config.max_cm_ids` ids, rounded up to a multiple of 64.
    ///
    /// # Errors
    /// [`Error::NoMemory`] where it does not fit.
    pub fn carve(w: &mut Walk, config: &Config) -> Result<Cm> {
        let n = (config.max_cm_ids as usize).next_multiple_of(CHUNK);
        Ok(Cm {
            ids: w.slice(n, Id::new(0, 0))?,
            pool: Pool::carve(w, tag::CM_ID, n, n)?,
            tx: Bitmap::carve(w, n)?,
            events: Bitmap::carve(w, n)?,
            wheel: Wheel::carve(w, n, n)?,
            replies: w.slice(
                REPLIES,
                Reply {
                    to: PeerAddr::default(),
                    tid: 0,
                    what: ReplyKind::Sidr { request_id: 0, status: 0, service_id: 0 },
                },
            )?,
            reply_head: 0,
            reply_len: 0,
            event_cursor: 0,
            tx_cursor: 0,
            // Not the stream that keys are drawn from.
            random: config.seed ^ 0x636d_5f69_6473_2121,
            local: Local::default(),
            former: [(0, 0); FORMER],
            former_next: 0,
            raised: false,
            counters: CmCounters::default(),
        })
    }

    /// Says what this device is. Before the first message.
    pub fn set_local(&mut self, local: Local) {
        self.local = local;
    }

    /// What was counted.
    pub fn counters(&self) -> CmCounters {
        self.counters
    }

    /// Ids that the program has not destroyed.
    pub fn live(&self) -> u32 {
        self.pool.iter_live().filter(|&i| !self.ids[i].orphan).count() as u32
    }

    /// Whether `take_event` has something.
    pub fn has_events(&self) -> bool {
        !self.events.is_empty()
    }

    /// Whether an event was raised since the last call: a sleeper is to be woken.
    pub fn take_raised(&mut self) -> bool {
        core::mem::take(&mut self.raised)
    }

    /// Where an id stands.
    ///
    /// # Errors
    /// [`Error::StaleHandle`].
    pub fn state(&self, id: Handle) -> Result<State> {
        Ok(self.ids[self.check(id)?].state)
    }

    /// The QP of an id, or 0.
    ///
    /// # Errors
    /// [`Error::StaleHandle`].
    pub fn qp(&self, id: Handle) -> Result<Handle> {
        Ok(self.ids[self.check(id)?].qp)
    }

    /// Takes an event. Events of one id come in their order; ids take turns.
    pub fn take_event(&mut self) -> Option<CmEvent> {
        let i = self.events.next_from(self.event_cursor).or_else(|| self.events.next_from(0))?;
        self.event_cursor = i + 1;
        let id = &mut self.ids[i];
        let number = id.events.trailing_zeros();
        id.events &= id.events.wrapping_sub(1);
        if id.events == 0 {
            self.events.clear(i);
        }
        let id = &self.ids[i];
        let listener = match id.listener {
            NONE => 0,
            l => self.pool.handle(l as usize),
        };
        Some(id.event(number, self.pool.handle(i), listener))
    }

    /// splitmix64.
    fn random(&mut self) -> u64 {
        self.random = self.random.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.random;
        z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ z >> 31
    }

    /// The index of an id that the program holds.
    fn check(&self, id: Handle) -> Result<usize> {
        let i = self.pool.check(id)?;
        if self.ids[i].orphan {
            return Err(Error::StaleHandle);
        }
        Ok(i)
    }

    /// The conversation that a communication id of ours names.
    fn by_local_id(&self, local_id: u32) -> Option<usize> {
        let i = (local_id & self.index_mask()) as usize;
        let id = self.ids.get(i)?;
        (self.pool.is_live(i) && id.is_conversation() && id.local_id == local_id).then_some(i)
    }

    /// A new id; where none is free, one whose exchange could be finished without is taken.
    fn alloc(&mut self, fresh: Id) -> Result<usize> {
        let i = match self.pool.alloc() {
            Ok((_, i)) => i,
            Err(e) => {
                let spare = self.pool.iter_live().find(|&i| self.ids[i].orphan && self.ids[i].owes == 0);
                self.free(spare.ok_or(e)?);
                self.pool.alloc()?.1
            }
        };
        self.ids[i] = fresh;
        Ok(i)
    }

    /// Gives an id back.
    fn free(&mut self, i: usize) {
        self.leave_request(i);
        self.wheel.cancel(i);
        self.tx.clear(i);
        self.events.clear(i);
        self.ids[i] = Id::new(0, 0);
        self.pool.free(i);
    }

    /// The bits of a communication id that are its index: as many as the table needs, at most 16.
    fn index_mask(&self) -> u32 {
        (self.ids.len().next_power_of_two() - 1) as u32
    }

    /// A communication id, never 0: the device's block (10 bits), bits that no earlier id at this index is likely to have had
    /// (16 with the default of 64 ids), the index.
    fn fresh_comm_id(&mut self, i: usize) -> u32 {
        let mask = self.index_mask();
        let rest = u32::MAX >> BLOCK_BITS;
        let middle = (self.random() as u32 & rest & !mask).max(mask + 1);
        u32::from(self.local.block) << (32 - BLOCK_BITS) | middle | i as u32
    }

    /// Whether an id listens at a port.
    pub fn listens(&self, port_space: u16, port: u16) -> bool {
        self.listener(port_space, port).is_some()
    }

    /// Whether a message for that addressee is for this connection manager.
    pub fn is_mine(&self, to: Addressee) -> bool {
        match to {
            Addressee::Block(block) => block == self.local.block,
            Addressee::Service { port_space, port } => self.listens(port_space, port),
            Addressee::Anyone => true,
        }
    }

    /// Owes a message of an id.
    fn owe(&mut self, i: usize, what: u16) {
        self.ids[i].owes |= what;
        self.tx.set(i);
    }

    /// What an id still owed is overtaken by events.
    fn cancel(&mut self, i: usize) {
        self.ids[i].owes = 0;
        self.tx.clear(i);
    }

    /// Raises an event, unless nobody is there to take it.
    fn raise(&mut self, i: usize, event: u32) {
        let id = &mut self.ids[i];
        if id.orphan {
            return;
        }
        id.events |= 1 << event;
        self.events.set(i);
        self.raised = true;
    }

    /// A request that waited for its program does so no more.
    fn leave_request(&mut self, i: usize) {
        let id = &mut self.ids[i];
        if matches!(id.state, State::ReqRcvd | State::SidrRcvd) && id.listener != NONE {
            let l = id.listener as usize;
            id.listener = NONE;
            if let Some(l) = self.ids.get_mut(l) {
                l.pending = l.pending.saturating_sub(1);
            }
        }
    }

    /// Moves an id on. What waited for an answer waits no more.
    fn enter(&mut self, i: usize, state: State) {
        self.leave_request(i);
        self.wheel.cancel(i);
        self.ids[i].state = state;
        if state == State::Dead && self.ids[i].orphan && self.ids[i].owes == 0 {
            self.free(i);
        }
    }

    /// Queues an answer that no id stands behind.
    fn reply(&mut self, to: &PeerAddr, tid: u64, what: ReplyKind) {
        let n = self.replies.len();
        if self.reply_len >= n {
            self.counters.dropped += 1;
            return;
        }
        let at = (self.reply_head + self.reply_len) % n;
        self.replies[at] = Reply { to: *to, tid, what };
        self.reply_len += 1;
    }
}
