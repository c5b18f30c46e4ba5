//! Tenants of other hosts: their identity on the wire, and which slots may reach them.
//!
//! Packets on the wire go between hosts' addresses. Two fields identify the sender: the address of
//! its host, and the UDP source port, which names one of the sender's blocks.
//!
//! The router's first thread makes a table. After that only the permissions and the worker's notes
//! change, which are atomics.

use super::slots::{BitMatrix, SLOTS};
use gdrcore_net::addr::Endpoint;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};

/// UDP source ports of senders: two set bits, ten bits of the block, four of a flow, of which only
/// one value is used. 1015 blocks need ten bits. The kernel's ephemeral ports end below the ports
/// of blocks from 748 on.
const SOURCE_PORTS: u16 = 0xc000;
const FLOW_BITS: u32 = 4;

/// The UDP source port that names a block.
pub const fn source_port(block: u32) -> u16 {
    SOURCE_PORTS | ((block as u16) << FLOW_BITS)
}

/// The block that a UDP source port names, if it names one.
pub const fn block_of(port: u16) -> Option<u32> {
    match port >= SOURCE_PORTS {
        true => Some(((port & !SOURCE_PORTS) >> FLOW_BITS) as u32),
        false => None,
    }
}

/// A tenant of another host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FarPeer {
    /// Its network's number.
    pub network: u32,
    /// Its address.
    pub gid: [u8; 16],
    /// Its blocks there.
    pub blocks: Range<u32>,
    /// Its host.
    pub at: Endpoint,
}

/// Another host.
#[derive(Debug)]
struct Host {
    at: Endpoint,
    /// The times of the first and the last ICMP error of a silence; 0: there was none.
    silent: (AtomicU64, AtomicU64),
}

/// Why a packet's sender is unknown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UnknownSender {
    /// The address is no router's.
    Host,
    /// The source port names no block of a tenant there.
    Block,
}

/// The table of other hosts' tenants.
#[derive(Debug, Default)]
pub struct Far {
    /// In the order of addresses.
    hosts: Vec<Host>,
    /// In the order of networks and addresses.
    peers: Vec<FarPeer>,
    /// Host, blocks and tenant, in the order of hosts and blocks.
    sources: Vec<(u32, Range<u32>, u32)>,
    allowed: BitMatrix,
}

impl Far {
    /// A table of these tenants. No two of a network have the same address.
    pub fn new(mut peers: Vec<FarPeer>) -> Far {
        peers.sort_by_key(|p| (p.network, p.gid));
        let mut at: Vec<Endpoint> = peers.iter().map(|p| p.at).collect();
        at.sort_unstable();
        // A host is identified by its address. After a change of its port, tenants with the old and
        // the new port may exist for a moment.
        at.dedup_by_key(|at| (at.ip, at.scope_id));
        let key = |at: &Endpoint| (at.ip, at.scope_id);
        let host_of = |p: &FarPeer| at.binary_search_by_key(&key(&p.at), key).unwrap_or(0) as u32;
        let source = |(n, p): (usize, &FarPeer)| (host_of(p), p.blocks.clone(), n as u32);
        let mut sources: Vec<_> = peers.iter().enumerate().map(source).collect();
        sources.sort_by_key(|(host, blocks, _)| (*host, blocks.start));
        let hosts = at.into_iter().map(|at| Host { at, silent: Default::default() }).collect();
        Far { hosts, allowed: BitMatrix::new(SLOTS, peers.len()), peers, sources }
    }

    /// The tenants; a tenant's index is its number.
    pub fn peers(&self) -> &[FarPeer] {
        &self.peers
    }

    /// The tenant of a number.
    pub fn peer(&self, peer: u32) -> Option<&FarPeer> {
        self.peers.get(peer as usize)
    }

    /// The tenant with an address of a network.
    pub fn find(&self, network: u32, gid: &[u8; 16]) -> Option<u32> {
        let of = |p: &FarPeer| (p.network, p.gid);
        self.peers.binary_search_by_key(&(network, *gid), of).ok().map(|at| at as u32)
    }

    fn host(&self, at: &Endpoint) -> Option<usize> {
        let of = |host: &Host| (host.at.ip, host.at.scope_id);
        self.hosts.binary_search_by_key(&(at.ip, at.scope_id), of).ok()
    }

    /// The tenant that sends from an address and UDP port.
    ///
    /// # Errors
    /// [`UnknownSender`]: none.
    pub fn sender(&self, from: &Endpoint) -> Result<u32, UnknownSender> {
        let host = self.host(from).ok_or(UnknownSender::Host)?;
        let block = block_of(from.port).ok_or(UnknownSender::Block)?;
        let behind = self
            .sources
            .partition_point(|(h, blocks, _)| (*h as usize, blocks.start) <= (host, block));
        let (h, blocks, peer) =
            behind.checked_sub(1).map(|at| &self.sources[at]).ok_or(UnknownSender::Block)?;
        let is = *h as usize == host && blocks.contains(&block);
        is.then_some(*peer).ok_or(UnknownSender::Block)
    }

    /// Whether a slot's session and a tenant may talk.
    pub fn is_allowed(&self, slot: u16, peer: u32) -> bool {
        self.allowed.get(slot, peer)
    }

    /// Allows or forbids the talk, from the next packet on.
    pub fn set_allowed(&self, slot: u16, peer: u32, may: bool) {
        self.allowed.set(slot, peer, may);
    }

    /// Forbids a slot to talk to any tenant.
    pub fn forbid_all(&self, slot: u16) {
        self.allowed.clear(slot);
    }

