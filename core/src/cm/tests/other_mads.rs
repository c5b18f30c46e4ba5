//! Datagrams of other management classes.

use super::*;
use crate::cm::other_mads::OtherMad;

/// A datagram of performance management, told apart by a number.
fn query(to: u8, n: u8) -> OtherMad {
    let mut mad = [0; MAD_LEN];
    mad[..2].copy_from_slice(&[1, 4]);
    mad[MAD_LEN - 1] = n;
    OtherMad { peer: address(to), mad }
}

#[test]
fn they_leave_in_order_beside_the_connection_managers_own() {
    let mut cm = manager(1, IDS, 3);
    let id = cm.create(port_space::TCP, 0).unwrap();
    cm.connect(1, id, &address(2), PORT, 0, &rc(5, b"me")).unwrap();
    for n in 0..3 {
        cm.send_other_mad(query(3, n)).unwrap();
    }
    let (mut own, mut general, mut mad) = (0, Vec::new(), [0; MAD_LEN]);
    while cm.is_ready() {
        let to = cm.next_destination().unwrap();
        assert_eq!(cm.poll_transmit(&mut mad), Some(to));
        match to == address(3) {
            true => general.push(mad),
            false => own += 1,
        }
    }
    let sent: Vec<_> = (0..3).map(|n| query(3, n).mad).collect();
    assert_eq!((own, general), (1, sent));
    assert!(cm.next_destination().is_none() && cm.poll_transmit(&mut mad).is_none());
    // To the own address: this device's.
    cm.send_other_mad(query(1, 9)).unwrap();
    assert!(cm.next_is_mine());
}

#[test]
fn what_arrives_is_kept_in_its_order_as_far_as_there_is_room() {
    let mut cm = manager(1, IDS, 4);
    let from = |n: u8| query(2, n);
    for n in 0..20 {
        cm.handle_mad(1, &address(2), &from(n).mad);
        assert!(cm.take_raised() == (n < 4) && cm.has_other_mads());
    }
    assert_eq!(cm.counters().dropped, 16);
    for n in 0..4 {
        assert_eq!(cm.take_other_mad(), Some(from(n)));
    }
    assert!(cm.take_other_mad().is_none() && !cm.has_other_mads());
    // Shorter, longer, and of the connection manager itself: not among them.
    for len in [0, 1, 2, 24, MAD_LEN - 1] {
        cm.handle_mad(1, &address(2), &from(1).mad[..len]);
    }
    cm.handle_mad(1, &address(2), &[4; MAD_LEN + 1]);
    let mut of_cm = from(1).mad;
    of_cm[1] = 7;
    cm.handle_mad(1, &address(2), &of_cm);
    assert!(!cm.has_other_mads() && !cm.is_ready());
    assert_eq!(cm.counters().dropped, 23);
    cm.handle_mad(1, &address(2), &from(21).mad);
    assert_eq!(cm.take_other_mad(), Some(from(21)));
}

#[test]
fn a_full_ring_refuses_and_no_message_of_the_connection_manager_leaves_by_it() {
    let mut cm = manager(1, IDS, 5);
    let mut of_cm = query(2, 0);
    of_cm.mad[1] = 7;
    assert_eq!(cm.send_other_mad(of_cm), Err(Error::Invalid));
    assert!(!cm.is_ready());
    for n in 0..4 {
        cm.send_other_mad(query(2, n)).unwrap();
    }
    assert_eq!(cm.send_other_mad(query(2, 4)), Err(Error::Again));
    let mut mad = [0; MAD_LEN];
    assert!(cm.poll_transmit(&mut mad).is_some());
    cm.send_other_mad(query(2, 4)).unwrap();
}
