"""Deliberate faults of what the threads of one device share, for mutate.py.

What is wrong then | file | text | what stands there instead | the one stage that can see it."""

FAULTS = [
    ("the counts of a queue pair end with it", "core/src/engine/qp.rs",
     "        t.common.counters.add(&q.counters);\n",
     "",
     "engine"),
    ("a device counts only queue pairs that have ended", "core/src/engine/report.rs",
     "            sum.add(&qp.counters);\n",
     "            let _ = qp;\n",
     "engine"),
    ("a mark is counted by the queue pair and by the device", "core/src/roce/congestion.rs",
     "        let (qi, qp) = (c.qi, &mut *c.qp);\n        qp.counters.np_ecn_marked += 1;",
     "        let (qi, qp) = (c.qi, &mut *c.qp);\n        qp.counters.np_ecn_marked += 2;",
     "engine"),
]
