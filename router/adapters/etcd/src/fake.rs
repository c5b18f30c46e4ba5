//! A member whose answers a test chooses.

use serde_json::Value;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};

/// Starts a fake etcd member, and returns its endpoint. `answer` gets the path and the request, and
/// returns the status and the body.
pub fn start_member(answer: impl Fn(&str, &Value) -> (u16, String) + Send + 'static) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let endpoint = format!("http://{}", listener.local_addr().expect("an address"));
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            if let Some((path, request)) = request(&stream) {
                let (status, body) = answer(&path, &request);
                let _ = write!(
                    &stream,
                    "HTTP/1.1 {status} x\r\ncontent-length: {}\r\nconnection: close\r\n\r\n{body}",
                    body.len()
                );
            }
        }
    });
    endpoint
}

fn request(stream: &TcpStream) -> Option<(String, Value)> {
    let mut from = BufReader::new(stream);
    let mut line = String::new();
    from.read_line(&mut line).ok()?;
    let path = line.split(' ').nth(1)?.strip_prefix("/v3/")?.to_string();
    let mut length = 0;
    while line != "\r\n" {
        line.clear();
        from.read_line(&mut line).ok()?;
        let (name, value) = line.split_once(':').unwrap_or_default();
        if name.eq_ignore_ascii_case("content-length") {
            length = value.trim().parse().ok()?;
        }
    }
    let mut body = vec![0; length];
    from.read_exact(&mut body).ok()?;
    Some((path, serde_json::from_slice(&body).ok()?))
}
