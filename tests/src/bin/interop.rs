//! Interoperation with rxe: `interop FAR:PORT DEVICE[,DEVICE...] [WORD...]` drives the cases of `gdrcore_tests::rxe` from
//! our devices to the `peer` at FAR, those alone whose feature has one of the words, and prints the table.

use gdrcore_core::counters::Counters;
use gdrcore_tests::rxe::report::Report;
use gdrcore_tests::rxe::{cases, faults, many, Guest, Link};
use gdrcore_tests::soft::Soft;
use std::cell::RefCell;
use std::time::Duration;

fn main() {
    let mut arguments = std::env::args().skip(1);
    let (Some(far), Some(devices)) = (arguments.next(), arguments.next()) else {
        eprintln!("usage: interop FAR:PORT DEVICE[,DEVICE...] [WORD...]");
        std::process::exit(2);
    };
    let mut report = Report::new(arguments.collect(), true);
    let guest = RefCell::new(Guest::connect(&far, Duration::from_secs(60)).expect("the far end"));
    for name in devices.split(',') {
        let device = Soft::new(name);
        let link = Link::new(device.dev(), &guest).expect("a link");
        for mtu in 1..=5 {
            cases::reliable(&mut report, &link, mtu, &cases::lengths(mtu));
        }
        cases::large(&mut report, &link, 5);
        cases::unreliable(&mut report, &link, 3, &cases::lengths(3));
        cases::datagrams(&mut report, &link, 5);
        many::depths(&mut report, &link);
        many::connections(&mut report, &link, 100);
        many::shared_receives(&mut report, &link);
        faults::receiver_not_ready(&mut report, &link);
        faults::naks(&mut report, &link);
        faults::silence(&mut report, &link);
        faults::datagrams(&mut report, &link);
        if std::env::var_os("INTEROP_COUNTERS").is_some() {
            let counters = device.dev().counters().expect("counters");
            for (name, n) in Counters::NAMES.iter().zip(counters.values()) {
                println!("{name} {n}");
            }
        }
    }
    print!("{}", report.table());
    let (cases, failed, _) = report.counts();
    println!("{cases} cases, {failed} failed");
    std::process::exit(i32::from(failed > 0));
}
