use super::*;
use crate::wire::ip::gid_of_v4;
use std::format;
use std::string::{String, ToString};
use std::vec::Vec;

const PEER: [u8; 4] = [10, 0, 0, 2];

/// Calls that can fail, for the rules here.
fn calls(name: &str) -> core::result::Result<(), &'static str> {
    let known = ["ibv_reg_mr", "ibv_create_qp", "rdma_connect"];
    if known.contains(&name) {
        Ok(())
    } else {
        Err("no call of libibverbs")
    }
}

fn parse(text: &str) -> Result<Faults, Refused<'_>> {
    Faults::parse(text, calls)
}

fn faults(text: &str) -> Faults {
    parse(text).unwrap_or_else(|e| panic!("{text}: {e}"))
}

/// A request that leaves for the first time.
fn request(opcode: Opcode) -> Packet {
    Packet {
        direction: Direction::Out,
        peer: gid_of_v4(PEER),
        opcode,
        is_mad: false,
        cm: None,
        passage: Passage::First,
        takes_receive: false,
        has_srq: false,
    }
}

/// The numbers of the packets that a rule hits, of 1000 like `packet`.
fn hits(rules: &str, seed: u64, packet: &Packet, flow: &mut QpCounts) -> Vec<u64> {
    let (faults, mut numbers) = (faults(rules), Vec::new());
    for _ in 0..1000 {
        faults.decide(seed, packet, flow, |hit| numbers.push(hit.number));
    }
    numbers
}

fn numbers(rules: &str, seed: u64) -> Vec<u64> {
    hits(rules, seed, &request(Opcode::RC_SEND_ONLY), &mut QpCounts::new(1))
}

#[test]
fn a_seed_decides_and_another_one_decides_otherwise() {
    let rule = "loss rate 1%";
    assert_eq!(numbers(rule, 7), numbers(rule, 7));
    assert_ne!(numbers(rule, 7), numbers(rule, 8));
    let many: usize = (0..20).map(|seed| numbers(rule, seed).len()).sum();
    assert!((120..280).contains(&many), "{many} of 20000 at 1 %");
    assert_eq!(numbers("loss rate 100%", 1).len(), 1000);
    // Each queue pair, connection, rule and direction has places of its own.
    let send = request(Opcode::RC_SEND_ONLY);
    let mut second = QpCounts::new(1);
    second.begin();
    let others = [
        hits(rule, 7, &send, &mut QpCounts::new(2)),
        hits(rule, 7, &send, &mut second),
        hits("ecn; loss rate 1%", 7, &send, &mut QpCounts::new(1)),
        hits(
            "loss in rate 1%",
            7,
            &Packet { direction: Direction::In, ..send },
            &mut QpCounts::new(1),
        ),
    ];
    others.iter().for_each(|other| assert_ne!(*other, numbers(rule, 7)));
}

#[test]
fn rules_pick_by_number_and_window() {
    for (rule, wanted) in [
        ("loss nth 3", &[3][..]),
        ("loss every 300", &[300, 600, 900]),
        ("loss every 300 from 400", &[600, 900]),
        ("loss every 300 to 600", &[300, 600]),
        ("loss from 998", &[998, 999, 1000]),
        ("loss to 2", &[1, 2]),
        ("loss nth 3 from 4", &[]),
    ] {
        assert_eq!(numbers(rule, 1), wanted, "{rule}");
    }
}

#[test]
fn filters_choose_packets() {
    let send = request(Opcode::RC_SEND_ONLY);
    let is_hit = |rule: &str, packet: &Packet| {
        faults(rule).decide(1, packet, &mut QpCounts::new(3), |_| {}).loss
    };
    for (rule, hit) in [
        ("loss", true),
        ("loss out", true),
        ("loss in", false),
        ("loss peer 10.0.0.2", true),
        ("loss peer 10.0.0.3", false),
        ("loss peer fd00::1", false),
        ("loss type RC", true),
        ("loss type UD", false),
        ("loss type GSI", false),
        ("loss opcode SEND_ONLY", true),
        ("loss opcode SEND_FIRST", false),
        ("loss qp 3", true),
        ("loss qp 2", false),
        ("loss message", true),
    ] {
        assert_eq!(is_hit(rule, &send), hit, "{rule}");
    }
    for (opcode, service) in [
        (Opcode::UC_SEND_ONLY, "UC"),
        (Opcode::UD_SEND_ONLY, "UD"),
        (Opcode::RC_SEND_ONLY.of_xrc(), "XRC"),
        (Opcode::RC_SEND_ONLY.of_dc(), "DC"),
    ] {
        let packet = request(opcode);
        let rule = format!("loss type {service} opcode SEND_ONLY");
        assert!(is_hit(&rule, &packet) && !is_hit("loss type RC", &packet), "{rule}");
    }
    assert!(!is_hit("loss message", &request(Opcode::RC_WRITE_MIDDLE)));
    let v6 = "fd00::1".parse::<Ipv6Addr>().unwrap().octets();
    assert!(is_hit("loss peer fd00::1", &Packet { peer: v6, ..send }));
}

