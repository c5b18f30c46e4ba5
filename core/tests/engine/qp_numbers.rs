//! QP numbers: which are dealt out, how long they rest, and that making and ending queue pairs
//! never uses them up.

use gdrcore_core::config::Config;
use gdrcore_core::verbs::types::*;
use gdrcore_core::Error;

use crate::util::*;

/// As many numbers as the smallest configuration has.
const NUMBERS: u32 = 256;
const SECOND: u64 = 1_000_000_000;

fn few(kind: u32) -> Opts {
    let config = Config { max_qp: 64, qpn_count: NUMBERS, ..Opts::default().config };
    Opts { kind, config, bytes: 4096, timeout: 12, retry: 1, ..Opts::default() }
}

/// Makes a QP like an end's, beside it.
fn make(net: &Net, e: &End, kind: u32) -> gdrcore_core::Result<(Handle, u32)> {
    let init = queue_pair(kind, e.pd, [e.scq, e.rcq], queues(4, 1, 0));
    net.lock(e).qp_create(net.now, &init).map(|(h, qpn, _)| (h, qpn))
}

fn end(net: &Net, e: &End, qp: Handle) {
    net.lock(e).qp_destroy(net.now, qp).unwrap();
}

/// Uses up what numbers there are; returns how many.
fn exhaust(net: &Net, e: &End) -> u32 {
    for n in 0..2 * NUMBERS {
        match make(net, e, qp_type::RC) {
            Ok((qp, _)) => end_later(net, e, qp),
            Err(error) => {
                assert_eq!(error, Error::NoMemory);
                return n;
            }
        }
    }
    panic!("numbers are never used up");
}

/// Ends a QP so that its number rests long: it had a peer, and sent.
fn end_later(net: &Net, e: &End, qp: Handle) {
    let mut g = net.lock(e);
    use qp_attr_mask as m;
    let attr = QpAttr {
        qp_state: qp_state::INIT,
        port_num: 1,
        path_mtu: mtu::MTU_1024,
        dest_qp_num: 0x1234,
        timeout: 18,
        retry_cnt: 7,
        rnr_retry: 7,
        max_rd_atomic: 1,
        max_dest_rd_atomic: 1,
        ah: AhAttr {
            dgid: [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 0, 0, 99],
            ..AhAttr::default()
        },
        ..QpAttr::default()
    };
    let mut step = |state, mask| {
        g.qp_modify(net.now, qp, &QpAttr { qp_state: state, ..attr }, m::STATE | mask).unwrap();
    };
    step(qp_state::INIT, m::PKEY_INDEX | m::PORT | m::ACCESS_FLAGS);
    step(
        qp_state::RTR,
        m::AV | m::PATH_MTU | m::DEST_QPN | m::RQ_PSN | m::MAX_DEST_RD_ATOMIC | m::MIN_RNR_TIMER,
    );
    step(qp_state::RTS, m::TIMEOUT | m::RETRY_CNT | m::RNR_RETRY | m::SQ_PSN | m::MAX_QP_RD_ATOMIC);
    drop(g);
    let (wr, mut bad) = (Wr::new(wr_opcode::SEND), std::ptr::null());
    // SAFETY: the request lives through the call and has no list.
    unsafe { net.hosts[e.host].engine.post_send(qp, &wr.raw, &mut bad).unwrap() };
    while net.lock(e).poll_transmit(net.now, &mut [0; 8192]).is_some() {}
    end(net, e, qp);
}

#[test]
fn a_hundred_thousand_that_never_had_a_peer() {
    let mut net = Net::new(1, &few(qp_type::RC));
    let e = net.end(0, &few(qp_type::RC));
    for n in 0..100_000u32 {
        // The clock stands still: nothing rests, and nothing needs to.
        let kind = [qp_type::RC, qp_type::UC, qp_type::UD][n as usize % 3];
        let (qp, _) = make(&net, &e, kind).unwrap();
        if n % 2 == 0 {
            let own =
                if kind == qp_type::UD { qp_attr_mask::QKEY } else { qp_attr_mask::ACCESS_FLAGS };
            let attr = QpAttr { qp_state: qp_state::INIT, port_num: 1, ..QpAttr::default() };
            let mask = qp_attr_mask::STATE | qp_attr_mask::PKEY_INDEX | qp_attr_mask::PORT | own;
            net.lock(&e).qp_modify(net.now, qp, &attr, mask).unwrap();
        }
        end(&net, &e, qp);
    }
    assert_eq!(net.lock(&e).counters().qpn_reused_early, 0);
}

#[test]
fn pairs_of_one_engine_never_wait_for_numbers() {
    let o = Opts { way: Way::Loopback, ..few(qp_type::RC) };
    let mut net = Net::new(1, &o);
    let (mut a, mut b) = (net.end(0, &o), net.end(0, &o));
    // Nothing between them is ever under way, so nothing rests.
    for _ in 0..10 * NUMBERS {
        net.connect(&a, &b, &o);
        net.connect(&b, &a, &o);
        net.ok(&a, Wr::new(wr_opcode::RDMA_WRITE).local(&a, 0, 64).remote(&b, 0));
        for e in [&mut a, &mut b] {
            end(&net, e, e.qp);
            (e.qp, e.qpn) = make(&net, e, qp_type::RC).unwrap();
        }
    }
    assert_eq!(net.lock(&a).counters().qpn_reused_early, 0);
}

