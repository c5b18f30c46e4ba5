//! READs of more than one piece: how much one request asks for, and that all of it comes, whatever
//! is lost.

use crate::util::{pattern, End, Fate, Net, Opts, Wr};
use gdrcore_core::config::Config;
use gdrcore_core::roce::READ_PIECE;
use gdrcore_core::verbs::types::{wc_status, wr_opcode};
use gdrcore_core::wire::Opcode;
use std::cell::RefCell;
use std::rc::Rc;

const MTU: u32 = 1024;
/// Bytes of a READ: 16 pieces.
const LEN: usize = 1 << 20;

/// What has been asked for and answered.
#[derive(Default)]
struct Asked {
    /// Bytes of each request.
    requests: Vec<u32>,
    /// Bytes asked for and not yet answered.
    under_way: i64,
    /// The most of them.
    most: i64,
}

/// Counts what the requester asks for, and what the responder answers.
fn watch(net: &mut Net) -> Rc<RefCell<Asked>> {
    let asked = Rc::new(RefCell::new(Asked::default()));
    let tell = asked.clone();
    net.tap = Some(Box::new(move |_, p| {
        let mut asked = tell.borrow_mut();
        match Opcode(p[0]) {
            Opcode::RC_READ_REQUEST => {
                let bytes = u32::from_be_bytes(p[24..28].try_into().unwrap());
                asked.requests.push(bytes);
                asked.under_way += i64::from(bytes);
                asked.most = asked.most.max(asked.under_way);
            }
            op if (Opcode::RC_READ_RESPONSE_FIRST.0..=Opcode::RC_READ_RESPONSE_ONLY.0)
                .contains(&op.0) =>
            {
                asked.under_way -= i64::from(MTU);
            }
            _ => {}
        }
        Fate::Deliver
    }));
    asked
}

fn read(a: &End, b: &End) -> Wr {
    Wr::new(wr_opcode::RDMA_READ).local(a, 0, LEN).remote(b, 0)
}

/// Has four READs at once succeed, which fill a window.
fn read_four(net: &mut Net, a: &End, b: &End) {
    (0..4).for_each(|_| net.post(a, read(a, b)));
    let wc = net.wait(a.host, a.scq, 4);
    assert!(wc.iter().all(|w| w.status == wc_status::SUCCESS), "{wc:?}");
}

/// Ends whose window may grow to `window_max` bytes, and has.
fn grown(window_max: u32, rd_atomic: u8) -> (Net, End, End) {
    let config = Config { window_max, max_rd_atomic: 128, ..Opts::default().config };
    let (mut net, a, b) = Net::pair(Opts { rd_atomic, config, ..Opts::default() });
    b.buf.write(0, &pattern(9, LEN));
    // It grows only while it is in use.
    (0..20).for_each(|_| read_four(&mut net, &a, &b));
    (net, a, b)
}

#[test]
fn a_request_asks_for_half_of_the_window() {
    for (window, pieces) in [(192 << 10, 1), (256 << 10, 2), (512 << 10, 4), (1 << 20, 8)] {
        let (mut net, a, b) = grown(window, 16);
        let asked = watch(&mut net);
        net.ok(&a, read(&a, &b));
        let asked = asked.borrow();
        assert_eq!(asked.requests, vec![pieces * READ_PIECE; 16 / pieces as usize], "{window}");
    }
}

#[test]
fn requests_ask_for_no_more_than_the_window_holds() {
    // One that holds no whole number of requests, and two that do.
    for window in [192u32 << 10, 900 << 10, 1 << 20] {
        let (mut net, a, b) = grown(window, 128);
        let asked = watch(&mut net);
        (0..8).for_each(|_| net.post(&a, read(&a, &b)));
        net.wait(a.host, a.scq, 8);
        let most = asked.borrow().most;
        // A window of less than eight pieces is passed by less than one.
        let limit = i64::from(if window < 8 * READ_PIECE { window + READ_PIECE } else { window });
        assert!(most > limit / 2 && most <= limit, "{window}: {most}");
    }
}

#[test]
fn a_request_takes_half_of_what_its_peer_serves() {
    for (serves, pieces) in [(1u8, 1), (2, 1), (4, 2), (8, 4), (16, 8)] {
        // All queue pairs to a peer have one window: another one has opened it.
        let (mut net, _open, _to) = grown(1 << 20, 16);
        let o = Opts { rd_atomic: serves, ..Opts::default() };
        let (a, b) = (net.end(0, &o), net.end(1, &o));
        net.connect(&a, &b, &o);
        net.connect(&b, &a, &o);
        let asked = watch(&mut net);
        net.ok(&a, read(&a, &b));
        let asked = asked.borrow();
        assert_eq!(asked.requests, vec![pieces * READ_PIECE; 16 / pieces as usize], "{serves}");
        assert!(asked.most <= i64::from(serves) * i64::from(READ_PIECE), "{}", asked.most);
    }
}

#[test]
fn what_is_lost_of_a_request_of_several_pieces_is_asked_for_again() {
    for nth in [5usize, 37, 64, 190] {
        let (mut net, a, b) = grown(1 << 20, 16);
        for round in 0..6 {
            let fresh = pattern(100 + round, LEN);
            b.buf.write(0, &fresh);
            let mut seen = 0;
            net.tap = Some(Box::new(move |_, _| {
                seen += 1;
                Fate::drop_if(seen % nth == 0 && seen < 3 * LEN / MTU as usize)
            }));
            net.ok(&a, read(&a, &b));
            assert!(a.buf.read(0, LEN) == fresh, "one packet in {nth} lost");
        }
        // Nothing of it counts any more: the next READ asks as the first did.
        let asked = watch(&mut net);
        read_four(&mut net, &a, &b);
        assert_eq!(asked.borrow().under_way, 0);
    }
}
