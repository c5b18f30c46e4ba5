//! Interoperation with rxe, as a program.
//!
//! `interop FAR:PORT DEVICE[,DEVICE...] [WORD...]` drives the cases of `gdrcore_tests::rxe` from our devices to a running
//! `peer` at FAR; `interop lab FOLDER [WORD...]` boots the machine first, with FOLDER (which holds `peer`) as its `/share`,
//! and needs a network namespace of its own. Only features with one of the words are run, if there are any.

use gdrcore_tests::rxe::report::Report;
use gdrcore_tests::rxe::{lab, Guest, Link, Outcome};
use gdrcore_tests::soft::Soft;
use std::cell::RefCell;
use std::path::Path;
use std::time::Duration;

fn against(report: &mut Report, far: &str, devices: &str) -> Outcome<()> {
    let guest = RefCell::new(Guest::connect(far, Duration::from_secs(60))?);
    for name in devices.split(',') {
        let device = Soft::open(name, &Default::default()).map_err(|e| format!("{name}: {e}"))?;
        lab::all(report, &Link::new(device.dev(), &guest)?, false);
    }
    Ok(())
}

fn main() {
    let mut arguments = std::env::args().skip(1);
    let (Some(far), Some(what)) = (arguments.next(), arguments.next()) else {
        eprintln!("usage: interop FAR:PORT DEVICE[,DEVICE...] [WORD...], or interop lab FOLDER [WORD...]");
        std::process::exit(2);
    };
    let mut report = Report::new(arguments.collect(), true);
    let done =
        if far == "lab" { lab::everything(&mut report, Path::new(&what)) } else { against(&mut report, &far, &what) };
    print!("{}", report.table());
    let (cases, failed, open) = report.counts();
    println!("{cases} cases, {failed} failed, {open} not tried");
    if let Err(e) = &done {
        println!("broken off: {e}");
    }
    std::process::exit(i32::from(failed > 0 || done.is_err()));
}