#[test]
fn connected_pairs_without_end_take_numbers_early_rather_than_none() {
    let o = few(qp_type::RC);
    let mut net = Net::new(2, &o);
    for _ in 0..20 * NUMBERS {
        let (a, b) = (net.end(0, &o), net.end(1, &o));
        net.connect(&a, &b, &o);
        net.connect(&b, &a, &o);
        net.ok(&a, Wr::new(wr_opcode::RDMA_WRITE).local(&a, 0, 64).remote(&b, 0));
        for e in [a, b] {
            let mut g = net.lock(&e);
            g.qp_destroy(net.now, e.qp).unwrap();
            g.mr_dereg(e.mr_handle).unwrap();
            g.cq_destroy(e.scq).unwrap();
            g.cq_destroy(e.rcq).unwrap();
            g.pd_dealloc(e.pd).unwrap();
        }
        // A thousand a second: a number is needed again after 0.26 s, and should rest for 0.13 s
        // and as much more as a QP lives.
        net.now += 1_000_000;
    }
    assert_eq!(net.hosts[0].lock().counters().qpn_reused_early, 0);
    // With timeouts of seconds the rests are minutes. A number that has rested for a tenth of a
    // second is used all the same.
    let e = net.end(0, &o);
    let n = exhaust(&net, &e);
    assert!(n >= NUMBERS - 1 - 130, "{n}");
    assert_eq!(
        make(&net, &e, qp_type::RC).err(),
        Some(Error::NoMemory),
        "all of them were given back just now"
    );
    net.now += SECOND / 10;
    assert!(make(&net, &e, qp_type::RC).is_ok());
    assert!(net.hosts[0].lock().counters().qpn_reused_early > 0);
}

#[test]
fn a_number_rests_as_long_as_its_queue_pairs_timeouts_say() {
    // What became of a QP, and for how long its number rests.
    let talks = |net: &mut Net, a: &End, b: &End| {
        net.recv(b, 1, &[(0, 100)]);
        net.ok(a, Wr::new(wr_opcode::SEND).local(a, 0, 8));
    };
    let nothing = |_: &mut Net, _: &End, _: &End| {};
    type Life<'l> = &'l dyn Fn(&mut Net, &End, &End);
    let timeout = |code: u8| 4096u64 << code;
    let cases: [(&str, u32, u8, u8, Life<'_>, u64); 5] = [
        ("connected, and nobody has said anything", qp_type::RC, 18, 7, &nothing, SECOND / 10),
        ("RC that talked", qp_type::RC, 14, 7, &talks, 16 * timeout(14)),
        ("RC that talked and tries once more", qp_type::RC, 14, 1, &talks, 8 * timeout(14)),
        ("RC with short timeouts", qp_type::RC, 8, 1, &talks, SECOND / 10),
        ("UC", qp_type::UC, 14, 7, &talks, SECOND),
    ];
    for (what, kind, code, retry, life, rest) in cases {
        for over in [false, true] {
            let o = Opts { timeout: code, retry, ..few(kind) };
            let (mut net, a, b) = Net::pair(o);
            life(&mut net, &a, &b);
            end(&net, &a, a.qp);
            let released = net.now;
            // All others rest as well, for longer, and have begun later.
            net.now += 5_000_000;
            assert!(exhaust(&net, &a) > 0);
            net.now = released + if over { rest + rest / 4 + 2_000_000 } else { rest - 2_000_000 };
            let got = make(&net, &a, qp_type::RC).map(|(_, qpn)| qpn);
            // Before its time it comes only where there is no other, never within a tenth of a
            // second, and is counted.
            let early = u64::from(!over && rest > SECOND / 10);
            let none = !over && rest == SECOND / 10;
            assert_eq!(
                got,
                if none { Err(Error::NoMemory) } else { Ok(a.qpn) },
                "{what}, over: {over}"
            );
            assert_eq!(net.lock(&a).counters().qpn_reused_early, early, "{what}, over: {over}");
        }
    }
}

#[test]
fn numbers_of_two_engines_with_one_block_differ() {
    let order = |seed| {
        let config = Config { seed, qpn_base: 1 << 14, ..Opts::default().config };
        let o = Opts { config, ..Opts::default() };
        let mut net = Net::new(1, &o);
        let e = net.end(0, &o);
        let mut numbers = vec![e.qpn];
        numbers.extend((0..20).map(|_| make(&net, &e, qp_type::RC).unwrap().1));
        assert!(numbers.iter().all(|n| n >> 14 == 1), "of its block");
        numbers
    };
    assert_eq!(order(1), order(1), "the seed says which");
    assert_ne!(order(1), order(2));
    let (first, second) = (order(3), order(4));
    assert!(
        first.iter().all(|n| !second.contains(n)),
        "21 of 16,384 meet twice in one of forty cases"
    );
}
