// SPDX-License-Identifier: MIT OR Apache-2.0
/*
 * Shared declarations of perf and pingpong.
 *
 *   perf.c      options, the plan, one run per size
 *   side.c      one end: device, queue pairs, buffers, connection
 *   run.c       one run, at either end
 *   crew.c      the threads of an end
 *   traffic.c   the measured loops, as steps, so that one thread can also drive both ends
 *   report.c    percentiles, tables, histogram, JSON
 *
 * A run has two ends. The client begins every run and decides everything; the server follows. With
 * the device "loopback", or by --both-ends, both ends are in one process and one thread steps them
 * in turn.
 */
#ifndef PERF_H
#define PERF_H

#include "../common/gx.h"

/* From VERB_READ on an answer ends a request. */
enum verb { VERB_SEND, VERB_WRITE, VERB_READ, VERB_ATOMIC, VERB_ATOMIC_WRITE, VERB_FLUSH, VERBS };
enum mode { MODE_LAT, MODE_BW };
enum atomic { ATOMIC_FETCH_ADD, ATOMIC_CMP_SWAP };

#define MAX_LIST 64u
#define MAX_QPS 1024u
#define MAX_THREADS 64u
#define MAX_DEPTH 8192u
#define MAX_SIZE (1ull << 30)
#define ALL_SIZES_MAX (8u << 20)

/* What the threads of an end have of their own, beside CQs and queue pairs. */
enum { APART_NOTHING, APART_ENGINES, APART_CONTEXTS };

/* Parameters that both ends must agree on: sent as text in the first message. */
struct plan {
    uint32_t verb, mode, atomic;
    uint32_t qp_type;     /* of the queue pairs that send: GDRC_QPT_XRC_SEND is XRC, _DCI is DC */
    uint32_t qps;         /* queue pairs of a thread */
    uint32_t threads;     /* of each end */
    uint32_t apart;       /* what each thread has of its own, an APART_ value */
    uint32_t tx_depth;    /* most work requests outstanding per queue pair */
    uint32_t rx_depth;    /* receives posted per queue pair */
    uint32_t cq_mod;      /* one signalled request in so many */
    uint32_t inline_max;  /* messages up to here are sent inline */
    uint32_t mtu;         /* GDRC_MTU_ code, 0: what both links carry */
    uint32_t outs;        /* READs and atomics outstanding, 0: what the peer serves */
    uint32_t list;        /* work requests of one post call */
    uint32_t bidir, check, events;
    uint32_t timeout;     /* ACK timeout code, 0: the context's deadline */
    uint32_t retries;     /* after a timeout */
    /* WRITE latency: the server watches its memory, and its helper thread runs the library. */
    uint32_t no_progress;
    uint64_t max_size;    /* largest message of all runs */
    uint64_t token;       /* that the connections of all threads of a client have */
};

/* XRC and DC: what receives, a queue pair of its own, with an SRQ. */
struct target {
    gdrc_qp qp;
    gdrc_srq srq;
    uint32_t srqn;        /* XRC: the SRQ's number */
    uint64_t key;         /* DC: the access key */
};

/* A queue pair and its outstanding requests. */
struct lane {
    gdrc_qp qp;
    gdrc_qp_fast *fast; /* for the measured loops; NULL: not yet */
    struct gdrc_endpoint local, remote; /* XRC, DC: of the targets */
    struct target target;
    /* XRC, DC: of the queue pairs that send. */
    struct gdrc_endpoint initiator, remote_initiator;
    uint32_t remote_srqn; /* XRC: of the peer's SRQ */
    uint64_t remote_key;  /* DC: of the peer's target */
    gdrc_ah ah;           /* UD, DC */
    uint8_t *tx, *rx;     /* first slot of each; addresses only, where the buffer is a GPU's */
    uint64_t tx_addr, rx_addr, peer_rx_addr;
    uint64_t posted, done, received;
    uint64_t pending;     /* completions still to come */
};

/* One end. */
struct side {
    struct gx_dev *dev;
    const struct plan *plan;
    gdrc_cq cq;
    gdrc_cq_fast *cq_fast;
    gdrc_mr mr;
    struct gdrc_mr_attr mr_attr;
    struct gx_mem mem;
    uint8_t *scratch;     /* a message, where the buffer is a GPU's */
    uint64_t words[MAX_LIST]; /* what ATOMIC WRITEs of one post call store */
    gdrc_xrcd xrcd;       /* XRC */
    struct lane *lanes;
    uint32_t tx_slots, rx_slots;
    size_t stride;
    /* The current run. */
    uint64_t size, goal;  /* bytes; messages per lane, which a timed run raises */
    bool active;          /* sends (bandwidth), or begins (latency) */
    uint64_t end_ns;      /* a timed run posts until then, 0: until the goal */
    uint64_t stop_ns;     /* when a signal requested the end of the run, 0: not yet */
    uint64_t stop_done;   /* messages of all lanes that were complete then */
    uint64_t finished;    /* lanes whose goal is reached */
    uint64_t bad;         /* messages with wrong data */
    uint64_t moved_ns;    /* time of the last progress */
    uint64_t idle;        /* empty polls since */
    int conn_fd;          /* to the other end; ends a sleep as well; -1: none */
    bool readable;        /* it is readable */
    /* In ticks of the processor until the run ends, then in ns. */
    uint64_t *samples, sample_count, sample_max, last_ticks;
    uint64_t begin_ns, begin_ticks;
    bool same;            /* latency: all requests are equal except for their number */
    gdrc_send_wr wr;
    gdrc_sge sge;
    bool refill;          /* latency: post a receive when the answer has left */
    uint64_t refill_slot;
};

