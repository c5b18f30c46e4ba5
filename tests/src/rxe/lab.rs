//! The emulated machine at the other end of a wire of ours. Runs in a network namespace of its own,
//! which it may configure.

use super::mangle::Mangler;
use super::vm::{Release, Vm};
use super::{Guest, Outcome};
use crate::tools::{run, Running};
use std::cell::RefCell;
use std::path::Path;
use std::process::Command;

/// Port of the far end's program.
pub const PEER_PORT: u16 = 7000;

/// Our devices on the wire.
pub const DEVICES: [&str; 3] = ["soft:10.77.1.1", "soft:[fd00:78::1]", "soft:[fe80::1%gdr0]"];

pub(super) fn ip(arguments: &str) -> Outcome<()> {
    let done = run(Command::new("ip").args(arguments.split(' ')), 10);
    if done.ok() {
        return Ok(());
    }
    Err(format!("ip {arguments}: {}", done.output.trim()))
}

/// An emulated machine and the wire to it.
pub struct Lab {
    /// The machine; declared before the wire, so dropped first.
    pub vm: Vm,
    /// The wire.
    pub mangler: Mangler,
}

impl Lab {
    /// Boots the machine; `share` is the folder of programs that it sees.
    pub fn new(release: Release, share: &Path) -> Outcome<Lab> {
        let mangler = Mangler::start("gdr0").map_err(|e| format!("no tap device: {e}"))?;
        let mangler = mangler.keep_in(share.join("evidence"));
        ip("link set lo up")?;
        ip("link set gdr0 mtu 4200 addrgenmode none up")?;
        ip("addr add 10.77.1.1/24 dev gdr0")?;
        for address in ["fd00:78::1", "fe80::1"] {
            ip(&format!("addr add {address}/64 dev gdr0 nodad"))?;
        }
        let net = format!("net:socket,connect=127.0.0.1:{}", mangler.port());
        let vm = Vm::start(release, &net, share)?;
        vm.run("ip addr add fd00:78::2/64 dev eth0 nodad", 10)?;
        Ok(Lab { vm, mangler })
    }

    /// Starts the far end's program on a port and connects to it.
    pub fn peer(&self, port: u16) -> Outcome<(Running, RefCell<Guest>)> {
        let program =
            self.vm.begin(&format!("echo $$ >/tmp/{port}; exec ./peer rxe0 {port}"), 10_000);
        let guest = Guest::connect(&format!("10.77.1.2:{port}"))?;
        Ok((program, RefCell::new(guest)))
    }
}
