//! A tenant of a router that talks to the far end, by the address of the host: the queue pairs are
//! the tenant's, and what the far end sees is the host.

use super::lab::Lab;
use super::report::Report;
use super::{cases, cm, Guest, Link, Outcome};
use crate::router::Router;
use crate::soft::Soft;
use std::cell::RefCell;

/// The host's address on the wire, which no device has meanwhile, and the far end's.
const NEAR: &str = "10.77.1.1";
const FAR: &str = "10.77.1.2";

const POLICY: &str = r#"
[host]
id = "h"
address = "10.77.1.1"
map = "DIR/map"
[tenant.blue]
listen = "DIR/blue"
vip = "10.99.0.1"
outside = true
publish = [{ port = 7174 }, { port = 7174, space = "udp" }]
"#;
const MAP: &str = "[h]\naddress = \"10.77.1.1\"\n";

/// Connected queue pairs and datagrams at every length, and rping and udaddy with either role ours.
pub fn all(report: &mut Report, lab: &Lab, guest: &RefCell<Guest>) -> Outcome<()> {
    let features = ["RC SEND", "RC WRITE", "RC READ", "UD SEND with immediate", "rping", "udaddy"]
        .map(|name| format!("{name}, a tenant of a router"));
    if !features.iter().any(|feature| report.wants(feature)) {
        return Ok(());
    }
    let [send, write, read, datagram, rping, udaddy] = features.each_ref().map(String::as_str);
    let router = Router::start_beside(POLICY, &["--firewall", "off"], &[("map", MAP)]);
    let device = router.device("blue");
    let soft = Soft::open(&device, &Default::default()).map_err(|e| format!("{device}: {e}"))?;
    let link = Link { near: format!("::ffff:{NEAR}"), ..Link::new(soft.dev(), guest)? };
    cases::outside(report, &link, [send, write, read, datagram]);
    drop(soft);
    for (feature, tool) in [(rping, "rping"), (udaddy, "udaddy")] {
        cm::by(report, lab, feature, tool, [&device, NEAR, FAR]);
    }
    Ok(())
}
