//! Packets that wait: for a time, for others that are to overtake them, or for room in the port.

use gdrcore_core::inject::Direction;
use gdrcore_core::roce::peer::PeerAddr;

/// Most packets that wait in each direction.
const MAX_PACKETS: usize = 1024;
/// Most bytes of one: a path MTU with all headers.
pub const MAX_LEN: usize = 4096 + 256;
/// Places kept for packets that leave and find no room in the port.
const REFUSED_RESERVE: usize = 128;

/// A packet that waits.
#[derive(Clone, Copy, Debug)]
pub struct Waiting<'a> {
    /// When it is due; if others are to overtake it: not before the last of them.
    pub due: u64,
    /// When it is due if they do not come.
    pub latest: u64,
    /// Where it goes.
    pub direction: Direction,
    /// The other end.
    pub other: PeerAddr,
    /// Its queue pair.
    pub flow: u32,
    /// How many packets of its queue pair are still to overtake it.
    pub overtakers_left: u32,
    /// BTH to ICRC.
    pub bytes: &'a [u8],
}

#[derive(Clone, Copy)]
struct HeldPacket {
    due: u64,
    /// With overtakers to come: the time before which it is not due, even when they have come.
    due_once_overtaken: u64,
    /// In the order in which they came.
    order: u64,
    direction: Direction,
    other: PeerAddr,
    flow: u32,
    overtakers_left: u32,
    /// Bytes; 0: the place is free.
    len: usize,
}

/// The packets that wait.
pub struct Held {
    entries: Box<[HeldPacket]>,
    bytes: Box<[u8]>,
    /// Packets that wait: out, in.
    count: [usize; 2],
    order: u64,
}

impl HeldPacket {
    const FREE: HeldPacket = HeldPacket {
        due: 0,
        due_once_overtaken: 0,
        order: 0,
        direction: Direction::Out,
        other: PeerAddr {
            gid: [0; 16],
            scope_id: 0,
            port: 0,
            traffic_class: 0,
            hop_limit: 0,
            flow_label: 0,
        },
        flow: 0,
        overtakers_left: 0,
        len: 0,
    };
}

impl Held {
    pub fn new() -> Held {
        Held {
            entries: vec![HeldPacket::FREE; 2 * MAX_PACKETS].into(),
            bytes: vec![0; 2 * MAX_PACKETS * MAX_LEN].into(),
            count: [0; 2],
            order: 0,
        }
    }

    fn used(&mut self) -> impl Iterator<Item = &mut HeldPacket> + '_ {
        let any = self.count != [0; 2];
        self.entries.iter_mut().filter(move |e| any && e.len > 0)
    }

    /// Whether no further packet may leave: what is left is the [`REFUSED_RESERVE`].
    pub fn is_full_outbound(&self) -> bool {
        self.count[Direction::Out as usize] + REFUSED_RESERVE >= MAX_PACKETS
    }

    /// Keeps a packet. False: it is too long or empty, or finds no room, and is lost.
    pub fn keep(&mut self, w: &Waiting<'_>) -> bool {
        let (len, count) = (w.bytes.len(), &mut self.count[w.direction as usize]);
        if !(1..=MAX_LEN).contains(&len) || *count >= MAX_PACKETS {
            return false;
        }
        let Some(at) = self.entries.iter().position(|e| e.len == 0) else { return false };
        let Waiting { due, latest, direction, other, flow, overtakers_left, .. } = *w;
        let (due, due_once_overtaken) =
            if overtakers_left > 0 { (latest, due) } else { (due, due) };
        let order = self.order;
        self.entries[at] = HeldPacket {
            due,
            due_once_overtaken,
            order,
            direction,
            other,
            flow,
            overtakers_left,
            len,
        };
        self.bytes[at * MAX_LEN..][..len].copy_from_slice(w.bytes);
        self.order += 1;
        *count += 1;
        true
    }

    /// The latest due time of a queue pair's packets that later ones must not overtake.
    pub fn last_due(&mut self, direction: Direction, flow: u32) -> Option<u64> {
        let of_flow = |e: &&mut HeldPacket| {
            e.direction == direction && e.flow == flow && e.overtakers_left == 0
        };
        self.used().filter(of_flow).map(|e| e.due).max()
    }

    /// Counts a packet that is due at `due` as one that overtakes the held packets of its queue
    /// pair. A held packet with its last overtaker is due right behind that.
    pub fn count_overtaker(&mut self, direction: Direction, flow: u32, due: u64) {
        let mut order = self.order;
        for e in self
            .used()
            .filter(|e| e.direction == direction && e.flow == flow && e.overtakers_left > 0)
        {
            e.overtakers_left -= 1;
            if e.overtakers_left == 0 {
                (e.due, e.order) = (e.due_once_overtaken.max(due), order);
                order += 1;
            }
        }
        self.order = order;
    }

    /// Packets of a queue pair, or all, are due at once.
    pub fn release_held(&mut self, flow: Option<u32>) {
        self.used().filter(|e| flow.is_none_or(|flow| e.flow == flow)).for_each(|e| e.due = 0);
    }

    /// Loses all packets.
    pub fn clear(&mut self) {
        self.entries.fill(HeldPacket::FREE);
        self.count = [0; 2];
    }

    /// When the next one is due.
    pub fn due(&self) -> Option<u64> {
        let any = self.count != [0; 2];
        self.entries.iter().filter(|e| any && e.len > 0).map(|e| e.due).min()
    }

    /// Takes the next packet that is due. `may`: whether one that goes out, or in, may be taken.
    pub fn take_due(&mut self, now: u64, may: [bool; 2]) -> Option<Waiting<'_>> {
        if self.count == [0; 2] {
            return None;
        }
        let due = |e: &HeldPacket| e.len > 0 && e.due <= now && may[e.direction as usize];
        let all = self.entries.iter().enumerate().filter(|(_, e)| due(e));
        let (at, _) = all.min_by_key(|(_, e)| (e.due, e.order))?;
        let e = core::mem::replace(&mut self.entries[at], HeldPacket::FREE);
        self.count[e.direction as usize] -= 1;
        let HeldPacket { due, direction, other, flow, overtakers_left, len, .. } = e;
        let bytes = &self.bytes[at * MAX_LEN..][..len];
        Some(Waiting { due, latest: due, direction, other, flow, overtakers_left, bytes })
    }
}
