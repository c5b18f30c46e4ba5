//! Windows of type 1 of a device of several engines: what a queue pair binds is the whole
//! protection domain's, so it holds in all engines, from the completion of the request on.

use gdrcore_core::device::{CqPlace, Device};
use gdrcore_core::verbs::types::{
    access, wc_opcode, wc_status, wr_opcode, BindMwWr, Handle, MwBindInfo, QpInit, RdmaWr,
};
use gdrcore_core::Error;
use gdrcore_net::soft::{soft_flags, EngineCount, PathChoice, SoftConfig};
use gdrcore_tests::ends::{complete, connect_both, End, Op, Shape};
use gdrcore_tests::patience::run_until;
use gdrcore_tests::soft::{address, Soft};
use gdrcore_tests::workers::{block, remake, shape, LEN};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

const PATHS: [PathChoice; 2] = [PathChoice::Shm, PathChoice::Udp];

/// Two devices: windows are of the second one's regions.
fn devices(path: PathChoice, engines: EngineCount) -> [Soft; 2] {
    let config = SoftConfig { path, flags: soft_flags::HELPER, ..SoftConfig::default() };
    [1, 2].map(|last| Soft::open_with(&address(last), &config, engines).expect("open"))
}

/// Ends in a protection domain of the second device, as the thread's engines have them.
fn pair<'d>(x: &'d dyn Device, y: &'d dyn Device, pd: Handle) -> (End<'d>, End<'d>) {
    let bindable = Shape { access: shape().access | access::MW_BIND, ..shape() };
    let mut a = End::new(x, shape()).expect("end");
    let mut b = End::new(y, bindable).expect("end");
    if pd != 0 {
        remake(&mut b, |init| QpInit { pd, ..init });
    }
    connect_both(&mut a, &mut b);
    (a, b)
}

/// A pair whose end of the second device is of an engine with this number.
fn pair_of<'d>(
    x: &'d dyn Device,
    y: &'d dyn Device,
    pd: Handle,
    number: u32,
) -> (End<'d>, End<'d>) {
    let (mut a, mut b) = pair(x, y, pd);
    (b.cq, _) = y.cq_create_at(64, CqPlace::Domain(number)).expect("CQ");
    let cq = b.cq;
    remake(&mut b, |init| QpInit { pd, send_cq: cq, recv_cq: cq, ..init });
    x.qp_reset(a.qp).unwrap();
    connect_both(&mut a, &mut b);
    (a, b)
}

/// A window, and the region of an end that it opens onto.
#[derive(Clone, Copy)]
struct Window {
    mw: Handle,
    mr: Handle,
    addr: u64,
}

/// Binds `length` bytes of a window's region by an end's queue pair, under a key, and waits until
/// it is done.
fn bind(by: &mut End, peer: &mut End, window: Window, rkey: u32, length: u64) {
    let mut wr = by.request(7, Op::Send(None), &[]);
    wr.opcode = wr_opcode::BIND_MW;
    let bind_info = MwBindInfo {
        mr: window.mr,
        addr: window.addr,
        length,
        mw_access_flags: access::REMOTE_WRITE,
    };
    wr.ext.bind_mw = BindMwWr { mw: window.mw, rkey, bind_info };
    by.post_wr(&wr).expect("post_send");
    let wc = complete(by, peer, 7, Duration::from_secs(60));
    assert_eq!((wc.status, wc.opcode), (wc_status::SUCCESS, wc_opcode::BIND_MW));
}

/// The status of a WRITE of ones by a key.
fn write(a: &mut End, b: &mut End, addr: u64, rkey: u32) -> u32 {
    a.buffer.write(0, &[1; LEN as usize]);
    let piece = [a.piece(0, LEN)];
    let mut wr = a.request(8, Op::Write(0, None), &piece);
    wr.wr.rdma = RdmaWr { remote_addr: addr, rkey };
    a.post_wr(&wr).expect("post_send");
    complete(a, b, 8, Duration::from_secs(60)).status
}

/// The key after another one of the same window.
fn next(rkey: u32) -> u32 {
    rkey & !0xff | rkey.wrapping_add(1) & 0xff
}

