use super::*;
use crate::arena::CHUNK;
use crate::testing;
use proptest::prelude::*;
use std::collections::HashSet;
use std::vec::Vec;

const RW: u32 = access::LOCAL_WRITE | access::REMOTE_WRITE | access::REMOTE_READ;
const ALL: u32 = RW | access::REMOTE_ATOMIC | access::MW_BIND;
const PD: u32 = 3;
const QP: u32 = 0x11;
/// The protection domain and the QP that bind.
const OWNER: (u32, u32) = (PD, QP);

fn seeded(seed: u64) -> Config {
    Config { seed, ..Config::DEFAULT }
}

fn regions(limit: usize) -> Regions {
    testing::carve(|w| Regions::carve(w, limit.min(64), limit, &seeded(1)))
}

fn request(addr: u64, length: u64, flags: u32) -> MrReg {
    MrReg { pd: 0, addr, length, iova: addr, access: flags, provider: 0, cookie: 0 }
}

fn mr(r: &mut Regions, addr: u64, length: u64, flags: u32) -> (Handle, u32) {
    let (h, a) = r.reg(&request(addr, length, flags), PD).unwrap();
    (h, a.rkey)
}

// Linux ib_verbs.h ib_check_mr_access
#[test]
fn registration_checks_range_flags_and_provider() {
    let mut r = regions(64);
    let bad = [
        request(u64::MAX, 2, RW),
        request(1, u64::MAX, RW | access::REMOTE_ATOMIC).clone_with(|m| m.iova = 2),
        request(0x1000, 16, access::REMOTE_WRITE),
        request(0x1000, 16, access::REMOTE_ATOMIC),
        request(0x1000, 16, 1 << 30),
        request(0x1000, 16, 1 << 10),
        request(0x1000, 16, RW | access::FLUSH_PERSISTENT),
        request(0x1000, 16, RW).clone_with(|m| m.provider = STAND_IN + 1),
        request(0x1000, 16, RW).clone_with(|m| m.iova = u64::MAX - 3),
    ];
    for b in bad {
        assert_eq!(r.reg(&b, PD).unwrap_err(), Error::Invalid, "{b:?}");
    }
    assert_eq!(r.mr_live(), 0);
    for good in
        [request(0, 0, 0), request(u64::MAX, 1, RW), request(0, u64::MAX, RW), request(5, 0, ALL)]
    {
        r.reg(&good, PD).unwrap();
    }
    assert_eq!((r.mr_live(), r.pd_users(PD), r.pd_users(0)), (4, 4, 0));
}

impl MrReg {
    fn clone_with(mut self, f: impl FnOnce(&mut MrReg)) -> MrReg {
        f(&mut self);
        self
    }
}

#[test]
fn a_region_registered_anew_keeps_its_keys() {
    let mut r = regions(64);
    let (h, key) = mr(&mut r, 0x1000, 100, RW | access::MW_BIND);
    let a = r.rereg(h, &request(0x5000, 50, access::LOCAL_WRITE), PD + 1).unwrap();
    assert_eq!(
        (a.addr, a.iova, a.length, a.lkey, a.rkey, a.access),
        (0x5000, 0x5000, 50, key, key, access::LOCAL_WRITE)
    );
    assert_eq!((r.mr_live(), r.pd_users(PD), r.pd_users(PD + 1)), (1, 0, 1));
    // What is refused changes nothing.
    assert_eq!(r.rereg(h, &request(u64::MAX, 2, RW), PD).unwrap_err(), Error::Invalid);
    assert_eq!(r.query(h).unwrap(), a);
    r.rereg(h, &request(0x1000, 100, ALL), PD).unwrap();
    let (w, k) = r.mw_alloc(PD, 1).unwrap();
    r.bind(w, k, h, 0x1000, 10, access::REMOTE_READ, OWNER).unwrap();
    assert_eq!(r.rereg(h, &request(0x1000, 100, ALL), PD).unwrap_err(), Error::Busy);
    r.mw_dealloc(w).unwrap();
    r.dereg(h).unwrap();
    assert_eq!(r.rereg(h, &request(0x1000, 100, ALL), PD).unwrap_err(), Error::StaleHandle);
}

