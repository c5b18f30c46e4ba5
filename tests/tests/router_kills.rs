//! A router that is killed under load, again and again (`GDRC_ROUTER_KILLS`), and started anew by a
//! supervisor that holds its sockets.

use gdrcore_tests::ends::{connected_pair, pattern, succeed, Op};
use gdrcore_tests::far_end::Far;
use gdrcore_tests::or_skip;
use gdrcore_tests::soft::Soft;
use gdrcore_tests::supervisor::{kills, Supervised, TWO_PAIRS};
use gdrcore_tests::tools::installed;
use std::time::{Duration, Instant};

const FAR: &str = env!("CARGO_BIN_EXE_far_end");

const BYTES: usize = 5000;

#[test]
fn relayed_pairs_go_on_with_the_next_router_and_links_do_not_notice() {
    let bash = or_skip!(installed("bash"));
    let mut router = Supervised::start(&bash, TWO_PAIRS, &["a", "b", "c", "d"]);
    let (direct, _one) = Far::stream(FAR, &router.device("a"), &router.device("b"));
    let (relayed, _other) = Far::stream(FAR, &router.device("c"), &router.device("d"));
    // Beside the streams, a pair that is asked how soon it has its next bytes.
    let [c, d] = ["c", "d"].map(|name| Soft::new(&router.device(name)));
    let (mut x, mut y) = connected_pair(c.dev(), d.dev());
    let mut times = Vec::new();
    for kill in 0..u64::from(kills()) {
        direct.moves(1);
        relayed.moves(1);
        let data = pattern(kill, BYTES);
        x.buffer.write(0, &data);
        let killed = Instant::now();
        router.kill();
        x.post(kill, Op::Write(0, None), 0, BYTES as u32).expect("post_send");
        succeed(&mut x, &mut y, kill);
        times.push(killed.elapsed());
        assert!(y.buffer.read(0, BYTES) == data);
        relayed.moves(2);
        direct.moves(1);
    }
    times.sort_unstable();
    let within = times.iter().filter(|t| **t <= Duration::from_millis(500)).count();
    println!(
        "from kill to bytes at the other end, {} times: median {:.0?}, longest {:.0?}; {within} \
         within 500 ms",
        times.len(),
        times[times.len() / 2],
        times[times.len() - 1],
    );
}
