use super::*;
use core::sync::atomic::{AtomicU64, Ordering};

const ANY: TransferId = TransferId { id: 1, left: 8 };

/// Memory that answers only at the second asking, as a GPU's would.
struct Slow(AtomicU64);

impl Memory for Slow {
    fn fetch(&self, cookie: u64, addr: u64, dst: &mut [u8], _: TransferId) -> Access {
        if self.0.fetch_add(1, Ordering::Relaxed) == 0 {
            return Access::Pending(Token(7));
        }
        dst.fill((cookie + addr) as u8);
        Access::Ready
    }
    fn place(&self, _: u64, _: u64, _: &[u8]) -> Access {
        Access::Busy
    }
    fn poll(&self, token: Token) -> Access {
        if token == Token(7) {
            Access::Ready
        } else {
            Access::Fault
        }
    }
    fn atomic(&self, _: u64, _: u64, _: AtomicOp, _: TransferId) -> Result<u64, Access> {
        Err(Access::Fault)
    }
}

#[test]
fn host_target_is_read_and_written_within_its_bounds() {
    let words: std::vec::Vec<AtomicU64> = (0..4).map(|_| AtomicU64::new(0)).collect();
    let t =
        Target { addr: words.as_ptr().expose_provenance() as u64, cookie: 0, provider: 0, len: 32 };
    let p = Providers::new();
    assert_eq!(p.place(&t, 8, &[1; 24]), Access::Ready);
    assert_eq!(p.place(&t, 9, &[1; 24]), Access::Fault);
    assert_eq!(p.place(&t, u32::MAX, &[1; 24]), Access::Fault);
    assert_eq!(p.place(&t, 32, &[]), Access::Ready);
    let mut b = [0; 16];
    assert_eq!(p.fetch(&t, 0, &mut b, ANY), Access::Ready);
    assert_eq!(b, [0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1]);
    assert_eq!(p.fetch(&t, 17, &mut b, ANY), Access::Fault);
    assert_eq!(p.atomic(&t, AtomicOp::FetchAdd(3), ANY), Ok(0));
    assert_eq!(p.atomic(&t, AtomicOp::CmpSwap { compare: 3, swap: 4 }, ANY), Ok(3));
    assert_eq!(p.atomic(&t, AtomicOp::Store(9), ANY), Ok(0));
    assert_eq!(p.atomic(&t, AtomicOp::FetchAdd(1), ANY), Ok(9));
    assert_eq!(words[0].load(Ordering::Relaxed), 10);
    assert_eq!(p.atomic(&Target { len: 7, ..t }, AtomicOp::FetchAdd(3), ANY), Err(Access::Fault));
    assert_eq!(p.poll(0, Token(0)), Access::Fault);
}

#[test]
fn what_stands_in_place_of_host_memory_is_of_regions_that_follow() {
    static SLOW: Slow = Slow(AtomicU64::new(0));
    let mut p = Providers::new();
    let reg = MrReg { pd: 0, addr: 8, length: 8, iova: 8, access: 0, provider: 0, cookie: 0 };
    assert_eq!(p.of_region(&reg).provider, 0);
    p.stand_in(&SLOW);
    let relaxed = MrReg { access: access::RELAXED_ORDERING, ..reg };
    let of = |reg: &MrReg| (p.of_region(reg).provider, p.of_region(reg).cookie);
    assert_eq!([of(&reg), of(&relaxed)], [(STAND_IN, 0), (STAND_IN, 1)]);
    assert_eq!(of(&MrReg { provider: 4, cookie: 9, ..reg }), (4, 9));
    // Of two kinds it is the one that need not be waited for.
    let (host, other) = ((STAND_IN as u8, Token(1)), (1, Token(2)));
    assert_eq!([p.later_of(Some(host), other), p.later_of(Some(other), host)], [other, other]);
    assert_eq!([p.later_of(None, host), p.later_of(Some(host), host)], [host, host]);
}

#[test]
fn providers_are_registered_once_and_unknown_ones_fault() {
    static SLOW: Slow = Slow(AtomicU64::new(0));
    let mut p = Providers::new();
    for n in [0, 5, u32::MAX] {
        assert_eq!(p.register(n, &SLOW), Err(crate::Error::Invalid));
    }
    assert_eq!(p.register(4, &SLOW), Ok(()));
    assert_eq!(p.register(4, &SLOW), Err(crate::Error::Busy));
    assert!(
        p.is_known(0) && p.is_known(4) && !p.is_known(1) && !p.is_known(5) && !p.is_known(u32::MAX)
    );
    let mut b = [0; 4];
    let t = Target { addr: 10, cookie: 20, provider: 4, len: 8 };
    assert_eq!(p.fetch(&t, 4, &mut b, ANY), Access::Pending(Token(7)));
    assert_eq!(p.poll(4, Token(7)), Access::Ready);
    assert_eq!(p.fetch(&t, 4, &mut b, ANY), Access::Ready);
    assert_eq!(b, [34; 4]);
    assert_eq!(p.place(&t, 0, &b), Access::Busy);
    for provider in [1, 5, u32::MAX] {
        let t = Target { provider, ..t };
        assert_eq!(p.fetch(&t, 0, &mut b, ANY), Access::Fault);
        assert_eq!(p.place(&t, 0, &b), Access::Fault);
        assert_eq!(p.atomic(&t, AtomicOp::FetchAdd(1), ANY), Err(Access::Fault));
    }
}