#[test]
fn query_says_what_was_registered() {
    let mut r = regions(64);
    let req =
        request(0x1000, 64, RW).clone_with(|m| (m.iova, m.provider, m.cookie) = (0x7000, 2, 9));
    let (h, a) = r.reg(&req, PD).unwrap();
    assert_eq!(r.query(h), Ok(a));
    assert_eq!((a.addr, a.length, a.iova, a.access, a.provider), (0x1000, 64, 0x7000, RW, 2));
    assert_eq!(a.lkey, a.rkey);
    let t = r.local(a.lkey, PD, 0x7010, 8, true).unwrap();
    assert_eq!(t, Target { addr: 0x1010, cookie: 9, provider: 2, len: 8 });
    assert_eq!(r.local(a.lkey, PD, 0x1010, 8, true), Err(KeyError::Range));
}

#[test]
fn zero_based_region_counts_from_zero() {
    let mut r = regions(64);
    let (_, a) = r.reg(&request(0x1000, 64, RW | access::ZERO_BASED), PD).unwrap();
    assert_eq!(a.iova, 0);
    assert_eq!(r.local(a.lkey, PD, 60, 4, true).unwrap().addr, 0x103c);
    assert_eq!(r.local(a.lkey, PD, 0x1000, 4, true), Err(KeyError::Range));
}

#[test]
fn region_that_ends_with_the_address_space_is_whole() {
    let mut r = regions(64);
    let start = u64::MAX - 15;
    let (_, key) = mr(&mut r, start, 16, RW);
    assert_eq!(r.local(key, PD, u64::MAX, 1, true).unwrap().addr, u64::MAX);
    assert_eq!(r.local(key, PD, start, 16, true).unwrap().addr, start);
    assert_eq!(r.local(key, PD, u64::MAX, 2, true), Err(KeyError::Range));
    assert_eq!(r.local(key, PD, start, 17, true), Err(KeyError::Range));
    assert_eq!(r.local(key, PD, 0, 1, true), Err(KeyError::Range));
    assert_eq!(r.local(key, PD, start - 1, 1, true), Err(KeyError::Range));
}

// rxe rxe_mr.c lookup_mr
#[test]
fn local_and_remote_tell_why_not() {
    let mut r = regions(64);
    let (h, key) = mr(&mut r, 0x1000, 16, access::REMOTE_READ);
    let (need_r, need_w) = (access::REMOTE_READ, access::REMOTE_WRITE);
    assert!(r.local(key, PD, 0x1000, 16, false).is_ok());
    assert_eq!(r.local(key, PD, 0x1000, 16, true), Err(KeyError::Access));
    assert_eq!(r.local(key, PD + 1, 0x1000, 16, false), Err(KeyError::ForeignPd));
    assert!(r.remote(key, PD, QP, 0x1000, 16, need_r).is_ok());
    assert_eq!(r.remote(key, PD, QP, 0x1000, 16, need_w), Err(KeyError::Access));
    assert_eq!(r.remote(key, PD, QP, 0x1000, 17, need_r), Err(KeyError::Range));
    assert_eq!(r.remote(key, PD + 1, QP, 0x1000, 16, need_r), Err(KeyError::ForeignPd));
    assert_eq!(r.remote(key ^ 1, PD, QP, 0x1000, 16, need_r), Err(KeyError::Unknown));
    for k in [0, 1, u32::MAX, 63 << RANDOM_BITS, 64 << RANDOM_BITS] {
        assert_eq!(r.local(k, PD, 0x1000, 1, false), Err(KeyError::Unknown), "{k:#x}");
        assert_eq!(r.remote(k, PD, QP, 0x1000, 1, 0), Err(KeyError::Unknown), "{k:#x}");
    }
    r.dereg(h).unwrap();
    assert_eq!(r.local(key, PD, 0x1000, 16, false), Err(KeyError::Expired));
    assert_eq!(r.remote(key, PD, QP, 0x1000, 16, need_r), Err(KeyError::Expired));
    assert_eq!(r.dereg(h), Err(Error::StaleHandle));
    assert_eq!(r.query(h), Err(Error::StaleHandle));
}

#[test]
fn handles_of_other_types_and_garbage_are_stale() {
    let mut r = regions(64);
    let (h, _) = mr(&mut r, 0x1000, 16, ALL);
    let (w, _) = r.mw_alloc(PD, 1).unwrap();
    assert_eq!(r.dereg(w), Err(Error::StaleHandle));
    assert_eq!(r.mw_dealloc(h), Err(Error::StaleHandle));
    for g in [0, 1, u64::MAX, h ^ (1 << 24), h + 1, h + (1 << 32), h & 0xffff_ffff] {
        assert_eq!(r.query(g), Err(Error::StaleHandle), "{g:#x}");
        assert_eq!(r.bind(w, 0, g, 0x1000, 8, 0, OWNER), Err(Error::StaleHandle), "{g:#x}");
    }
}