    /// Notes an ICMP error: no router listens at a host's address.
    pub fn note_silence(&self, now: u64, at: &Endpoint) {
        let Some(host) = self.host(at).map(|host| &self.hosts[host]) else { return };
        let (since, last) = (&host.silent.0, &host.silent.1);
        // An error long after the last one begins a new silence.
        let old = now.saturating_sub(last.load(Ordering::Relaxed)) >= SILENCE_NS;
        if since.load(Ordering::Relaxed) == 0 || old {
            since.store(now, Ordering::Relaxed);
        }
        last.store(now, Ordering::Relaxed);
    }

    /// Notes that a host has sent something.
    pub fn note_life(&self, at: &Endpoint) {
        let Some(host) = self.host(at).map(|host| &self.hosts[host]) else { return };
        if host.silent.0.load(Ordering::Relaxed) != 0 {
            host.silent.0.store(0, Ordering::Relaxed);
        }
    }

    /// The hosts whose errors span [`SILENCE_NS`], the last of them within that time.
    pub fn silent(&self, now: u64) -> impl Iterator<Item = &Endpoint> {
        let is = move |host: &&Host| {
            let since = host.silent.0.load(Ordering::Relaxed);
            let last = host.silent.1.load(Ordering::Relaxed);
            since != 0
                && last.saturating_sub(since) >= SILENCE_NS
                && now.saturating_sub(last) < SILENCE_NS
        };
        self.hosts.iter().filter(is).map(|host| &host.at)
    }
}

/// The time after which a silent host counts as unreachable. It is longer than a restart of a
/// router, which must not fail its peers' requests.
pub const SILENCE_NS: u64 = 5_000_000_000;

#[cfg(test)]
mod tests {
    use super::*;

    fn at(last: u8) -> Endpoint {
        Endpoint::v4([192, 0, 2, last], 4791)
    }

    fn far() -> Far {
        let peer = |network, gid: u8, blocks, host| FarPeer {
            network,
            gid: [gid; 16],
            blocks,
            at: at(host),
        };
        Far::new(vec![
            peer(1, 9, 1..3, 8),
            peer(0, 9, 3..4, 8),
            peer(0, 7, 1..2, 5),
            peer(0, 8, 1014..1016, 5),
            peer(0, 6, 500..501, 9),
        ])
    }

    #[test]
    fn a_block_fits_a_source_port() {
        for block in 1..=1015 {
            let port = source_port(block);
            assert_eq!((port & 0xc00f, block_of(port)), (0xc000, Some(block)));
            assert_eq!(block_of(port | 0xf), Some(block), "another flow");
        }
        assert_eq!((source_port(1), source_port(1015)), (49_168, 65_392));
        assert_eq!([block_of(4791), block_of(0xbfff), block_of(0)], [None; 3]);
    }

    #[test]
    fn a_sender_is_known_by_its_host_and_block() {
        let far = far();
        let of =
            |host: u8, block: u32| far.sender(&Endpoint { port: source_port(block), ..at(host) });
        let gid =
            |peer: u32| (far.peers()[peer as usize].network, far.peers()[peer as usize].gid[0]);
        for (host, block, who) in
            [(8, 1, (1, 9)), (8, 2, (1, 9)), (8, 3, (0, 9)), (5, 1, (0, 7)), (5, 1015, (0, 8))]
        {
            assert_eq!(of(host, block).map(gid), Ok(who));
        }
        for (host, block) in
            [(8, 0), (8, 4), (8, 1015), (5, 0), (5, 2), (5, 1013), (5, 1016), (9, 3)]
        {
            assert_eq!(of(host, block), Err(UnknownSender::Block), "{host} {block}");
        }
        assert_eq!(of(6, 1), Err(UnknownSender::Host));
        assert_eq!(far.sender(&at(8)), Err(UnknownSender::Block), "a port that names no block");
        assert_eq!(Far::default().sender(&at(8)), Err(UnknownSender::Host));
        assert_eq!(far.find(0, &[9; 16]).map(gid), Some((0, 9)));
        assert_eq!((far.find(2, &[9; 16]), far.find(1, &[7; 16])), (None, None));
    }

    #[test]
    fn who_may_talk_is_said_of_each_pair() {
        let far = far();
        far.set_allowed(700, 2, true);
        far.set_allowed(701, 3, true);
        assert!(
            far.is_allowed(700, 2)
                && far.is_allowed(701, 3)
                && !far.is_allowed(700, 3)
                && !far.is_allowed(2, 2)
        );
        far.forbid_all(700);
        assert!(!far.is_allowed(700, 2) && far.is_allowed(701, 3) && !far.is_allowed(700, 99));
    }

    #[test]
    fn a_host_is_silent_when_it_was_for_a_while() {
        let far = far();
        let silent = |now: u64| far.silent(now).map(|e| e.ip[15]).collect::<Vec<_>>();
        let second = SILENCE_NS / 5;
        far.note_silence(second, &at(8));
        far.note_silence(5 * second, &at(8));
        assert_eq!(silent(6 * second), [0; 0], "not long enough");
        far.note_silence(6 * second, &at(8));
        assert_eq!(silent(6 * second), [8]);
        assert_eq!(silent(11 * second), [0; 0], "perhaps it is back: somebody may look");
        far.note_silence(12 * second, &at(8));
        assert_eq!(silent(12 * second), [0; 0], "a new silence");
        far.note_silence(16 * second, &at(8));
        far.note_silence(17 * second, &at(8));
        assert_eq!(silent(17 * second), [8]);
        far.note_life(&at(8));
        assert_eq!(silent(17 * second), [0; 0]);
        far.note_silence(18 * second, &at(10));
        assert_eq!(silent(30 * second), [0; 0], "nobody's");
    }
}
