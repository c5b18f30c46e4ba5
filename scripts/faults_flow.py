"""Deliberate faults of libmempool.so and of the router's feed and adapter, for mutate.py.

What is wrong then | file | text | what stands there instead | the one stage that can see it."""

M = "router/mempool/src/"
FAULTS = [
    ("a key behind one that was deleted is not found", M + "pool.rs",
     "if from_home >= at.wrapping_sub(hole) & mask {",
     "if false {",
     "mempool"),
    ("a block of a key that was deleted is lost", M + "pool.rs",
     "        self.free.push(block - 1);\n",
     "",
     "mempool"),
    ("a full pool overwrites", M + "pool.rs",
     "None => return null_mut(),",
     "None => 0,",
     "mempool"),
    ("a full queue overwrites", M + "queue.rs",
     "if self.len == self.count {",
     "if false {",
     "mempool"),
    ("a handle that was destroyed means the next one", M + "handles.rs",
     "slot.times == handle >> 10",
     "true",
     "mempool"),
    ("a queue is taken for a pool", M + "handles.rs",
     "handle & 3 == self.kind &&",
     "",
     "mempool"),
    ("deleting allocates", M + "pool.rs",
     "free.try_reserve_exact(count as usize).ok()?;",
     "free.try_reserve_exact(1).ok()?;",
     "mempool"),
]