#[test]
fn table_grows_to_its_limit() {
    let mut r = regions(64 + CHUNK);
    let mut heap = testing::heap(1 << 16);
    let all: Vec<_> = (0..64).map(|_| mr(&mut r, 0x1000, 16, RW)).collect();
    assert_eq!(r.reg(&request(0, 0, 0), PD).unwrap_err(), Error::NoMemory);
    assert_eq!(r.mw_alloc(PD, 1).unwrap_err(), Error::NoMemory);
    r.grow(&mut heap).unwrap();
    assert_eq!(r.capacity(), 64 + CHUNK);
    (0..CHUNK).for_each(|_| assert!(r.mw_alloc(PD, 2).is_ok()));
    assert_eq!(r.grow(&mut heap), Err(Error::NoMemory));
    assert_eq!((r.mr_live(), r.mw_live()), (64, CHUNK as u32));
    all.into_iter().for_each(|(h, _)| r.dereg(h).unwrap());
    assert_eq!((r.mr_live(), r.mw_live(), r.pd_users(PD)), (0, CHUNK as u32, CHUNK as u32));
    assert!(testing::carve(|w| Ok(Regions::carve(w, 64, REGIONS_MAX + 1, &seeded(1)).is_err())));
}

/// A peer that kept a key must never reach the index's next owner, whatever low byte a program
/// chooses.
#[test]
fn reused_index_never_gets_its_last_key() {
    let mut r = regions(64);
    for _ in 0..63 {
        mr(&mut r, 0, 0, 0);
    }
    let index = r.free_head;
    let (mut last, mut seen) = (0, HashSet::new());
    for round in 0..20_000 {
        let (h, key) =
            if round % 2 == 0 { mr(&mut r, 0x1000, 16, RW) } else { r.mw_alloc(PD, 2).unwrap() };
        assert_eq!(key >> RANDOM_BITS, index);
        assert_ne!(key >> 8, last >> 8);
        assert_ne!(key & 0xf00, 0);
        assert_eq!(
            r.remote(last, PD, QP, 0x1000, 1, 0),
            Err(if round == 0 { KeyError::Unknown } else { KeyError::Expired })
        );
        seen.insert(key);
        last = key;
        if round % 2 == 0 {
            r.dereg(h).unwrap()
        } else {
            r.mw_dealloc(h).unwrap()
        }
    }
    // 20,000 draws out of 3840, of which nearly all come.
    assert!(seen.len() > 3_500, "{}", seen.len());
}

#[test]
fn keys_follow_from_the_seed() {
    let draw = |seed| {
        let mut r = testing::carve(|w| Regions::carve(w, 64, 64, &seeded(seed)));
        [mr(&mut r, 0, 0, 0).1, mr(&mut r, 0, 0, 0).1]
    };
    assert_eq!(draw(7), draw(7));
    assert_ne!(draw(7), draw(8));
    assert_ne!(draw(0), draw(1));
}

#[test]
fn type_1_window_opens_rebinds_and_closes() {
    let mut r = regions(64);
    let (m, _) = mr(&mut r, 0x1000, 64, ALL);
    let (w, k0) = r.mw_alloc(PD, 1).unwrap();
    let need = access::REMOTE_WRITE;
    assert_eq!(r.remote(k0, PD, QP, 0x1010, 16, need), Err(KeyError::Unbound));
    let k1 = r.bind(w, k0 + 1, m, 0x1010, 16, need, OWNER).unwrap();
    assert_ne!(k0, k1);
    assert_eq!(r.remote(k0, PD, QP, 0x1010, 16, need), Err(KeyError::Expired));
    assert_eq!(r.remote(k1, PD, 99, 0x1014, 12, need).unwrap().addr, 0x1014);
    assert_eq!(r.remote(k1, PD, QP, 0x100f, 1, need), Err(KeyError::Range));
    assert_eq!(r.remote(k1, PD, QP, 0x1020, 1, need), Err(KeyError::Range));
    assert_eq!(r.remote(k1, PD, QP, 0x1010, 1, access::REMOTE_READ), Err(KeyError::Access));
    assert_eq!(r.local(k1, PD, 0x1010, 1, false), Err(KeyError::Unknown));
    assert_eq!(r.dereg(m), Err(Error::Busy));
    // The program may choose the low byte of a type 1 key as well.
    let k2 = r.bind(w, k1 ^ 1, m, 0x1000, 64, access::REMOTE_READ, OWNER).unwrap();
    assert_eq!(k2, k1 ^ 1);
    assert_eq!(r.remote(k1, PD, QP, 0x1010, 1, 0), Err(KeyError::Expired));
    assert!(r.remote(k2, PD, QP, 0x1000, 64, access::REMOTE_READ).is_ok());
    assert_eq!(r.invalidate(k2, PD, QP), Err(Error::Invalid));
    let k3 = r.bind(w, k2 ^ 2, 0, 0, 0, 0, OWNER).unwrap();
    assert_eq!(r.remote(k3, PD, QP, 0x1010, 1, 0), Err(KeyError::Unbound));
    r.dereg(m).unwrap();
    r.mw_dealloc(w).unwrap();
    assert_eq!(r.mw_live(), 0);
}

