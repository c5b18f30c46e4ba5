//! The interoperation cases with rxe, as a program.
//!
//! - `interop FAR:PORT DEVICE[,DEVICE...] [WORD...]` runs the cases of `gdrcore_tests::rxe` from
//!   our devices to a running `peer` at FAR. Words limit it to features that contain one of them.
//! - `interop lab FOLDER [WORD...]` boots the machine first, with FOLDER (which contains `peer`) as
//!   its `/share`. Needs a network namespace of its own.
//! - `interop newer FOLDER [WORD...]` does the same with a machine of a later release, for what rxe
//!   has there only.
//! - `interop between INTERFACE FAR:PORT DEVICE [WORD...]` sends through a wire of its own, from a
//!   tap device to INTERFACE.
//! - `interop long FOLDER [MIB [LOSSY_MIB]]` does the longer run (20 GiB, and 1 GiB for each bad
//!   wire) in such a machine, and writes its table to FOLDER/LONG.md.

use gdrcore_tests::rxe::report::Report;
use gdrcore_tests::rxe::{long, run_all, Guest, Link, Outcome};
use gdrcore_tests::soft::Soft;
use std::cell::RefCell;
use std::path::Path;

fn against(report: &mut Report, far: &str, devices: &str) -> Outcome<()> {
    let guest = RefCell::new(Guest::connect(far)?);
    for name in devices.split(',') {
        let device = Soft::open(name, &Default::default()).map_err(|e| format!("{name}: {e}"))?;
        run_all::all(report, &Link::new(device.dev(), &guest)?, false);
    }
    Ok(())
}

fn main() {
    let mut arguments = std::env::args().skip(1);
    let (Some(far), Some(what)) = (arguments.next(), arguments.next()) else {
        eprintln!(
            "usage: interop FAR:PORT DEVICE[,DEVICE...] [WORD...], interop lab FOLDER \
            [WORD...], interop newer FOLDER [WORD...], interop long FOLDER [MIB [LOSSY_MIB]]"
        );
        std::process::exit(2);
    };
    if far == "long" {
        let mut mib = |default| {
            arguments.next().map_or(Ok(default), |w| w.parse().map_err(|e| format!("{w}: {e}")))
        };
        let share = Path::new(&what);
        let done = mib(20 << 10).and_then(|clean| {
            let page = long::run(share, clean, mib(1 << 10)?)?;
            std::fs::write(share.join("LONG.md"), page).map_err(|e| e.to_string())
        });
        if let Err(e) = done {
            println!("broken off: {e}");
            std::process::exit(1);
        }
        return;
    }
    let more = if far == "between" { (arguments.next(), arguments.next()) } else { (None, None) };
    let mut report = Report::new(arguments.collect(), true);
    let done = match (far.as_str(), more) {
        ("newer", _) => run_all::newer(&mut report, Path::new(&what)),
        ("lab", _) => run_all::everything(&mut report, Path::new(&what)),
        (_, (Some(peer), Some(device))) => run_all::bad_wires(&mut report, &what, &peer, &device),
        _ => against(&mut report, &far, &what),
    };
    print!("{}", report.table());
    let (cases, failed, open) = report.counts();
    println!("{cases} cases, {failed} failed, {open} not tried");
    if let Err(e) = &done {
        println!("broken off: {e}");
    }
    std::process::exit(i32::from(failed > 0 || done.is_err()));
}
