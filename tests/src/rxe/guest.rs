//! The connection to the far end's verbs program, and the pair of addresses of a connection.

use super::mangle::Mangler;
use super::Outcome;
use crate::patience::deadline;
use gdrcore_core::device::Device;
use gdrcore_core::verbs::types::AhAttr;
use std::cell::RefCell;
use std::io::{ErrorKind, Read, Write};
use std::net::{Ipv6Addr, TcpStream};
use std::time::{Duration, Instant};

/// A connection to a running `peer`.
pub struct Guest {
    stream: TcpStream,
    input: Vec<u8>,
}

impl Guest {
    /// Connects, again until somebody listens.
    pub fn connect(address: &str) -> Outcome<Guest> {
        let end = deadline(60);
        loop {
            match TcpStream::connect(address) {
                Ok(stream) => {
                    stream.set_nodelay(true).map_err(|e| e.to_string())?;
                    stream.set_nonblocking(true).map_err(|e| e.to_string())?;
                    return Ok(Guest { stream, input: Vec::new() });
                }
                Err(e) if Instant::now() > end => return Err(format!("{address}: {e}")),
                Err(_) => std::thread::sleep(Duration::from_millis(50)),
            }
        }
    }

    /// Sends one request and returns the answer's words after "ok". Runs `dev` while it waits,
    /// because the far end may be waiting for our device.
    pub fn request(&mut self, dev: &dyn Device, request: &str) -> Outcome<String> {
        let line = format!("{request}\n");
        self.stream.write_all(line.as_bytes()).map_err(|e| format!("{request}: {e}"))?;
        let end = deadline(60);
        let mut idle = 0;
        loop {
            if let Some(at) = self.input.iter().position(|&b| b == b'\n') {
                let line: Vec<u8> = self.input.drain(..=at).collect();
                let answer = String::from_utf8_lossy(&line[..at]).into_owned();
                return match answer.strip_prefix("ok ") {
                    Some(rest) => Ok(rest.to_string()),
                    None => Err(format!("{request}: {answer}")),
                };
            }
            let mut bytes = [0; 4096];
            match self.stream.read(&mut bytes) {
                Ok(0) => return Err(format!("{request}: the far end is gone")),
                Ok(n) => self.input.extend_from_slice(&bytes[..n]),
                Err(e) if e.kind() == ErrorKind::WouldBlock => {
                    if dev.progress().unwrap_or(0) > 0 {
                        idle = 0;
                    } else {
                        idle += 1;
                        give_way(idle);
                    }
                }
                Err(e) => return Err(format!("{request}: {e}")),
            }
            if Instant::now() > end {
                return Err(format!("{request}: no answer came"));
            }
        }
    }
}

/// To be called in a loop that found nothing `idle` times in a row: leaves the CPU to the emulated
/// machine.
pub fn give_way(idle: u32) {
    if idle > 20 {
        std::thread::sleep(Duration::from_micros(30));
    } else {
        std::thread::yield_now();
    }
}

/// Our device, the far end, and the addresses that they use for each other.
pub struct Link<'d> {
    /// Our device.
    pub dev: &'d dyn Device,
    /// The far end's program.
    pub guest: &'d RefCell<Guest>,
    /// Name for reports, as "IPv4".
    pub name: &'static str,
    /// The far end's address, as our QPs take it.
    pub far: AhAttr,
    /// Our address as text, as the far end takes it.
    pub near: String,
    /// Index of the far end's own GID.
    pub index: u32,
    /// The wire between them; `None`: it is not ours.
    pub wire: Option<&'d Mangler>,
}

impl<'d> Link<'d> {
    /// The link between `dev` and the far end's GID of the same family and scope.
    pub fn new(dev: &'d dyn Device, guest: &'d RefCell<Guest>) -> Outcome<Link<'d>> {
        let own = dev.query().map_err(|e| e.to_string())?;
        let near = Ipv6Addr::from(own.gid);
        let kind = |a: &Ipv6Addr| (a.to_ipv4_mapped().is_some(), a.segments()[0] == 0xFE80);
        let list = guest.borrow_mut().request(dev, "gids")?;
        let words: Vec<&str> = list.split_whitespace().collect();
        for pair in words.chunks(2) {
            let [index, gid] = pair else { continue };
            let gid: Ipv6Addr = gid.parse().map_err(|e| format!("{gid}: {e}"))?;
            if kind(&gid) == kind(&near) {
                let far =
                    AhAttr { dgid: gid.octets(), scope_id: own.scope_id, ..AhAttr::default() };
                let name = match kind(&near) {
                    (true, _) => "IPv4",
                    (_, true) => "IPv6 link-local",
                    _ => "IPv6",
                };
                let index = index.parse().map_err(|e| format!("{index}: {e}"))?;
                return Ok(Link {
                    dev,
                    guest,
                    name,
                    far,
                    near: near.to_string(),
                    index,
                    wire: None,
                });
            }
        }
        Err(format!("the far end has no address like {near}: {list}"))
    }

    /// The same link with a wire of ours in between.
    pub fn over(self, wire: &'d Mangler) -> Link<'d> {
        Link { wire: Some(wire), ..self }
    }

    /// Sends a request to the far end; returns the answer's words.
    pub fn request(&self, request: &str) -> Outcome<String> {
        self.guest.borrow_mut().request(self.dev, request)
    }

    /// As [`Link::request`], for answers that are numbers.
    pub fn numbers(&self, request: &str) -> Outcome<Vec<i128>> {
        let answer = self.request(request)?;
        answer
            .split_whitespace()
            .map(|w| w.parse().map_err(|e| format!("{request}: {answer}: {e}")))
            .collect()
    }
}