// rxe rxe_mw.c rxe_check_bind_mw, type 2
// rxe rxe_mw.c rxe_do_bind_mw
// rxe rxe_mw.c rxe_check_invalidate_mw
#[test]
fn type_2_window_belongs_to_its_qp_until_invalidated() {
    let mut r = regions(64);
    let (m, mk) = mr(&mut r, 0x1000, 64, ALL);
    let (w, k) = r.mw_alloc(PD, 2).unwrap();
    let need = access::REMOTE_WRITE;
    assert_eq!(r.invalidate(k, PD, QP), Err(Error::Invalid));
    assert_eq!(r.bind(w, k, m, 0x1000, 0, need, OWNER), Err(Error::Invalid));
    assert_eq!(r.bind(w, k ^ 0xff, m, 0x1000, 8, need, OWNER), Ok(k ^ 0xff));
    let k = k ^ 0xff;
    assert_eq!(r.bind(w, k, m, 0x1000, 8, need, OWNER), Err(Error::Invalid), "bound already");
    assert!(r.remote(k, PD, QP, 0x1000, 8, need).is_ok());
    assert_eq!(r.remote(k, PD, QP + 1, 0x1000, 8, need), Err(KeyError::ForeignPd));
    assert_eq!(r.remote(k, PD + 1, QP, 0x1000, 8, need), Err(KeyError::ForeignPd));
    assert_eq!(r.invalidate(k, PD, QP + 1), Err(Error::Access));
    assert_eq!(r.invalidate(k, PD + 1, QP), Err(Error::Access));
    assert_eq!(r.invalidate(mk, PD, QP), Err(Error::Invalid), "a region refuses");
    assert_eq!(r.invalidate(k ^ 1, PD, QP), Err(Error::Invalid));
    assert_eq!(r.invalidate(u32::MAX, PD, QP), Err(Error::Invalid));
    assert_eq!(r.invalidate(k, PD, QP), Ok(()));
    assert_eq!(r.remote(k, PD, QP, 0x1000, 8, need), Err(KeyError::Unbound));
    // Of the key that a request names the low byte counts.
    for (named, low) in [(0xba, 0xba), (0, 0), (!k, !k & 0xff), (u32::MAX, 0xff)] {
        let key = (k & !0xff) | low;
        assert_eq!(r.bind(w, named, m, 0x1000, 8, need, OWNER), Ok(key));
        assert!(r.remote(key, PD, QP, 0x1000, 8, need).is_ok());
        assert_eq!(r.invalidate(key, PD, QP), Ok(()));
    }
    r.bind(w, k, m, 0x1000, 8, need, OWNER).unwrap();
    assert_eq!(r.dereg(m), Err(Error::Busy));
    r.unbind_qp(QP + 1);
    assert_eq!(r.dereg(m), Err(Error::Busy));
    r.unbind_qp(QP);
    r.dereg(m).unwrap();
}

