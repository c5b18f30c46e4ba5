//! GPU memory on a device of several engines: all engines stage through one kind of memory.

use super::*;
use gdrcore_net::soft::EngineCount;
use gdrcore_tests::soft::Soft;

/// Messages of each thread.
const ROUNDS: u64 = 20;
const LEN: usize = 150_000;

/// WRITEs, READs and atomics between GPU memory of one thread's queue pairs, checked.
fn work(x: &Gpu<Soft>, thread: u64) {
    let dev = x.soft.dev();
    let (mut a, mut b) = connected_pair(dev, dev);
    let (here, there) = (x.alloc(&a, LEN), x.alloc(&b, LEN));
    aim(&mut a, &there);
    there.write(0, &[0; 8]);
    for round in 0..ROUNDS {
        let data = pattern(thread << 32 | round, LEN - 8);
        here.write(8, &data);
        let pieces = [here.piece(8, LEN as u32 - 8)];
        a.post_wr(&a.request(1, Op::Write(8, None), &pieces)).unwrap();
        succeed(&mut a, &mut b, 1);
        assert!(there.read(8, LEN - 8) == data, "thread {thread}, round {round}");
        here.write(8, &vec![0; LEN - 8]);
        a.post_wr(&a.request(2, Op::Read(8), &pieces)).unwrap();
        succeed(&mut a, &mut b, 2);
        assert!(here.read(8, LEN - 8) == data, "thread {thread}, round {round}");
        a.post_wr(&a.request(3, Op::FetchAdd(0, thread + 1), &[a.piece(0, 8)])).unwrap();
        succeed(&mut a, &mut b, 3);
        assert_eq!(a.buffer.read(0, 8), (round * (thread + 1)).to_le_bytes(), "thread {thread}");
    }
    for (end, region) in [(a, here), (b, there)] {
        x.forget(&end, &region);
        memory::free(region.at).unwrap();
        end.destroy().expect("destroy");
    }
}

#[test]
fn threads_of_all_engines_stage_at_the_same_time() {
    let (_alone, driver) = alone();
    if driver == Driver::Fake {
        cuda::option("FAKECUDA_DELAY_US", 500);
    }
    for path in [None, Some(PathChoice::Udp)] {
        let config = SoftConfig { path: path.unwrap_or_default(), ..SoftConfig::default() };
        let name = path.map_or("loopback".to_string(), |_| address(1));
        let set = Soft::open_with(&name, &config, EngineCount::all(3)).expect("open");
        let staging = staging();
        set.soft().memory_add(1, staging).expect("the first kind of memory");
        assert_eq!(set.soft().memory_add(1, staging), Err(Error::Busy));
        let x = Gpu { soft: set, staging };
        std::thread::scope(|scope| {
            for thread in 0..3 {
                let x = &x;
                scope.spawn(move || work(x, thread));
            }
        });
        assert_eq!(x.soft.dev().leaks().unwrap(), Default::default());
    }
}
