//! The whole interoperation run: boots the machine, runs every case, collects the report.

use super::lab::{ip, Lab, DEVICES, PEER_PORT};
use super::mangle::Mangler;
use super::report::Report;
use super::side::Side;
use super::vm::{Release, Vm};
use super::{
    a19, cases, cm, deep_queues, faults, forged, headers, lossy, outside, perftest, pingpong,
    same_tool, timers, Guest, Link, Outcome,
};
use crate::soft::Soft;
use std::cell::RefCell;
use std::path::Path;
use std::time::Duration;

/// Every case over one link; `first`: also those whose result does not depend on the address
/// family.
pub fn all(report: &mut Report, link: &Link, first: bool) {
    for mtu in 1..=5 {
        if first || mtu == 3 || mtu == 5 {
            cases::reliable(report, link, mtu, &cases::lengths(mtu));
        }
    }
    cases::unreliable(report, link, 3, &cases::lengths(3));
    cases::datagrams(report, link, 5);
    faults::datagrams(report, link);
    if first {
        cases::unreliable(report, link, 5, &cases::lengths(5));
        cases::datagrams(report, link, 1);
        cases::large(report, link, 5);
        deep_queues::depths(report, link);
        deep_queues::connections(report, link, 64);
        deep_queues::shared_receives(report, link);
        faults::receiver_not_ready(report, link);
        faults::naks(report, link);
        faults::silence(report, link);
    }
}

/// Runs this program inside the machine; it counts as one case.
fn inside(report: &mut Report, vm: &Vm, feature: &str, command: &str) {
    let words: String = report.only().iter().map(|w| format!("'{w}' ")).collect();
    let begun = vm.begin(&format!("{command} {words}"), 340);
    let done = begun.finish(Duration::from_secs(350));
    let last = done.output.lines().rev().find(|l| l.contains(" cases, ")).unwrap_or(&done.output);
    report.case(feature, Side::Ours, "", || {
        if done.ok() {
            return Ok(0);
        }
        let failed: Vec<&str> = done.output.lines().filter(|l| l.contains("FAILED")).collect();
        Err(format!("{last}: {failed:?}"))
    });
    report.remark(feature, Side::Rxe, "in the same run");
    if report.wants(feature) {
        report.note(&format!("{feature}: {last}"));
    }
}

/// The same between two network namespaces of one machine, in which our program runs too. First the
/// kernel's own virtual link connects them, then that link and our wire. `share` holds this program
/// as `interop`.
fn between_namespaces(report: &mut Report, share: &Path) -> Outcome<()> {
    let vm = Vm::start(Release::Host, "split", share)?;
    let _program = vm.begin(&format!("./peer rxe0 {PEER_PORT}"), 400);
    let devices = "soft:10.77.0.2,soft:[fd00:77::2]";
    let feature = "all but faults and depth, between namespaces of the guest";
    inside(
        report,
        &vm,
        feature,
        &format!("ip netns exec u ./interop 10.77.0.1:{PEER_PORT} {devices}"),
    );
    // The far end's program is reached past the wire. The link's end gets another MAC than the
    // frames are sent to, and its address moves to our side of the wire, so only what crosses the
    // wire arrives.
    vm.run(
        "modprobe tun
         ip link add c0 type veth peer name c1 netns u
         ip addr add 10.78.0.1/24 dev c0; ip link set c0 up
         ip -n u addr add 10.78.0.2/24 dev c1; ip -n u link set c1 up
         ip -n u addr flush dev rv1; ip -n u link set rv1 down
         ip -n u link set rv1 address 02:00:00:77:00:99; ip -n u link set rv1 up",
        20,
    )?;
    let port = PEER_PORT + 1;
    let _program = vm.begin(&format!("./peer rxe0 {port}"), 400);
    let feature = "RC over bad wires, between namespaces of the guest";
    inside(
        report,
        &vm,
        feature,
        &format!("ip netns exec u ./interop between rv1 10.78.0.1:{port} soft:10.77.0.2"),
    );
    Ok(())
}