// rxe rxe_mw.c rxe_check_bind_mw, region
#[test]
fn bind_refuses_what_the_region_does_not_give() {
    let mut r = regions(64);
    let (w, _) = r.mw_alloc(PD, 1).unwrap();
    let (foreign, _) = r.mw_alloc(PD + 1, 1).unwrap();
    let (m, _) = mr(&mut r, 0x1000, 64, ALL);
    let (no_bind, _) = mr(&mut r, 0x1000, 64, RW);
    let (read_only, _) = mr(&mut r, 0x1000, 64, access::MW_BIND);
    let (zero, _) = mr(&mut r, 0x1000, 64, ALL | access::ZERO_BASED);
    let mut bind = |w, m, addr, len, flags| r.bind(w, 7, m, addr, len, flags, OWNER);
    assert_eq!(bind(foreign, m, 0x1000, 8, 0), Err(Error::Access));
    assert_eq!(bind(w, no_bind, 0x1000, 8, 0), Err(Error::Access));
    assert_eq!(bind(w, read_only, 0x1000, 8, access::REMOTE_WRITE), Err(Error::Access));
    assert_eq!(bind(w, read_only, 0x1000, 8, access::REMOTE_ATOMIC), Err(Error::Access));
    assert!(bind(w, read_only, 0x1000, 8, access::REMOTE_READ).is_ok());
    assert_eq!(bind(w, zero, 0, 8, 0), Err(Error::Invalid));
    assert_eq!(bind(w, m, 0x1000, 65, 0), Err(Error::Invalid));
    assert_eq!(bind(w, m, 0xfff, 8, 0), Err(Error::Invalid));
    assert_eq!(bind(w, m, 0x1040, 1, 0), Err(Error::Invalid));
    assert_eq!(bind(w, m, u64::MAX, u64::MAX, 0), Err(Error::Invalid));
    assert_eq!(bind(w, m, 0x1000, 8, access::LOCAL_WRITE), Err(Error::Invalid));
    assert_eq!(bind(w, m, 0x1000, 8, u32::MAX), Err(Error::Invalid));
    // A zero-based window counts from its own start.
    let k = bind(w, m, 0x1010, 8, access::ZERO_BASED | access::REMOTE_READ).unwrap();
    assert_eq!(r.remote(k, PD, QP, 4, 4, access::REMOTE_READ).unwrap().addr, 0x1014);
    assert_eq!(r.mw_alloc(PD, 0).unwrap_err(), Error::Invalid);
    assert_eq!(r.mw_alloc(PD, 3).unwrap_err(), Error::Invalid);
}

// IBTA C10-72
#[test]
fn a_window_is_bound_by_a_qp_of_its_protection_domain() {
    for kind in [1, 2] {
        let mut r = regions(64);
        let (m, _) = mr(&mut r, 0x1000, 64, ALL);
        let (foreign, _) = r.reg(&request(0x1000, 64, ALL), PD + 1).unwrap();
        let (w, k) = r.mw_alloc(PD, kind).unwrap();
        let mut bind = |m, len, pd| r.bind(w, k, m, 0x1000, len, access::REMOTE_READ, (pd, QP));
        for (m, len) in [(m, 8), (foreign, 8), (m, 0)] {
            assert_eq!(bind(m, len, PD + 1), Err(Error::Access));
        }
        assert_eq!(bind(foreign, 8, PD), Err(Error::Access));
        assert!(bind(m, 8, PD).is_ok());
        // Nor is it closed by one.
        assert_eq!(bind(m, 0, PD + 1), Err(Error::Access));
        assert_eq!(r.unbound(m), Err(Error::Busy));
    }
}

#[test]
fn causes_name_the_reason() {
    assert_eq!(KeyError::Expired.local_cause(), CauseCode::LocalKey);
    assert_eq!(KeyError::Range.local_cause(), CauseCode::LocalRange);
    assert_eq!(KeyError::Access.peer_cause(), CauseCode::PeerLacksAccess);
    assert_eq!(KeyError::Unbound.peer_cause(), CauseCode::PeerUsedBadKey);
}

/// Numbers near the borders, where mistakes live, as well as any.
fn edgy() -> impl Strategy<Value = u64> {
    prop_oneof![
        any::<u64>(),
        0..300u64,
        (0..300u64).prop_map(|d| u64::MAX - d),
        (0..600u64).prop_map(|d| (1 << 63) - 300 + d)
    ]
}