/* What one end measured. */
struct outcome {
    uint64_t messages, bytes, ns, received, bad;
    /* Not 0: a signal ended the run, so the other end must not continue to its goal. */
    uint64_t stopped;
};

enum format { FORMAT_TABLE, FORMAT_JSON };

/* The command line. */
struct options {
    struct plan plan;
    const char *device, *host, *memory;
    uint64_t port, gid_index, size, iterations, duration_s;
    bool all, histogram, keep, has_test, both_ends;
    enum format format;
};

/* What one thread of an end works with. */
struct member {
    const struct options *o;
    const struct plan *plan;
    uint32_t index;
    struct gx_dev *dev;  /* that of all threads, or its own */
    struct gx_dev *far;  /* that of the other end, where it is in this process */
    struct gx_dev own, own_far;
    struct side a, b;    /* b: the other end, where it is in this process */
    struct gx_conn conn; /* to the other end, where it is in another */
    int (*work)(struct member *m);
    int err;
};

/* crew.c */
/* Runs the work of all, the first one in this thread. Returns the first error. */
int crew_run(struct member *members, uint32_t count);
/* Waits for all others of the crew; an error: one has left. */
int crew_meet(void);
/* This thread comes to no further meeting. */
void crew_leave(int err);
/* Waits for the outcomes of all, and adds them. `err`: how this one's run ended. */
int crew_sum(uint32_t index, int err, struct outcome *mine, struct outcome *theirs);

/* run.c */
enum { MSG_PLAN = GX_MSG_PROGRAM, MSG_RUN, MSG_RESULT };
int recv_in_step(struct gx_conn *conn, unsigned type, void *body, size_t capacity,
                 const char *what);
void print_reason(struct gx_conn *conn, const uint8_t *text, int length);
int run_client(struct side *side, struct side *other, struct gx_conn *conn,
               const struct options *o, uint64_t size, uint64_t goal, struct outcome *mine,
               struct outcome *theirs);
int run_server(struct side *side, struct gx_conn *conn, uint64_t size, uint64_t goal,
               uint64_t duration);

/* side.c */
/* Whether a type of queue pair sends only, and targets receive: XRC and DC. */
bool has_targets(uint32_t qp_type);
/* Whether each message is acknowledged and comes once: all but UC and UD. */
bool is_reliable(uint32_t qp_type);
/* `kind`: of the buffer, for gx_mem_alloc; each end chooses its own. */
int side_open(struct side *side, struct gx_dev *dev, const struct plan *plan, const char *kind);
/* Exchanges endpoints over the connection and connects every queue pair. */
int side_connect(struct side *side, struct gx_conn *conn);
/* The same for two sides of one process. */
int side_connect_pair(struct side *a, struct side *b);
void side_close(struct side *side);
int side_post_recv(struct side *side, uint32_t lane, uint64_t number);
/* Limits of a device that the plan needs. */
void plan_config(const struct plan *plan, uint32_t sides, struct gdrc_config *config);
/* Largest message that this plan's transport carries, once connected. */
uint64_t side_largest(const struct side *side);

/* traffic.c */
void traffic_begin(struct side *side, uint64_t size, uint64_t goal, bool active,
                   uint64_t duration_ns);
/*
 * Lowers the goal to the number posted: the run ends as soon as these are complete, or with -EINTR
 * if nothing completes.
 */
void traffic_stop(struct side *side);
/*
 * A bounded piece of work. Returns 1 when this end has reached its goal, 0 if not yet, or a
 * negative errno (printed).
 */
int traffic_step(struct side *side);
/*
 * After the goal: lets the peer finish. Returns 1 if nothing came and nothing of ours is
 * outstanding, 0, or a negative errno.
 */
int traffic_rest(struct side *side);
/*
 * Checks the messages that WRITEs have left in our memory, where they are to be checked. Both ends
 * have ended: a message that is still on its way is not whole.
 */
void traffic_check(struct side *side);
/* The outcome of a run. */
void traffic_end(struct side *side, uint64_t start_ns, uint64_t end_ns, struct outcome *out);

/* report.c */
void report_head(const struct plan *plan, enum format format, const char *device, const char *peer);
void report_latency(const struct plan *plan, enum format format, uint64_t size, uint64_t *samples,
                    uint64_t count, bool histogram);
void report_bandwidth(const struct plan *plan, enum format format, uint64_t size,
                      const struct outcome *mine, const struct outcome *theirs);
/* `interrupted`: the last row only covers the time until a signal came. */
void report_tail(enum format format, bool interrupted);
const char *verb_name(uint32_t verb);
const char *type_name(uint32_t qp_type);

#endif