#[test]
fn packets_whose_number_depends_on_time_are_hit_by_their_names_alone() {
    let again = Packet { passage: Passage::Again, ..request(Opcode::RC_SEND_ONLY) };
    assert!(hits("loss", 1, &again, &mut QpCounts::new(1)).is_empty());
    let ack = Packet { passage: Passage::Control, ..request(Opcode::RC_ACK) };
    assert!(hits("loss", 1, &ack, &mut QpCounts::new(1)).is_empty());
    assert_eq!(hits("loss opcode ACK nth 5", 1, &ack, &mut QpCounts::new(1)), [5]);
    let mad = Packet { is_mad: true, ..request(Opcode::UD_SEND_ONLY) };
    let mad = Packet { passage: Passage::Control, ..mad };
    assert!(hits("loss type UD", 1, &mad, &mut QpCounts::new(0)).is_empty());
    assert_eq!(hits("loss type GSI to 2", 1, &mad, &mut QpCounts::new(0)), [1, 2]);
    // Requests and answers are counted apart, since they come in no fixed order.
    let rules = faults("loss nth 2");
    let (mut flow, mut told) = (QpCounts::new(1), Vec::new());
    for opcode in [
        Opcode::RC_SEND_ONLY,
        Opcode::RC_READ_RESPONSE_ONLY,
        Opcode::RC_READ_RESPONSE_ONLY,
        Opcode::RC_SEND_ONLY,
    ] {
        rules.decide(1, &request(opcode), &mut flow, |hit| told.push(hit.opcode));
    }
    assert_eq!(told, [Opcode::RC_READ_RESPONSE_ONLY, Opcode::RC_SEND_ONLY]);
}

#[test]
fn a_partition_takes_all_packets_of_its_direction_and_is_told_once() {
    let rules = faults("partition from 3 to 6");
    let (mut flow, mut told) = (QpCounts::new(1), Vec::new());
    let send = request(Opcode::RC_SEND_ONLY);
    let mut lost = |packet: &Packet| rules.decide(1, packet, &mut flow, |h| told.push(*h)).loss;
    let ack = Packet { passage: Passage::Control, ..request(Opcode::RC_ACK) };
    let again = Packet { passage: Passage::Again, ..send };
    let all = [&send, &ack, &send, &again, &send, &ack, &again, &again, &again, &send];
    let fates: Vec<bool> = all.iter().map(|p| lost(p)).collect();
    let (t, f) = (true, false);
    assert_eq!(fates, [f, f, f, f, t, t, t, t, f, f]);
    assert!(!lost(&Packet { direction: Direction::In, ..send }));
    assert_eq!(told.len(), 1);
    assert_eq!(
        told[0].to_string(),
        "partition out qp 1 packet 3 RC_SEND_ONLY peer 10.0.0.2 rule 1"
    );
    // A rule that names what depends on time begins with its own packets.
    let mut flow = QpCounts::new(1);
    let named = faults("partition opcode ACK from 2");
    let fates = [&ack, &send, &ack, &ack].map(|p| named.decide(1, p, &mut flow, |_| {}).loss);
    assert_eq!(fates, [f, f, t, t]);
    // From the start it needs no packet that is counted.
    let mut flow = QpCounts::new(1);
    assert!(faults("partition").decide(1, &ack, &mut flow, |_| {}).loss);
}