/// The part of the last case inside the machine: joins the interface `far` to a tap device that has
/// the address of `device`, and runs every kind of wire to the program at `peer`.
pub fn bad_wires(report: &mut Report, far: &str, peer: &str, device: &str) -> Outcome<()> {
    let wire = Mangler::between("gdr0", far).map_err(|e| format!("{far}: {e}"))?;
    ip("link set gdr0 address 02:00:00:77:00:02 mtu 4200 up")?;
    ip("addr add 10.77.0.2/24 dev gdr0")?;
    ip("neigh add 10.77.0.1 lladdr 02:00:00:77:00:01 dev gdr0 nud permanent")?;
    let guest = RefCell::new(Guest::connect(peer)?);
    let device = Soft::open(device, &Default::default()).map_err(|e| format!("{device}: {e}"))?;
    let link = Link::new(device.dev(), &guest)?;
    lossy::wires(report, &link, &wire, 1);
    lossy::marks(report, &link, &wire, 1);
    Ok(())
}

/// Boots the machine of a later release and runs what rxe has there only.
pub fn newer(report: &mut Report, share: &Path) -> Outcome<()> {
    let lab = Lab::new(Release::Trixie, share)?;
    let kernel = lab.vm.run("uname -r", 10)?;
    report.note(&format!("kernel of the far end: {}", kernel.trim()));
    let (_program, guest) = lab.peer(PEER_PORT)?;
    let mut links = Vec::new();
    for (i, name) in DEVICES.iter().enumerate() {
        let device = Soft::open(name, &Default::default()).map_err(|e| format!("{name}: {e}"))?;
        let link = Link::new(device.dev(), &guest)?.over(&lab.mangler);
        a19::all(report, &link, &lab.mangler, i == 0);
        links.push((link.near.clone(), link.index));
    }
    // The drop-in has no link-local addresses.
    links.truncate(2);
    links[0].0 = "10.77.1.1".into();
    a19::tools(report, &lab, share, &links);
    let text = report.part(NEWER, NEWER_HEAD);
    std::fs::write(share.join("NEWER.md"), text).map_err(|e| e.to_string())
}

/// Heading of the part of docs/records/INTEROP.md that [`newer`] writes.
pub const NEWER: &str = "## ATOMIC WRITE and FLUSH";

/// The text above its table.
const NEWER_HEAD: &str = "Written as the table above, with the same programs and wire; the far \
end has the kernel and\nthe rdma-core of Debian 13. The wire gives each side the ICRC of a FLUSH \
that it expects. No\nregion allows a persistent FLUSH: neither stack finds persistent memory \
there.";

/// Boots the machine and runs everything.
pub fn everything(report: &mut Report, share: &Path) -> Outcome<()> {
    let lab = Lab::new(Release::Host, share)?;
    let kernel = lab.vm.run("uname -r", 10)?;
    report.note(&format!("kernel of the far end: {}", kernel.trim()));
    report.note(
        "RC ATOMIC WRITE and FLUSH: rxe has them from Linux 6.2 on, so with another kernel (below)",
    );
    report.note("XRC: skipped, rxe has no XRC");
    report.note("rxe sets IBV_WC_GRH for receives on connected QPs too, whose buffers hold no GRH");
    let (_program, guest) = lab.peer(PEER_PORT)?;
    for (i, name) in DEVICES.iter().enumerate() {
        let device = Soft::open(name, &Default::default()).map_err(|e| format!("{name}: {e}"))?;
        let link = Link::new(device.dev(), &guest)?.over(&lab.mangler);
        all(report, &link, i == 0);
        if i == 0 {
            headers::all(report, &link, &lab.mangler);
            forged::all(report, &link, &lab.mangler);
            timers::all(report, &link, &lab.mangler);
        }
        if i < 2 {
            lossy::wires(report, &link, &lab.mangler, 3);
            lossy::marks(report, &link, &lab.mangler, 3);
        }
    }
    let (packets, [lost, doubled, overtaken, damaged, late]) = lab.mangler.counts();
    report.note(&format!(
        "of {packets} packets {lost} were lost, {doubled} doubled, \
         {overtaken} overtaken, {damaged} damaged, {late} delayed"
    ));
    pingpong::all(report, &lab);
    perftest::all(report, &lab);
    cm::tools(report, &lab);
    outside::all(report, &lab, &guest)?;
    same_tool::all(report, &lab);
    let port = PEER_PORT + 1;
    let kill =
        |_program| lab.vm.run(&format!("kill -9 $(cat /tmp/{port}); sleep 0.3"), 20).map(drop);
    faults::killed(report, DEVICES[0], || lab.peer(port), kill);
    drop(guest);
    drop(lab);
    between_namespaces(report, share)?;
    std::fs::write(share.join("INTEROP.md"), report.document()).map_err(|e| e.to_string())
}
