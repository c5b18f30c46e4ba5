//! DC: every world in which up to three of the first control packets meet a fault.
//!
//! Two initiators want the only context of a target in turn. Whatever is lost, doubled or late
//! there, each atomic is executed once, and all succeed before any lease is over.

use gdrcore_core::config::Config;
use gdrcore_core::verbs::types::*;

use crate::dc::{another, control_of, dc};
use crate::util::*;

/// Control packets that may meet a fault, and how many of them do.
const PLACES: usize = 9;
const FAULTS: usize = 3;
const FATES: [Fate; 3] = [Fate::Drop, Fate::Twice, Fate::Later];

/// One world. `faults`: place and fate of each.
fn world(faults: &[(usize, Fate)]) {
    let config = Config { max_qp: 8, max_mr: 8, max_dc_context: 1, seed: 7, ..Config::default() };
    let o = Opts { config, bytes: 4096, sq: 4, rq: 4, cqe: 16, timeout: 13, ..dc() };
    let (mut net, a, b) = Net::pair(o);
    let (c, to) = another(&mut net, &b, &o);
    let (mut seen, plan) = (0, faults.to_vec());
    net.tap = Some(Box::new(move |_, packet| {
        if control_of(packet).is_none() {
            return Fate::Deliver;
        }
        seen += 1;
        let fault = plan.iter().find(|(place, _)| place + 1 == seen);
        fault.map_or(Fate::Deliver, |(_, fate)| fate.clone())
    }));
    let add = |net: &Net, e: &End, n: u64, to: DcWr| {
        let wr = Wr::new(wr_opcode::ATOMIC_FETCH_AND_ADD).local(e, 0, 8);
        net.post(e, wr.atomic(&b, 0, n, 0).dc(to));
    };
    let begun = net.now;
    let mine = net.dc;
    for _ in 0..2 {
        add(&net, &a, 1, mine);
        add(&net, &c, 0x100, to);
        for e in [&a, &c] {
            let wc = net.wait(e.host, e.scq, 1)[0];
            let cause = net.lock(e).qp_cause(e.qp).unwrap();
            assert_eq!(wc.status, 0, "{faults:?}: {cause}");
        }
    }
    net.settle();
    assert_eq!(b.buf.read_u64(0), 0x202, "{faults:?}");
    assert!(net.now - begun < 500_000_000, "{faults:?}: by no lease: {} ns", net.now - begun);
}

fn worlds(faults: &mut Vec<(usize, Fate)>, from: usize) -> usize {
    world(faults);
    let mut n = 1;
    if faults.len() == FAULTS {
        return n;
    }
    for place in from..PLACES {
        for fate in FATES {
            faults.push((place, fate));
            n += worlds(faults, place + 1);
            faults.pop();
        }
    }
    n
}

#[test]
fn thorough_no_fate_of_three_control_packets_loses_or_repeats_a_request() {
    assert_eq!(worlds(&mut Vec::new(), 0), 1 + 9 * 3 + 36 * 9 + 84 * 27);
}
