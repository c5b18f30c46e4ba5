//! The answer to Prometheus, over HTTP.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::time::{Duration, Instant};

/// What a client has for its request, and again for reading the answer.
const WAIT: Duration = Duration::from_secs(2);
/// Longest request.
const LONGEST: usize = 8 << 10;

/// Answers clients, one at a time, until the process ends.
///
/// # Errors
/// Why the address cannot be had, in words.
pub fn serve(at: SocketAddr, metrics: impl Fn() -> String) -> Result<u8, String> {
    let listener = TcpListener::bind(at).map_err(|e| format!("{at}: {e}"))?;
    let bound = listener.local_addr().map_err(|e| format!("{at}: {e}"))?;
    // Nobody may read it.
    let _ = writeln!(std::io::stdout(), "http://{bound}/metrics");
    for client in listener.incoming() {
        match client {
            Ok(client) => drop(answer(client, &metrics)),
            // No descriptor is free.
            Err(_) => std::thread::sleep(Duration::from_millis(100)),
        }
    }
    Ok(0)
}

/// Answers one client. A slow one is given up.
fn answer(mut client: TcpStream, metrics: &impl Fn() -> String) -> std::io::Result<()> {
    let (mut request, end) = (Vec::new(), Instant::now() + WAIT);
    while !request.windows(4).any(|w| w == b"\r\n\r\n") {
        let left = end.saturating_duration_since(Instant::now());
        if left.is_zero() || request.len() > LONGEST {
            return Ok(());
        }
        client.set_read_timeout(Some(left))?;
        let mut bytes = [0; 1024];
        match client.read(&mut bytes)? {
            0 => return Ok(()),
            n => request.extend_from_slice(&bytes[..n]),
        }
    }
    let (status, body) = match request.starts_with(b"GET /metrics ") {
        true => ("200 OK", metrics()),
        false => ("404 Not Found", "GET /metrics\n".into()),
    };
    let text = format!(
        "HTTP/1.1 {status}\r\nContent-Type: text/plain; version=0.0.4\r\n\
         Content-Length: {}\r\nConnection: close\r\n\r\n{body}",
        body.len()
    );
    let (mut rest, end) = (text.as_bytes(), Instant::now() + WAIT);
    while !rest.is_empty() {
        let left = end.saturating_duration_since(Instant::now());
        if left.is_zero() {
            break;
        }
        client.set_write_timeout(Some(left))?;
        rest = &rest[client.write(rest)?..];
    }
    Ok(())
}
