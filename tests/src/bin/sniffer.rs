//! Captures the frames that the interfaces of a network namespace send and receive: `sniffer FILE`.
//! Needs CAP_NET_RAW there; runs until it is killed.

use std::fs::File;
use std::io::Write;

fn main() {
    let name = std::env::args().nth(1).expect("a file");
    let all = i32::from((libc::ETH_P_ALL as u16).to_be());
    // SAFETY: no pointers.
    let socket = unsafe { libc::socket(libc::AF_PACKET, libc::SOCK_RAW, all) };
    if socket < 0 {
        println!("no socket: {}", std::io::Error::last_os_error());
        std::process::exit(1);
    }
    let mut file = File::create(name).expect("a file");
    // Little-endian, microseconds, Ethernet.
    let mut head = [0u8; 24];
    head[..8].copy_from_slice(&[0xd4, 0xc3, 0xb2, 0xa1, 2, 0, 4, 0]);
    (head[18], head[20]) = (4, 1);
    file.write_all(&head).expect("written");
    println!("listening");
    let mut frame = vec![0u8; 16 + (1 << 17)];
    loop {
        let room = &mut frame[16..];
        // SAFETY: pointer and length are those of `room`.
        let n = unsafe { libc::recv(socket, room.as_mut_ptr().cast(), room.len(), 0) };
        let Ok(n) = usize::try_from(n) else { return };
        frame[8..12].copy_from_slice(&(n as u32).to_le_bytes());
        frame[12..16].copy_from_slice(&(n as u32).to_le_bytes());
        file.write_all(&frame[..16 + n]).expect("written");
    }
}
