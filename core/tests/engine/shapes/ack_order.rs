//! The order in which a program sees its request complete and the reply to it arrive.

use gdrcore_core::verbs::types::*;

use crate::util::*;

/// A reply and the ACK of what it replies to travel together, the ACK behind. It is taken first: a
/// program with one CQ for both queues sees its own request complete before the reply, as on a NIC.
#[test]
fn a_request_completes_before_the_reply_to_it() {
    for way in [Way::Link, Way::Wire] {
        // With the ACK among the first words of the record and behind them, and a WRITE.
        for (opcode, len) in [
            (wr_opcode::SEND, 4),
            (wr_opcode::SEND_WITH_IMM, 16),
            (wr_opcode::SEND, 200),
            (wr_opcode::SEND, 1000),
            (wr_opcode::RDMA_WRITE_WITH_IMM, 8),
            (wr_opcode::RDMA_WRITE_WITH_IMM, 500),
        ] {
            let (mut net, a, b) = Net::pair(Opts { way, one_cq: true, ..Opts::default() });
            for turn in 0..20 {
                for (from, to) in [(&a, &b), (&b, &a)] {
                    net.recv(to, 7, &[(0, 2048)]);
                    let wr = Wr::new(opcode).id(8).flags(send_flags::SIGNALED).local(from, 0, len);
                    net.post(from, wr.key(to.mr.iova, to.mr.rkey));
                    net.exchange();
                    let seen: Vec<u64> =
                        net.poll(to.host, to.scq).iter().map(|wc| wc.wr_id).collect();
                    // Of the very first message there is no request before it.
                    let first = turn == 0 && from.host == a.host;
                    assert_eq!(
                        seen,
                        if first { vec![7] } else { vec![8, 7] },
                        "{way:?} {opcode} {len} {turn}"
                    );
                }
            }
        }
    }
}

/// The ACK beside a reply ends two requests, which no single step does. It is taken first all the
/// same.
#[test]
fn two_requests_complete_before_the_reply_to_them() {
    for way in [Way::Link, Way::Wire] {
        for (opcode, len) in [
            (wr_opcode::SEND, 4),
            (wr_opcode::SEND_WITH_IMM, 200),
            (wr_opcode::RDMA_WRITE_WITH_IMM, 8),
        ] {
            let (mut net, a, b) = Net::pair(Opts { way, one_cq: true, ..Opts::default() });
            // From now on the ACK of a message waits for the reply.
            for (from, to) in [(&a, &b), (&b, &a)] {
                net.recv(to, 0, &[(0, 64)]);
                net.post(from, Wr::new(wr_opcode::SEND).flags(0).local(from, 0, 8));
                net.exchange();
                net.poll(to.host, to.scq);
            }
            net.poll(a.host, a.scq);
            net.recv(&a, 7, &[(0, 2048)]);
            for id in [1, 2] {
                net.recv(&b, id, &[(0, 64)]);
                let wr = Wr::new(wr_opcode::SEND).id(id);
                net.post(&a, wr.flags(send_flags::SIGNALED).local(&a, 0, 8));
            }
            net.exchange();
            assert_eq!(net.poll(b.host, b.scq).len(), 2);
            assert!(net.poll(a.host, a.scq).is_empty(), "the ACK waits for the reply");
            net.post(&b, Wr::new(opcode).id(8).local(&b, 0, len).key(a.mr.iova, a.mr.rkey));
            net.exchange();
            let seen: Vec<u64> = net.poll(a.host, a.scq).iter().map(|wc| wc.wr_id).collect();
            assert_eq!(seen, [1, 2, 7], "{way:?} {opcode} {len}");
        }
    }
}