#[test]
fn what_one_engine_binds_all_engines_open() {
    for path in PATHS {
        let [x, y] = devices(path, EngineCount::up_to(3));
        let (x, y) = (x.dev(), y.dev());
        let (mut a, mut b) = pair(x, y, 0);
        let (mut c, mut d) = pair_of(x, y, b.pd, 1);
        assert_ne!(block(&b), block(&d));
        let (mw, mut rkey) = y.mw_alloc(b.pd, 1).expect("a window");
        let window = Window { mw, mr: b.mr, addr: b.buffer.addr() };
        for round in 0..20 {
            let old = rkey;
            rkey = next(rkey);
            // By queue pairs of either engine, onto one half and then the other.
            let window = Window { addr: window.addr + round % 2 * 4096, ..window };
            match round % 4 < 2 {
                true => bind(&mut b, &mut a, window, rkey, 4096),
                false => bind(&mut d, &mut c, window, rkey, 4096),
            }
            for (from, to) in [(&mut a, &mut b), (&mut c, &mut d)] {
                assert_eq!(write(from, to, window.addr, rkey), wc_status::SUCCESS, "{round}");
            }
            assert_eq!(y.mr_dereg(b.mr), Err(Error::Busy), "a window is bound to it");
            if round == 19 {
                assert_eq!(write(&mut c, &mut d, window.addr, old), wc_status::REM_ACCESS_ERR);
            }
        }
        // An engine that is made now has the binding, too.
        let (mut e, mut f) = pair_of(x, y, b.pd, 2);
        let at = window.addr + 4096;
        assert_eq!(write(&mut e, &mut f, at, rkey), wc_status::SUCCESS);
        // Closed in one engine, closed in all.
        bind(&mut b, &mut a, window, next(rkey), 0);
        assert_eq!(write(&mut e, &mut f, at, rkey), wc_status::REM_ACCESS_ERR);
        y.mw_dealloc(mw).unwrap();
        assert_eq!(write(&mut a, &mut b, at, next(rkey)), wc_status::REM_ACCESS_ERR);
        // Nothing counts as bound any more, in any engine.
        y.mr_dereg(b.mr).unwrap();
    }
}

#[test]
fn two_engines_bind_at_the_same_time() {
    for path in PATHS {
        let [x, y] = devices(path, EngineCount::all(2));
        let (x, y) = (x.dev(), y.dev());
        let first = pair(x, y, 0);
        let pd = first.1.pd;
        let second = pair_of(x, y, pd, 1);
        assert_ne!(block(&first.1), block(&second.1));
        // Both windows are of one domain, and open onto the first end's region.
        let (mr, addr) = (first.1.mr, first.1.buffer.addr());
        let windows: Vec<_> = (0..2).map(|_| y.mw_alloc(pd, 1).expect("a window")).collect();
        std::thread::scope(|scope| {
            let threads = [first, second].into_iter().enumerate().map(|(n, (mut a, mut b))| {
                let (mw, mut rkey) = windows[n];
                let window = Window { mw, mr, addr };
                scope.spawn(move || {
                    for _ in 0..500 {
                        rkey = next(rkey);
                        bind(&mut b, &mut a, window, rkey, 4096);
                        assert_eq!(write(&mut a, &mut b, window.addr, rkey), wc_status::SUCCESS);
                    }
                    // The first end's memory is of both.
                    (a, b)
                })
            });
            let threads: Vec<_> = threads.collect();
            let _ends: Vec<_> = threads.into_iter().map(|t| t.join().expect("no panic")).collect();
        });
    }
}

#[test]
fn nothing_is_written_by_the_old_key_once_another_engine_has_bound() {
    for path in PATHS {
        let [x, y] = devices(path, EngineCount::all(2));
        let (x, y) = (x.dev(), y.dev());
        let (mut a, mut b) = pair(x, y, 0);
        for round in 0..10u8 {
            let (mut c, mut d) = pair_of(x, y, b.pd, 1);
            assert_ne!(block(&b), block(&d));
            let (mw, first) = y.mw_alloc(b.pd, 1).expect("a window");
            let window = Window { mw, mr: b.mr, addr: b.buffer.addr() };
            let rkey = next(first);
            bind(&mut b, &mut a, window, rkey, 4096);
            b.buffer.write(0, &[0; LEN as usize]);
            let (done, writes) = (AtomicBool::new(false), AtomicU32::new(0));
            std::thread::scope(|scope| {
                let (done, writes) = (&done, &writes);
                let writer = scope.spawn(move || {
                    run_until(60, "the key outlives its binding", || {
                        let ok = write(&mut c, &mut d, window.addr, rkey) == wc_status::SUCCESS;
                        writes.fetch_add(ok.into(), Ordering::SeqCst);
                        !ok
                    });
                    assert!(done.load(Ordering::SeqCst), "refused before the new binding");
                });
                while writes.load(Ordering::SeqCst) < 10 {
                    assert!(!writer.is_finished());
                    std::thread::yield_now();
                }
                done.store(true, Ordering::SeqCst);
                // Onto the other half: from here on nothing comes to the first one.
                let other = Window { addr: window.addr + 4096, ..window };
                bind(&mut b, &mut a, other, next(rkey), 4096);
                let mark = [0x80 | round; LEN as usize];
                b.buffer.write(0, &mark);
                writer.join().expect("the writer");
                assert_eq!(b.buffer.read(0, LEN as usize), mark);
            });
            y.mw_dealloc(mw).unwrap();
        }
    }
}