#[test]
fn each_action_has_its_verdict() {
    let verdict =
        |rule: &str, packet: &Packet| faults(rule).decide(1, packet, &mut QpCounts::new(1), |_| {});
    let out = request(Opcode::RC_SEND_ONLY);
    let into = Packet { direction: Direction::In, ..out };
    let none = Verdict::default();
    assert_eq!(verdict("duplicate", &out), Verdict { duplicate: true, ..none });
    assert_eq!(verdict("reorder 3", &out), Verdict { reorder: Some(3), ..none });
    assert_eq!(verdict("delay 5us", &out), Verdict { delay: 5_000, ..none });
    assert_eq!(verdict("slow 2ms", &out), Verdict { slow: 2_000_000, ..none });
    assert_eq!(verdict("ecn", &into), Verdict { ecn: true, ..none });
    assert_eq!(verdict("rnr", &into), none, "it takes no receive request, or is not in order");
    let takes = Packet { takes_receive: true, passage: Passage::Again, ..into };
    assert_eq!(verdict("rnr", &takes), Verdict { rnr: true, ..none });
    let data = verdict("scatter", &into).scatter;
    assert!(data.is_some() && data == verdict("scatter", &into).scatter);
    let again = Packet { passage: Passage::Again, ..into };
    let read = Packet { opcode: Opcode::RC_READ_REQUEST, ..into };
    for opcode in [Opcode::RC_WRITE_ONLY, Opcode::RC_READ_RESPONSE_ONLY, Opcode::RC_ATOMIC_ACK] {
        assert!(verdict("scatter", &Packet { opcode, ..into }).scatter.is_some(), "{opcode:?}");
    }
    for without in [&out, &again, &read] {
        assert_eq!(verdict("scatter", without), none, "{without:?}");
    }
    assert!(verdict("lag", &read).lag.is_some() && verdict("lag", &into) == none);
    let shared = Packet { has_srq: true, ..takes };
    assert!(verdict("swap", &shared).swap.is_some() && verdict("swap", &takes) == none);
    let datagram = Packet { opcode: Opcode::UD_SEND_ONLY, has_srq: true, ..into };
    assert!(verdict("swap", &datagram).swap.is_some());
    assert_eq!(verdict("swap", &Packet { has_srq: true, ..into }), none, "it is not in order");
    let bits = verdict("corrupt", &out).corrupt;
    assert!(bits.is_some() && bits == verdict("corrupt", &out).corrupt);
    assert_eq!(verdict("delay 1s; loss; delay 2s", &out).delay, 2_000_000_000);
    assert!(verdict("delay 1s; loss; delay 2s", &out).loss);
}

#[test]
fn a_packet_passes_for_the_first_time_once() {
    let mut flow = QpCounts::new(1);
    let (out, base) = (Direction::Out, Some(Psn::new(0xff_fffe)));
    let mut first = |psn: u32, span| flow.note_first(out, false, Psn::new(psn), base, span);
    assert!(first(0xff_fffe, 1) && !first(0xff_fffe, 1), "it came again");
    // A READ takes the PSNs of its answer; a part of it that is asked for again is not new.
    assert!(first(0xff_ffff, 4) && !first(1, 2) && first(3, 1));
    assert!(first(9, 1) && !first(8, 1), "what was lost before it was seen comes again");
    // Each direction counts by itself, as do requests and answers.
    assert!(flow.note_first(out, true, Psn::new(3), base, 1));
    assert!(flow.note_first(Direction::In, false, Psn::new(3), None, 1));
    let mut flow = QpCounts::new(1);
    assert!(!flow.note_first(out, false, Psn::new(0xff_fffd), base, 1), "before the first PSN");
    // The receiver refuses a message once.
    assert!(!flow.note_first_in_order(Psn::new(6), Psn::new(5)), "a packet before it is missing");
    assert!(flow.note_first_in_order(Psn::new(5), Psn::new(5)));
    assert!(!flow.note_first_in_order(Psn::new(5), Psn::new(5)), "it comes again");
    flow.begin();
    assert!(flow.note_first_in_order(Psn::new(5), Psn::new(5)));
}