proptest! {
    /// Whatever passes lies within the memory that was registered, computed in wide numbers.
    // rxe rxe_mr.c mr_check_range
    #[test]
    fn no_range_outside_ever_passes(
        addr in edgy(),
        iova in edgy(),
        length in edgy(),
        va in edgy(),
        near in 0..400u64,
        len in prop_oneof![any::<u32>(), 0..300u32],
        zero in any::<bool>(),
    ) {
        let mut r = regions(64);
        let flags = RW | if zero { access::ZERO_BASED } else { 0 };
        let req = MrReg { iova, ..request(addr, length, flags) };
        let Ok((_, a)) = r.reg(&req, PD) else {
            let over = |start: u64| u128::from(start) + u128::from(length) > 1 << 64;
            prop_assert!(over(addr) || (!zero && over(iova)));
            return Ok(());
        };
        prop_assert_eq!(a.iova, if zero { 0 } else { iova });
        for va in [va, a.iova.wrapping_add(near), a.iova.wrapping_add(length).wrapping_sub(near)] {
            let wide = |x: u64| u128::from(x);
            let inside =
                va >= a.iova && wide(va) + wide(u64::from(len)) <= wide(a.iova) + wide(length);
            let got = r.local(a.lkey, PD, va, len, true);
            prop_assert_eq!(got, r.remote(a.rkey, PD, QP, va, len, access::REMOTE_WRITE));
            match got {
                Ok(t) => {
                    // Nothing at all is accessed at the wrapped end of an empty range.
                    prop_assert!(inside || len == 0);
                    if len > 0 {
                        prop_assert!(
                            t.addr >= addr
                                && wide(t.addr) + wide(u64::from(len)) <= wide(addr) + wide(length)
                        );
                        prop_assert_eq!(t.addr - addr, va - a.iova);
                        prop_assert_eq!(t.len, len);
                    }
                }
                Err(e) => {
                    prop_assert_eq!(e, KeyError::Range);
                    prop_assert!(!inside);
                }
            }
        }
    }

    /// Random verbs against a table in words: who has which key, and what it opens.
    #[test]
    fn random_walk_keeps_keys_and_counts(
        ops in prop::collection::vec((0..7u8, any::<u16>(), any::<u16>()), 1..200),
    ) {
        let mut r = regions(64);
        // Handle, key, windows.
        let mut mrs: Vec<(Handle, u32, u32)> = Vec::new();
        // Handle, key, type 2, region.
        let mut mws: Vec<(Handle, u32, bool, Option<Handle>)> = Vec::new();
        for (op, a, b) in ops {
            let (a, b) = (a as usize, b as usize);
            match op {
                0 => {
                    if let Ok((h, at)) = r.reg(&request(0x1000, 4096, ALL), PD) {
                        mrs.push((h, at.rkey, 0))
                    }
                }
                1 => {
                    if let Ok((h, k)) = r.mw_alloc(PD, 1 + (a % 2) as u32) {
                        mws.push((h, k, a % 2 == 1, None))
                    }
                }
                2 if !mrs.is_empty() => {
                    let i = a % mrs.len();
                    if mrs[i].2 > 0 {
                        prop_assert_eq!(r.dereg(mrs[i].0), Err(Error::Busy));
                    } else {
                        prop_assert_eq!(r.dereg(mrs[i].0), Ok(()));
                        let old = mrs.swap_remove(i);
                        prop_assert_eq!(
                            r.remote(old.1, PD, QP, 0x1000, 1, 0),
                            Err(KeyError::Expired)
                        );
                    }
                }
                3 if !mws.is_empty() => {
                    let old = mws.swap_remove(a % mws.len());
                    prop_assert_eq!(r.mw_dealloc(old.0), Ok(()));
                    if let Some(m) = old.3 {
                        mrs.iter_mut().find(|x| x.0 == m).unwrap().2 -= 1
                    }
                }
                4 | 5 if !mws.is_empty() && !mrs.is_empty() => {
                    let (m, w) = (b % mrs.len(), a % mws.len());
                    let old = mws[w].1;
                    let key = if op == 5 { old ^ (b as u32 & 0xff) } else { old.wrapping_add(1) };
                    let done =
                        r.bind(mws[w].0, key, mrs[m].0, 0x1000, 16, access::REMOTE_READ, OWNER);
                    if mws[w].2 && mws[w].3.is_some() {
                        prop_assert_eq!(done, Err(Error::Invalid));
                    } else {
                        if let Some(old) = mws[w].3 {
                            mrs.iter_mut().find(|x| x.0 == old).unwrap().2 -= 1
                        }
                        mrs[m].2 += 1;
                        mws[w].1 = done.unwrap();
                        mws[w].3 = Some(mrs[m].0);
                    }
                }
                6 if !mws.is_empty() => {
                    let w = a % mws.len();
                    let legal = mws[w].2 && mws[w].3.is_some();
                    prop_assert_eq!(r.invalidate(mws[w].1, PD, QP).is_ok(), legal);
                    if let (true, Some(m)) = (legal, mws[w].3.take_if(|_| legal)) {
                        mrs.iter_mut().find(|x| x.0 == m).unwrap().2 -= 1;
                    }
                }
                _ => {}
            }
            prop_assert_eq!((r.mr_live() as usize, r.mw_live() as usize), (mrs.len(), mws.len()));
            let keys: HashSet<u32> =
                mrs.iter().map(|m| m.1).chain(mws.iter().map(|w| w.1)).collect();
            prop_assert_eq!(keys.len(), mrs.len() + mws.len());
            prop_assert!(!keys.contains(&0));
            for m in &mrs {
                prop_assert!(r.remote(m.1, PD, QP, 0x1000, 4096, access::REMOTE_WRITE).is_ok());
            }
            for w in &mws {
                let got = r.remote(w.1, PD, QP, 0x1000, 16, access::REMOTE_READ);
                prop_assert_eq!(
                    got.err(),
                    if w.3.is_some() { None } else { Some(KeyError::Unbound) }
                );
            }
        }
        // A key that nobody has never opens anything.
        for key in (0..64u32 << RANDOM_BITS).step_by(257) {
            let known = mrs.iter().any(|m| m.1 == key) || mws.iter().any(|w| w.1 == key);
            prop_assert!(known || r.remote(key, PD, QP, 0x1000, 1, 0).is_err());
        }
    }
}

