//! Runs unmodified tools in the machine and talks to them over TCP.

use super::lab::Lab;
use super::Outcome;
use crate::patience::{deadline, limit};
use crate::tools::Running;
use std::io::Read;
use std::net::{TcpListener, TcpStream};
use std::time::{Duration, Instant};

/// TCP port of the tools.
pub const PORT: u16 = 18_515;
/// The far end's address, and ours.
const FAR: &str = "10.77.1.2";
const NEAR: &str = "10.77.1.1";

/// Our role towards the tool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// The tool waits, our side connects.
    Client,
    /// Our side waits, the tool connects.
    Server,
}

/// Starts a tool as server and connects to it.
pub fn connect(lab: &Lab, command: &str) -> Outcome<(Running, TcpStream)> {
    let mut tool = lab.vm.begin(&format!("{command} -p {PORT}"), 150);
    let end = deadline(60);
    loop {
        match TcpStream::connect((FAR, PORT)) {
            Ok(stream) => return Ok((tool, patient(stream)?)),
            Err(e) if Instant::now() > end || !tool.still_runs() => {
                return Err(format!("{e}: {}", tool.finish(Duration::from_secs(1)).output.trim()))
            }
            Err(_) => std::thread::sleep(Duration::from_millis(100)),
        }
    }
}

/// Starts a tool as client of ours and takes its connection.
pub fn accept(lab: &Lab, command: &str) -> Outcome<(Running, TcpStream)> {
    let listener = TcpListener::bind((NEAR, PORT)).map_err(|e| e.to_string())?;
    listener.set_nonblocking(true).map_err(|e| e.to_string())?;
    let mut tool = lab.vm.begin(&format!("{command} -p {PORT} {NEAR}"), 150);
    let end = deadline(60);
    loop {
        match listener.accept() {
            Ok((stream, _)) => return Ok((tool, patient(stream)?)),
            Err(e) if Instant::now() > end || !tool.still_runs() => {
                return Err(format!("{e}: {}", tool.finish(Duration::from_secs(1)).output.trim()))
            }
            Err(_) => std::thread::sleep(Duration::from_millis(20)),
        }
    }
}

fn patient(stream: TcpStream) -> Outcome<TcpStream> {
    let fail = |e: std::io::Error| e.to_string();
    stream.set_nonblocking(false).map_err(fail)?;
    stream.set_nodelay(true).map_err(fail)?;
    stream.set_read_timeout(Some(limit(60))).map_err(fail)?;
    Ok(stream)
}

/// Reads the next `N` bytes from the tool.
pub fn read<const N: usize>(stream: &mut TcpStream) -> Outcome<[u8; N]> {
    let mut bytes = [0; N];
    stream.read_exact(&mut bytes).map_err(|e| format!("the tool is silent: {e}"))?;
    Ok(bytes)
}

/// Checks that the tool sent these bytes.
pub fn expect(said: &[u8], want: &[u8]) -> Outcome<()> {
    if said == want {
        return Ok(());
    }
    Err(format!("the tool sent {:?}", String::from_utf8_lossy(said)))
}

/// Waits until the tool ends by itself, with success; calls `run` meanwhile.
pub fn ends_well(mut tool: Running, name: &str, mut run: impl FnMut()) -> Outcome<()> {
    let end = deadline(60);
    while tool.still_runs() && Instant::now() < end {
        run();
        std::thread::sleep(Duration::from_micros(200));
    }
    let done = tool.finish(Duration::from_secs(1));
    if done.ok() {
        return Ok(());
    }
    Err(format!("{name} ended with {:?}: {}", done.code(), done.output.trim()))
}