#[test]
fn calls_fail_by_name_and_index() {
    let rules =
        faults("call ibv_reg_mr nth 3 errno ENOMEM; call ibv_create_qp every 2 errno EAGAIN");
    fn errno(rules: &Faults, seed: u64, name: &str, number: u64) -> Option<i32> {
        rules.call(seed, |of| of == name, |_| number).map(|hit| hit.errno)
    }
    let of = |name, number| errno(&rules, 1, name, number);
    assert_eq!((of("ibv_reg_mr", 2), of("ibv_reg_mr", 3)), (None, Some(12)));
    assert_eq!((of("ibv_create_qp", 4), of("ibv_create_qp", 5)), (Some(11), None));
    assert_eq!(of("ibv_reg", 3), None);
    let hit = rules.call(1, |of| of == "ibv_create_qp", |_| 2).expect("a fault");
    assert_eq!(hit.to_string(), "call ibv_create_qp nth 2 errno EAGAIN rule 2");
    // Each rule counts for itself, also where another one hits.
    let both = faults("call ibv_reg_mr errno EIO nth 1; call ibv_reg_mr errno ENOMEM nth 2");
    let mut counts = [0; 2];
    let mut next = || {
        let count = |i: usize| {
            counts[i] += 1;
            counts[i]
        };
        both.call(1, |of| of == "ibv_reg_mr", count).map(|hit| (hit.rule, hit.errno))
    };
    assert_eq!([next(), next(), next()], [Some((1, 5)), Some((2, 12)), None]);
    let rate = faults("call rdma_connect errno ECONNREFUSED rate 10% from 11");
    let hit = |seed: u64| {
        let is_hit = |&i: &u64| errno(&rate, seed, "rdma_connect", i) == Some(111);
        (1..=1000).filter(is_hit).collect::<Vec<_>>()
    };
    assert_eq!(hit(1), hit(1));
    assert_ne!(hit(1), hit(2));
    assert!((50..150).contains(&hit(1).len()) && hit(1).iter().all(|&i| i > 10));
    let limits = faults("limit max_qp=9; limit max_mr = 0; limit max_qp = 4; limit max_qp=5");
    let wanted = LoweredLimits { max_qp: Some(4), max_mr: Some(0), ..LoweredLimits::NONE };
    assert_eq!(limits.limits(), wanted);
    assert_eq!(rules.limits(), LoweredLimits::NONE);
    let full = LoweredLimits { cq_overrun: true, ..LoweredLimits::NONE };
    assert_eq!(faults("cq overrun").limits(), full);
    assert!(!limits.hits_packets() && rules.hits_calls() && !limits.hits_calls());
    for rule in ["loss", "event PORT_ERR at 1s", "completion GENERAL_ERR"] {
        assert!(faults(rule).hits_packets(), "{rule}");
    }
}

#[test]
fn a_completion_is_of_a_request_or_of_what_a_message_takes() {
    let hit = |rule: &str, packet: &Packet| {
        faults(rule).decide(1, packet, &mut QpCounts::new(1), |_| {}).completion.is_some()
    };
    let first = request(Opcode::RC_WRITE_FIRST);
    for (packet, wanted) in [
        (first, true),
        (request(Opcode::RC_READ_REQUEST), true),
        (request(Opcode::RC_WRITE_MIDDLE), false),
        (request(Opcode::RC_READ_RESPONSE_ONLY), false),
        (request(Opcode::UD_SEND_ONLY), false),
        (Packet { passage: Passage::Again, ..first }, false),
    ] {
        assert_eq!(hit("completion LOC_PROT_ERR", &packet), wanted, "{packet:?}");
    }
    // One that a WRITE with immediate data takes at its end.
    let last = Opcode::RC_WRITE_LAST_IMM;
    let arrives = Packet { direction: Direction::In, takes_receive: true, ..request(last) };
    assert!(hit("completion LOC_LEN_ERR in", &arrives));
    assert!(!hit("completion LOC_LEN_ERR in", &Packet { takes_receive: false, ..arrives }));
    assert!(!hit("completion LOC_LEN_ERR", &arrives));
}