#[test]
fn another_table_takes_regions_and_windows_under_their_keys() {
    let (mut first, mut other) = (regions(64), regions(128));
    let request = request(0x1000, 64, ALL);
    let made: Vec<_> = (0..3).map(|_| first.reg(&request, PD).unwrap()).collect();
    for k in [1, 0, 2] {
        let (h, attr) = made[k];
        other.adopt_mr(h, attr.rkey, &request, PD).unwrap();
        assert_eq!(other.query(h), Ok(attr));
        assert_eq!(other.adopt_mr(h, attr.rkey, &request, PD), Err(Error::Busy));
        assert!(other.remote(attr.rkey, PD, QP, 0x1000, 64, access::REMOTE_WRITE).is_ok());
    }
    let (w, key) = first.mw_alloc(PD, 2).unwrap();
    other.adopt_mw(w, key, PD, 2).unwrap();
    assert_eq!((other.mr_live(), other.mw_live(), other.pd_users(PD)), (3, 1, 4));
    // Each table has its own bindings.
    let new = key & !0xff | key.wrapping_add(1) & 0xff;
    other.bind(w, new, made[0].0, 0x1000, 8, access::REMOTE_READ, OWNER).unwrap();
    assert!(other.remote(new, PD, QP, 0x1000, 8, access::REMOTE_READ).is_ok());
    assert_eq!(first.remote(key, PD, QP, 0x1000, 8, access::REMOTE_READ), Err(KeyError::Unbound));
    assert_eq!(
        (other.unbound(made[0].0), first.unbound(made[0].0).is_ok()),
        (Err(Error::Busy), true)
    );
    for r in [&mut first, &mut other] {
        r.mw_dealloc(w).unwrap();
        for (h, attr) in &made {
            r.dereg(*h).unwrap();
            let gone = r.remote(attr.rkey, PD, QP, 0x1000, 8, access::REMOTE_READ);
            assert_eq!(gone, Err(KeyError::Expired));
        }
        assert_eq!((r.mr_live(), r.mw_live()), (0, 0));
    }
    // Indexes that are used again get keys that neither table has had.
    for _ in 0..64 {
        let (h, attr) = first.reg(&request, PD).unwrap();
        other.adopt_mr(h, attr.rkey, &request, PD).unwrap();
        assert!(made.iter().all(|(_, old)| old.rkey != attr.rkey));
    }
    // The table grows before it takes an index that it has not got.
    let far = u64::from(tag::MR) << 24 | 1 << 32 | 64;
    let far_key = 64 << RANDOM_BITS | 0x234;
    let grown = other.adopt_mr(far, far_key, &request, PD);
    assert_eq!(grown, Err(Error::NoMemory));
    other.grow(&mut testing::heap(1 << 16)).unwrap();
    other.adopt_mr(far, far_key, &request, PD).unwrap();
    assert_eq!(other.mr_live(), 65);
}

/// Who sees keys can foresee neither the random part nor the index of the next one.
#[test]
fn slots_are_used_in_a_secret_order() {
    let order = |seed| {
        let mut r = testing::carve(|w| Regions::carve(w, 4096, 4096, &seeded(seed)));
        let all: Vec<_> = (0..4096).map(|_| mr(&mut r, 0, 0, 0).1 >> RANDOM_BITS).collect();
        assert_eq!(all.iter().collect::<HashSet<_>>().len(), 4096, "each slot once");
        all
    };
    let (one, other) = (order(1), order(2));
    assert_eq!(one, order(1));
    // Of a random order one step in 4096 leads to the next index, and one place in 4096 is equal.
    let steps = one.windows(2).filter(|pair| pair[0] + 1 == pair[1]).count();
    let equal = one.iter().zip(&other).filter(|(a, b)| a == b).count();
    assert!(steps < 16 && equal < 16, "{steps} {equal}");
}

