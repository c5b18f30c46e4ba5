use super::*;
use crate::policy::BLOCKS;

fn placed(host: u8, network: &str, gid: u8, blocks: std::ops::Range<u32>) -> Placed {
    Placed {
        host: format!("h{host}").into(),
        at: Endpoint::v4([192, 0, 2, host], 4791),
        tenant: format!("t{gid}"),
        network: network.into(),
        gid: [gid; 16],
        blocks,
    }
}

/// The queries that each step compares.
fn check(known: &FarTenants) {
    let all: Vec<_> = known.all().collect();
    assert_eq!(known.len(), all.len());
    let mut sources: Vec<_> = known.sources.values().flat_map(BTreeMap::values).collect();
    assert_eq!(sources.len(), all.len(), "each is found by its blocks");
    for p in &all {
        sources.retain(|s| !Arc::ptr_eq(s, p));
    }
    assert!(sources.is_empty());
    for source in known.sources.values() {
        assert!(!source.is_empty(), "no host without tenants");
        let ends = source.values().zip(source.values().skip(1));
        ends.for_each(|(a, b)| assert!(a.blocks.end <= b.blocks.start, "{a:?} {b:?}"));
    }
    assert!(known.stale.len() <= 2 * known.len() + 1024);
}

#[test]
fn blocks_belong_to_who_came_last() {
    let mut known = FarTenants::default();
    known.put(placed(1, "n", 1, 1..10)).unwrap();
    known.put(placed(1, "n", 2, 10..20)).unwrap();
    known.put(placed(1, "n", 3, 20..30)).unwrap();
    known.put(placed(2, "n", 4, 1..30)).unwrap();
    let lost = known.put(placed(1, "n", 5, 9..21)).unwrap();
    let mut lost: Vec<u8> = lost.iter().map(|p| p.gid[0]).collect();
    lost.sort_unstable();
    assert_eq!((lost, known.len()), (vec![1, 2, 3], 2));
    check(&known);
    // A repeated put changes nothing.
    let changes = known.changes;
    assert!(known.put(placed(1, "n", 5, 9..21)).unwrap().is_empty());
    assert_eq!(known.changes, changes);
    // The tenant moves.
    known.put(placed(2, "n", 5, 30..31)).unwrap();
    assert_eq!((&*known.find("n", &[5; 16]).unwrap().host, known.len()), ("h2", 2));
    check(&known);
}

#[test]
fn there_is_a_most() {
    let mut known = FarTenants::default();
    for n in 0..TENANTS_MAX as u32 {
        let mut p = placed(0, "n", 0, 1 + n % 1000..2 + n % 1000);
        p.at.ip[8..12].copy_from_slice(&(n / 1000).to_be_bytes());
        p.gid[..4].copy_from_slice(&n.to_be_bytes());
        assert_eq!(known.put(p), Ok(Vec::new()));
    }
    let one_more = placed(9, "m", 1, 1..2);
    assert!(known.put(one_more.clone()).unwrap_err().contains("131072"));
    known.remove("n", &[0; 16]).unwrap();
    assert!(known.put(one_more).is_ok());
}

/// Pseudo-random numbers, the same in each run.
struct Random(u64);

impl Random {
    fn below(&mut self, n: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % n
    }
}

#[test]
fn any_events_leave_it_in_order() {
    let mut random = Random(0x9e37_79b9_7f4a_7c15);
    for _ in 0..20 {
        let (mut known, mut now) = (FarTenants::default(), 0);
        // The expected tenants, by simpler bookkeeping: each with the time until which it is known.
        let mut model: BTreeMap<(&str, u8), (Placed, Option<u64>, bool)> = BTreeMap::new();
        for _ in 0..4000 {
            now += random.below(STALE_NS / 200);
            let gone = known.expire(now);
            let count = gone.len();
            let late = |until: Option<u64>| until.is_some_and(|at| at <= now);
            let before = model.len();
            model.retain(|_, (_, until, _)| !late(*until));
            assert_eq!(before - model.len(), count);
            let network = ["n", "m"][random.below(2) as usize];
            let gid = random.below(40) as u8;
            match random.below(32) {
                0..16 => {
                    let first = BLOCKS.start + random.below(30) as u32;
                    let blocks = first..first + 1 + random.below(5) as u32;
                    let p = placed(random.below(3) as u8, network, gid, blocks);
                    let meets = |o: &Placed| {
                        o.at == p.at
                            && o.blocks.start < p.blocks.end
                            && p.blocks.start < o.blocks.end
                    };
                    model.retain(|key, (o, ..)| *key == (network, gid) || !meets(o));
                    model.insert((network, gid), (p.clone(), None, true));
                    known.put(p).unwrap();
                }
                16..20 => {
                    let was = model.remove(&(network, gid)).map(|(p, ..)| p);
                    assert_eq!(known.remove(network, &[gid; 16]).map(|p| Placed::clone(&p)), was);
                }
                20..28 => {
                    known.age(now, network, &[gid; 16]);
                    if let Some((_, until, _)) = model.get_mut(&(network, gid)) {
                        until.get_or_insert(now + STALE_NS);
                    }
                }
                28..30 => {
                    known.begin(network);
                    let of = model.iter_mut().filter(|((name, _), _)| *name == network);
                    of.for_each(|(_, (_, _, seen))| *seen = false);
                }
                30 => {
                    known.end(now, network);
                    let of = model.iter_mut().filter(|((name, _), _)| *name == network);
                    for (_, (_, until, _)) in of.filter(|(_, (_, _, seen))| !seen) {
                        until.get_or_insert(now + STALE_NS);
                    }
                }
                _ => known.lose(),
            }
            assert!(known.all().map(|p| &**p).eq({
                let mut all: Vec<_> = model.values().map(|(p, ..)| p).collect();
                all.sort_by_key(|p| (p.network.clone(), p.gid));
                all
            }));
            assert_eq!(known.stale(), model.values().filter(|(_, u, _)| u.is_some()).count());
        }
        check(&known);
    }
}