#[test]
fn messages_of_connection_managers_are_named() {
    let mad = Packet { is_mad: true, passage: Passage::Control, ..request(Opcode::UD_SEND_ONLY) };
    let of = |cm| Packet { cm: Some(cm), ..mad };
    let verdict =
        |rule: &str, packet: &Packet| faults(rule).decide(1, packet, &mut QpCounts::new(0), |_| {});
    use crate::cm::types::mad_attribute::{REP, REQ};
    assert!(verdict("loss cm REP", &of(REP)).loss && !verdict("loss cm REP", &of(REQ)).loss);
    assert!(!verdict("loss cm REP", &mad).loss);
    assert_eq!(verdict("reject CONSUMER", &of(REQ)).reject, Some(28));
    assert_eq!(verdict("reject 10", &of(REQ)).reject, Some(10));
    assert_eq!(verdict("reject 10", &of(REP)).reject, None);
    assert!(verdict("unreachable", &of(REQ)).unreachable);
    assert!(!verdict("unreachable", &of(REP)).unreachable);
    let cut = |rule, packet: &Packet| verdict(rule, packet).cut;
    assert_eq!([cut("cut 9", &of(REQ)), cut("cut 9", &of(REP))], [Some(9); 2]);
    assert_eq!(cut("cut 9 cm REQ", &of(REP)), None);
}

#[test]
fn an_event_comes_behind_the_message_that_its_rule_names() {
    let rules =
        faults("event CQ_ERR after 2; event QP_FATAL in qp 3 after 1; event PORT_ERR at 2s");
    let mut flows = [QpCounts::new(1), QpCounts::new(3)];
    let mut raised = |packet: &Packet, flow: usize| {
        let mut all = Vec::new();
        rules.count_for_events(packet, &mut flows[flow], |i| all.push(i));
        all
    };
    let send = request(Opcode::RC_SEND_ONLY);
    assert!(raised(&send, 0).is_empty() && raised(&send, 1).is_empty());
    assert!(raised(&Packet { passage: Passage::Again, ..send }, 0).is_empty());
    assert!(raised(&request(Opcode::RC_SEND_FIRST), 0).is_empty());
    assert!(raised(&request(Opcode::RC_READ_RESPONSE_ONLY), 0).is_empty());
    assert_eq!(raised(&send, 0), [0]);
    assert!(raised(&send, 0).is_empty(), "once");
    let arrives = Packet { direction: Direction::In, ..send };
    assert_eq!((raised(&arrives, 0), raised(&arrives, 1)), (Vec::new(), std::vec![1]));
    let words = |i| rules.event(i).map(|hit| hit.to_string()).unwrap_or_default();
    assert_eq!(words(0), "event CQ_ERR out qp 1 after 2 rule 1");
    assert_eq!(words(1), "event QP_FATAL in qp 3 after 1 rule 2");
    assert_eq!(words(2), "event PORT_ERR out qp 1 at 2s rule 3");
    assert_eq!(When::At(1_500_000).to_string(), "at 1500us");
}

#[test]
fn a_poll_ends_with_a_completion_that_a_rule_hits() {
    let few = |rules: &str, polled, n| faults(rules).few(7, 1, polled, n);
    assert_eq!([few("few every 3", 0, 16), few("few every 3", 2, 16)], [3, 1]);
    assert_eq!(few("few every 3", 0, 2), 2, "no more than was asked for");
    assert_eq!([few("few nth 5", 5, 16), few("few from 3", 0, 16)], [16, 3]);
    assert_eq!(few("loss", 0, 16), 16);
    assert_eq!(few("few nth 2000", 0, 1 << 40), 1 << 40, "a long poll is looked at in part");
    // By the CQ and the number of the completion alone.
    let rules = faults("few rate 50%");
    let ends = |cq| {
        let (mut at, mut ends) = (0, Vec::new());
        while at < 200 {
            at += rules.few(7, cq, at, 16);
            ends.push(at);
        }
        ends
    };
    assert_eq!(ends(1), ends(1));
    assert_ne!(ends(1), ends(2));
    // Polls of other sizes end at the same completions, or earlier.
    let short = (0..200).filter(|at| rules.few(7, 1, *at, 2) == 1).count();
    assert!((60..140).contains(&short), "{short}");
    assert!(rules.shortens_polls() && !rules.hits_packets() && !rules.hits_calls());
}

#[test]
fn weak_stands_for_its_rules() {
    let (one, all) = (faults("ecn; weak"), faults(&format!("ecn; {WEAK}")));
    let what = |f: &Faults| f.rules().iter().map(|r| (r.what.clone(), r.pick)).collect::<Vec<_>>();
    assert_eq!(what(&one), what(&all));
    assert!(one.rules()[1..].iter().all(|rule| rule.at == (1, 6)));
    assert!(one.weakens_memory() && one.shortens_polls() && one.hits_packets());
    assert!(one.sets_keys() && !faults("few").sets_keys());
    assert!(faults("lag").weakens_memory() && !faults("swap").weakens_memory());
    assert_eq!(parse(&"weak;".repeat(5)).unwrap_err().column, 16);
}