#[test]
fn a_million_regions_and_windows_have_keys_of_their_own() {
    let mut r = testing::carve(|w| Regions::carve(w, 64, REGIONS_MAX, &seeded(3)));
    let mut heap = testing::heap(REGIONS_MAX * 64 * 2);
    let mut keys = Vec::with_capacity(REGIONS_MAX);
    for i in 0..REGIONS_MAX {
        if r.free_head == NIL {
            r.grow(&mut heap).unwrap();
        }
        let made =
            if i % 2 == 0 { mr(&mut r, 64 * i as u64, 64, RW) } else { r.mw_alloc(PD, 2).unwrap() };
        keys.push(made);
    }
    assert_eq!(r.reg(&request(0, 0, 0), PD).unwrap_err(), Error::NoMemory);
    assert_eq!(r.grow(&mut heap), Err(Error::NoMemory));
    assert_eq!((r.capacity(), r.pd_users(PD)), (REGIONS_MAX, REGIONS_MAX as u32));
    for (i, (h, key)) in keys.iter().enumerate() {
        let at = 64 * i as u64;
        let got = r.remote(*key, PD, QP, at, 64, access::REMOTE_WRITE);
        assert_eq!(got.map(|t| t.addr), if i % 2 == 0 { Ok(at) } else { Err(KeyError::Unbound) });
        assert!(r.find(*h, if i % 2 == 0 { tag::MR } else { tag::MW }).is_ok());
    }
}

/// A table that has grown further than the one whose copy it becomes has more free slots.
#[test]
fn a_larger_table_becomes_a_copy() {
    let mut first = regions(64);
    let made = mr(&mut first, 0x1000, 64, ALL);
    let mut copy = testing::carve(|w| Regions::carve(w, 128, 128, &seeded(9)));
    copy.copy(&first).unwrap();
    assert!(copy.remote(made.1, PD, QP, 0x1000, 64, access::REMOTE_WRITE).is_ok());
    let rest: HashSet<_> = (0..127).map(|_| mr(&mut copy, 0, 0, 0).1 >> RANDOM_BITS).collect();
    assert_eq!((rest.len(), copy.reg(&request(0, 0, 0), PD)), (127, Err(Error::NoMemory)));
}

/// An engine that is made later has the bindings of the others, and counts them itself.
#[test]
fn a_copy_of_a_table_takes_its_type_1_bindings_and_keeps_their_regions() {
    let (mut first, mut copy) = (regions(64), regions(64));
    let made: Vec<_> =
        (0..2).map(|_| first.reg(&request(0x1000, 64, ALL), PD).unwrap().0).collect();
    let (bound, free, own) =
        (first.mw_alloc(PD, 1).unwrap(), first.mw_alloc(PD, 1).unwrap(), first.mw_alloc(PD, 2));
    let rkey = first.bind(bound.0, 1, made[0], 0x1000, 8, access::REMOTE_READ, OWNER).unwrap();
    let own = own.unwrap();
    let new = own.1 & !0xff | own.1.wrapping_add(1) & 0xff;
    first.bind(own.0, new, made[1], 0x1000, 8, access::REMOTE_READ, OWNER).unwrap();
    copy.copy(&first).unwrap();
    assert!(copy.remote(rkey, PD, QP, 0x1000, 8, access::REMOTE_READ).is_err());
    copy.copy_bindings(&first);
    assert!(copy.remote(rkey, PD, QP, 0x1000, 8, access::REMOTE_READ).is_ok());
    assert!(copy.remote(new, PD, QP, 0x1000, 8, access::REMOTE_READ).is_err(), "its QP's alone");
    assert_eq!((copy.dereg(made[0]), copy.unbound(made[1]).is_ok()), (Err(Error::Busy), true));
    copy.mw_dealloc(free.0).unwrap();
    copy.mw_dealloc(bound.0).unwrap();
    copy.dereg(made[0]).unwrap();
    assert_eq!((copy.mr_live(), copy.mw_live()), (1, 1));
    assert_eq!(first.dereg(made[0]), Err(Error::Busy), "each table counts its own");
}
