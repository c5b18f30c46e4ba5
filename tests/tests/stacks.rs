//! Threads with small stacks, and programs whose thread-local variables take much of each stack.

use gdrcore_tests::dropin::command;
use gdrcore_tests::ends::{connected_pair, succeed, Op};
use gdrcore_tests::or_skip;
use gdrcore_tests::soft::{address, Soft};
use gdrcore_tests::tools::{compile, loopback, run, scratch, verbs_compiler};

/// The C library takes thread-local variables from the stacks of the library's threads too.
#[test]
fn programs_may_have_large_thread_local_variables() {
    or_skip!(verbs_compiler());
    let dir = scratch("tls");
    for (k, kib) in [64, 256, 400, 1024, 8192].into_iter().enumerate() {
        let size = format!("-DTLS={}", kib << 10);
        let program = compile("cc", "tls", &dir, &[&size, "-libverbs", "-lpthread"]);
        for path in ["auto", "udp"] {
            let mut program = command(&program, &loopback(161, 1 + k as u32));
            let done = run(program.env("GDRC_PATH", path), 60);
            assert!(done.ok() && done.output.contains("ok"), "{kib} KiB: {done}");
        }
    }
}

/// Threads of programs may have stacks of 64 KiB, of which the C library takes a part.
#[test]
fn a_device_is_opened_on_a_small_stack() {
    let devices = [["loopback".into(), "loopback".into()], [address(1), address(2)]];
    for [x, y] in devices {
        let work = move || {
            let [x, y] = [Soft::new(&x), Soft::new(&y)];
            for soft in [&x, &y] {
                let (mut a, mut b) = connected_pair(soft.dev(), soft.dev());
                a.post(1, Op::Write(0, None), 0, 10_000).expect("post_send");
                succeed(&mut a, &mut b, 1);
            }
        };
        let thread = std::thread::Builder::new().stack_size(64 << 10);
        thread.spawn(work).expect("a thread").join().expect("it works");
    }
}