#[test]
fn wrong_words_are_named_with_their_place() {
    for (text, place, word, part) in [
        ("", (1, 1), "", "no rule"),
        ("  # only a comment", (1, 19), "", "no rule"),
        ("lose", (1, 1), "lose", "they begin with"),
        ("loss; ;\n\n  los nth 1", (3, 3), "los", "they begin with"),
        ("loss nth", (1, 9), "", "a number"),
        ("loss nth;", (1, 9), "", "a number"),
        ("loss nth 0", (1, 10), "0", "from 1 on"),
        ("loss nth -1", (1, 10), "-1", "a number"),
        ("loss nth +1", (1, 10), "+1", "a number"),
        ("loss nth 99999999999999999999", (1, 10), "99999999999999999999", "a number"),
        ("loss nth 1 every 2", (1, 12), "every", "twice"),
        ("loss in out", (1, 9), "out", "twice"),
        ("loss rate 1", (1, 11), "1", "a rate"),
        ("loss rate 0%", (1, 11), "0%", "a rate"),
        ("loss rate 101%", (1, 11), "101%", "a rate"),
        ("loss rate 1.%", (1, 11), "1.%", "a rate"),
        ("loss rate .5%", (1, 11), ".5%", "a rate"),
        ("loss rate 0.0000001%", (1, 11), "0.0000001%", "a rate"),
        ("loss from 5 to 4", (1, 16), "4", "before"),
        ("partition to 4 from 5", (1, 21), "5", "behind"),
        ("loss peer here", (1, 11), "here", "an IPv4"),
        ("loss type RDMA", (1, 11), "RDMA", "types"),
        ("loss opcode SEND", (1, 13), "SEND", "no opcode"),
        ("loss opcode RC_SEND_ONLY", (1, 13), "RC_SEND_ONLY", "no opcode"),
        ("loss often", (1, 6), "often", "no condition"),
        ("ä loss", (1, 1), "ä", "they begin with"),
        ("loss ä x", (1, 6), "ä", "no condition"),
        ("delay", (1, 6), "", "a time"),
        ("delay 5", (1, 7), "5", "a time"),
        ("delay 0us", (1, 7), "0us", "a time"),
        ("delay 61s", (1, 7), "61s", "a time"),
        ("delay 99999999999999999999s", (1, 7), "99999999999999999999s", "a time"),
        ("reorder 65", (1, 9), "65", "64"),
        ("ecn out", (1, 1), "ecn", "arrive"),
        ("rnr out", (1, 1), "rnr", "arrive"),
        ("scatter out", (1, 1), "scatter", "arrive"),
        ("lag out", (1, 1), "lag", "arrive"),
        ("swap out", (1, 1), "swap", "arrive"),
        ("few in", (1, 5), "in", "no condition"),
        ("few rate", (1, 9), "", "a rate"),
        ("weak rate 1%", (1, 6), "rate", "nothing"),
        ("partition nth 3", (1, 1), "partition", "all packets"),
        ("slow 1us rate 1%", (1, 1), "slow", "all packets"),
        ("call", (1, 5), "", "name of a call"),
        ("call reg_mr errno EIO", (1, 6), "reg_mr", "no call of libibverbs"),
        ("call ibv_reg_mr", (1, 16), "", "errno"),
        ("call ibv_reg_mr errno ESRCH2", (1, 23), "ESRCH2", "no errno"),
        ("call ibv_Reg errno EIO", (1, 6), "ibv_Reg", "name of a call"),
        ("call ibv_reg_mr errno EIO peer 10.0.0.1", (1, 27), "peer", "no condition"),
        ("limit max_qp", (1, 13), "", "'='"),
        ("limit max_dogs=4", (1, 7), "max_dogs", "no limit"),
        ("limit max_qp=x", (1, 14), "x", "a number"),
        ("limit max_qp=4 nth 2", (1, 16), "nth", "nothing"),
        ("event PORT_ERR 100", (1, 16), "100", "no condition"),
        ("event PORT_ERR qp 1", (1, 20), "", "'after' or 'at'"),
        ("event PORT_ERR after 1 at 1s", (1, 24), "at", "twice"),
        ("event PORT_ERR after 0", (1, 22), "0", "from 1 on"),
        ("event PORT_ERR at 1", (1, 19), "1", "a time"),
        ("event PORT_ERR in out after 1", (1, 19), "out", "twice"),
        ("event port_down after 1", (1, 7), "port_down", "no event"),
        ("cq", (1, 3), "", "'overrun'"),
        ("cq overrun now", (1, 12), "now", "nothing"),
        ("completion SUCCESS", (1, 12), "SUCCESS", "no status"),
        ("completion in", (1, 12), "in", "no status"),
        ("reject 0", (1, 8), "0", "no reason"),
        ("reject 65536", (1, 8), "65536", "no reason"),
        ("reject REFUSED", (1, 8), "REFUSED", "no reason"),
        ("reject CONSUMER cm REP", (1, 1), "reject", "REQ alone"),
        ("reject CONSUMER in", (1, 1), "reject", "leave"),
        ("unreachable cm DREQ", (1, 1), "unreachable", "REQ alone"),
        ("cut 256", (1, 5), "256", "private data"),
        ("cut 9 in", (1, 1), "cut", "leave"),
        ("loss cm HELLO", (1, 9), "HELLO", "no message"),
        ("loss cm REQ cm REP", (1, 13), "cm", "twice"),
    ] {
        let refused = parse(text).expect_err(text);
        assert_eq!(((refused.line, refused.column), refused.word), (place, word), "{text}");
        let said = refused.to_string();
        assert!(said.contains(part), "{text}: {said}");
        assert!(said.starts_with(&format!("line {}, column {}: ", place.0, place.1)), "{said}");
    }
    let long = format!("call ibv_{} errno EIO", "x".repeat(NAME_MAX));
    assert_eq!(parse(&long).unwrap_err().column, 6);
    let many = "loss;".repeat(RULES_MAX);
    assert_eq!(faults(&many).rules().len(), RULES_MAX);
    assert_eq!(parse(&format!("{many} ecn")).unwrap_err().word, "ecn");
}

#[test]
fn rates_and_times_are_read_exactly() {
    let pick = |text: &str| faults(text).rules()[0].pick;
    assert_eq!(pick("loss rate 1%"), Pick::Rate(1_000_000));
    assert_eq!(pick("loss rate 0.05%"), Pick::Rate(50_000));
    assert_eq!(pick("loss rate 0.000001%"), Pick::Rate(1));
    assert_eq!(pick("loss rate 100.0%"), Pick::Rate(PARTS));
    let action = |text: &str| match faults(text).rules()[0].what {
        What::Packet(action, _) => action,
        _ => panic!("{text}"),
    };
    for (text, ns) in [("7ns", 7), ("7us", 7_000), ("7ms", 7_000_000), ("60s", 60_000_000_000)] {
        assert_eq!(action(&format!("delay {text}")), Action::Delay(ns));
    }
}

/// Whatever the text is, it is read or refused, and a refusal names a word of it.
#[test]
fn any_text_is_read_or_refused() {
    let words = [
        "loss",
        "delay",
        "5us",
        "nth",
        "3",
        "rate",
        "1%",
        ";",
        "\n",
        "#",
        "=",
        "in",
        "out",
        "peer",
        "::1",
        "type",
        "UD",
        "call",
        "ibv_x",
        "errno",
        "EIO",
        "limit",
        "max_qp",
        "event",
        "QP_FATAL",
        "after",
        "at",
        "cm",
        "REQ",
        "cut",
        "completion",
        "ü",
        "\u{2028}",
        "\0",
        " ",
        "%",
        "9999999999999999999999",
        "to",
        "from",
        "reorder",
        "weak",
        "few",
        "swap",
    ];
    let mut random = Random::new(3, 1);
    for _ in 0..20_000 {
        let mut text = String::new();
        for _ in 0..random.draw() % 12 {
            text.push_str(words[random.draw() as usize % words.len()]);
            if random.draw() % 4 != 0 {
                text.push(' ');
            }
        }
        if let Err(refused) = parse(&text) {
            assert!(text.contains(refused.word), "{text:?}");
            let line = text.split('\n').nth(refused.line as usize - 1).expect("a line of it");
            assert!(refused.column as usize <= line.chars().count() + 1, "{text:?}: {refused}");
        }
    }
}
