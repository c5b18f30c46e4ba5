// SPDX-License-Identifier: MIT OR Apache-2.0
/* The measured loops, cut into steps that never wait: one thread may run one end or both. */
#include "perf.h"

#include <errno.h>
#include <sched.h>
#include <string.h>

#define POLL 16
/*
 * Without a completion for so long a run has failed. Where the library ends requests of a silent
 * peer itself, only one that never posts a receive takes so long; and on a crowded machine a
 * completion for a megabyte or more may.
 */
#define SILENCE_NS 10000000000u
#define SILENCE_RELIABLE_NS 60000000000u
/* After a signal the run ends when nothing completes for this long, or after this long in all. */
#define STOP_SILENCE_NS 1000000000u
#define STOP_NS 10000000000u
/* Empty polls between two clock reads. */
#define IDLE_LOOK 4096u
/* With fewer free cores than ends, the peer may be waiting for ours. */
#define YIELD_IDLE 256u
#define UD_GRH 40u
/* Memory reads in one step of a target that only watches: some microseconds. */
#define WATCH 4096u
/* The same between two polls of an end whose memory its peer writes by itself. */
#define LOOKS 256u
#define MARK 0xa5c3ull

/* number % of, without a division in the usual case. */
static uint64_t wrap(uint64_t number, uint64_t of)
{
    return of & (of - 1) ? number % of : number & (of - 1);
}

/* ---- data to check --------------------------------------------------------------------------- */

static uint64_t pattern(uint64_t number, uint64_t lane, uint64_t word)
{
    uint64_t x = (number + 1) * 0x9e3779b97f4a7c15ull + lane * 0xc2b2ae3d27d4eb4full +
                 word * 0x165667b19e3779f9ull;
    return x ^ x >> 29;
}

/* The first word identifies the message, so that the reader knows the rest. */
static uint64_t word_at(uint64_t number, uint64_t lane, size_t i)
{
    return i ? pattern(number, lane, i) : MARK << 48 | number;
}

static void fill(uint8_t *at, size_t size, uint64_t number, uint64_t lane)
{
    for (size_t i = 0; i * 8 < size; i++) {
        uint64_t word = word_at(number, lane, i);
        memcpy(at + i * 8, &word, size - i * 8 < 8 ? size - i * 8 : 8);
    }
}

static bool matches(const uint8_t *at, size_t size, uint64_t number, uint64_t lane)
{
    for (size_t i = 0; i * 8 < size; i++) {
        uint64_t word = word_at(number, lane, i);
        if (memcmp(at + i * 8, &word, size - i * 8 < 8 ? size - i * 8 : 8))
            return false;
    }
    return true;
}

/* Whatever message is there must be whole. A slot never written is no error. */
static bool whole(const uint8_t *at, size_t size, uint64_t lane)
{
    uint64_t head;
    memcpy(&head, at, sizeof head);
    return head == 0 || (head >> 48 == MARK && matches(at, size, head & 0xffffffffffffull, lane));
}

/* The buffer's contents, in memory that the CPU can read. NULL: the copy failed (printed). */
static const uint8_t *look_at(struct side *side, const uint8_t *at, size_t size)
{
    if (!side->mem.gpu)
        return at;
    return gx_mem_read(&side->mem, (size_t)(at - (const uint8_t *)side->mem.addr), side->scratch,
                       size)
               ? NULL
               : side->scratch;
}

/* Memory where a message for the buffer is composed, and its way there. */
static uint8_t *compose_at(struct side *side, uint8_t *at)
{
    return side->mem.gpu ? side->scratch : at;
}
static void put_at(struct side *side, uint8_t *at, size_t size)
{
    if (side->mem.gpu &&
        gx_mem_write(&side->mem, (size_t)(at - (uint8_t *)side->mem.addr), side->scratch, size))
        side->bad++;
}

static void clear_at(struct side *side, uint8_t *at, size_t size)
{
    if (gx_mem_fill(&side->mem, (size_t)(at - (uint8_t *)side->mem.addr), 0, size))
        side->bad++;
}

static bool checks(const struct side *side) { return side->plan->check && side->size >= 8; }

static void check_received(struct side *side, const gdrc_wc *wc, uint32_t index, uint64_t slot)
{
    const struct plan *plan = side->plan;
    bool ud = plan->qp_type == GDRC_QPT_UD;
    const uint8_t *at = side->lanes[index].rx + slot * side->stride + (ud ? UD_GRH : 0);
    if (wc->byte_len != side->size + (ud ? UD_GRH : 0))
        side->bad++;
    else if (checks(side)) {
        at = look_at(side, at, side->size);
        if (!at || !(is_reliable(plan->qp_type)
                         ? matches(at, side->size, side->lanes[index].received, index)
                         : whole(at, side->size, index)))
            side->bad++;
    }
}

static void check_fetched(struct side *side, uint32_t index, uint64_t number)
{
    const uint8_t *at = side->lanes[index].tx + number % side->tx_slots * side->stride;
    uint64_t old;
    if (!(at = look_at(side, at, side->size))) {
        side->bad++;
        return;
    }
    memcpy(&old, at, sizeof old);
    if (side->plan->verb == VERB_ATOMIC ? old != number
                                        : !matches(at, side->size, number % side->rx_slots, index))
        side->bad++;
}

/*
 * ---- posting and polling -----------------------------------------------------------------------
 */

static uint32_t opcode(const struct plan *plan)
{
    switch (plan->verb) {
    case VERB_SEND:
        return GDRC_WR_SEND;
    case VERB_WRITE:
        return GDRC_WR_RDMA_WRITE;
    case VERB_READ:
        return GDRC_WR_RDMA_READ;
    case VERB_ATOMIC_WRITE:
        return GDRC_WR_ATOMIC_WRITE;
    case VERB_FLUSH:
        return GDRC_WR_FLUSH;
    default:
        return plan->atomic == ATOMIC_CMP_SWAP ? GDRC_WR_ATOMIC_CMP_AND_SWP
                                               : GDRC_WR_ATOMIC_FETCH_AND_ADD;
    }
}

/*
 * Sets the fields in which requests of a lane differ, if nothing else does. Returns whether the
 * request is signalled.
 */
static bool number_it(const struct side *side, uint32_t index, uint64_t number, gdrc_send_wr *wr)
{
    uint64_t before = wrap(number, side->plan->cq_mod);
    bool told = before + 1 == side->plan->cq_mod || number + 1 == side->goal;
    wr->send_flags =
        told ? wr->send_flags | GDRC_SEND_SIGNALED : wr->send_flags & ~(uint32_t)GDRC_SEND_SIGNALED;
    /* Number of requests that its completion ends. */
    wr->wr_id = (uint64_t)index << 48 | (told ? before + 1 : 0);
    return told;
}

static void build(struct side *side, uint32_t index, uint64_t number, gdrc_send_wr *wr,
                  gdrc_sge *sge)
{
    const struct plan *plan = side->plan;
    struct lane *lane = &side->lanes[index];
    size_t from = wrap(number, side->tx_slots) * side->stride,
           to = wrap(number, side->rx_slots) * side->stride;
    bool out = plan->verb == VERB_SEND || plan->verb == VERB_WRITE;
    sge->addr = lane->tx_addr + from;
    /* Inline data is read by address, whatever the region's iova. */
    bool put_inline = out && !side->mem.gpu && side->size <= plan->inline_max;
    if (put_inline)
        sge->addr = (uint64_t)(uintptr_t)(lane->tx + from);
    if (plan->verb == VERB_ATOMIC_WRITE) {
        /* So are the bytes of an ATOMIC WRITE. */
        uint64_t *word = &side->words[wrap(number, MAX_LIST)];
        *word = word_at(number, index, 0);
        sge->addr = (uint64_t)(uintptr_t)word;
    }
    sge->length = (uint32_t)side->size;
    sge->lkey = side->mr_attr.lkey;
    wr->next = NULL;
    wr->sg_list = sge;
    wr->num_sge = 1;
    wr->opcode = opcode(plan);
    wr->send_flags = put_inline ? GDRC_SEND_INLINE : 0;
    wr->imm_data = 0;
    number_it(side, index, number, wr);
    if (plan->verb == VERB_ATOMIC) {
        wr->wr.atomic = (gdrc_atomic_wr){
            .remote_addr = lane->peer_rx_addr,
            .rkey = lane->remote.rkey,
            .compare_add = plan->atomic == ATOMIC_CMP_SWAP ? number : 1,
            .swap = number + 1,
        };
    } else if (plan->verb == VERB_FLUSH) {
        wr->wr.flush = (gdrc_flush_wr){
            .remote_addr = lane->peer_rx_addr + to,
            .rkey = lane->remote.rkey,
            .placement = GDRC_FLUSH_GLOBAL,
            .length = side->size,
            .level = GDRC_FLUSH_RANGE,
        };
    } else if (plan->qp_type == GDRC_QPT_UD) {
        wr->wr.ud = (gdrc_ud_wr){
            .ah = lane->ah,
            .remote_qpn = lane->remote.qpn,
            .remote_qkey = lane->remote.qkey,
        };
    } else {
        wr->wr.rdma =
            (gdrc_rdma_wr){ .remote_addr = lane->peer_rx_addr + to, .rkey = lane->remote.rkey };
    }
    if (plan->qp_type == GDRC_QPT_XRC_SEND)
        wr->remote_srqn = lane->remote_srqn;
    else if (plan->qp_type == GDRC_QPT_DCI)
        wr->ext.dc = (gdrc_dc_wr){
            .ah = lane->ah,
            .dc_key = lane->remote_key,
            .dctn = lane->remote.qpn,
        };
    if (out && checks(side)) {
        fill(compose_at(side, lane->tx + from), side->size, number, index);
        put_at(side, lane->tx + from, side->size);
    }
}

static int explain(struct side *side, int err)
{
    gx_explain_call(side->dev, err, "posting");
    return err;
}

/* Posts up to `count` more. Returns the number. */
static int post(struct side *side, uint32_t index, uint64_t count)
{
    gdrc_send_wr wr[MAX_LIST];
    gdrc_sge sge[MAX_LIST];
    const gdrc_send_wr *bad = NULL;
    struct lane *lane = &side->lanes[index];
    int n = (int)(count < side->plan->list ? count : side->plan->list);
    for (int i = 0; i < n; i++) {
        build(side, index, lane->posted + (uint64_t)i, &wr[i], &sge[i]);
        if (i)
            wr[i - 1].next = &wr[i];
    }
    int err = gdrc_qp_fast_post_send(lane->fast, wr, &bad);
    if (err == -EAGAIN)
        n = (int)(bad - wr);
    else if (err)
        return explain(side, err);
    for (int i = 0; i < n; i++)
        lane->pending += (wr[i].send_flags & GDRC_SEND_SIGNALED) != 0;
    lane->posted += (uint64_t)n;
    return n;
}

/*
 * Posts one more of lane 0, where all requests are equal except for the number. Returns the number
 * posted.
 */
static int post_same(struct side *side)
{
    struct lane *lane = &side->lanes[0];
    bool told = number_it(side, 0, lane->posted, &side->wr);
    const gdrc_send_wr *bad;
    int err = gdrc_qp_fast_post_send(lane->fast, &side->wr, &bad);
    if (err)
        return err == -EAGAIN ? 0 : explain(side, err);
    lane->pending += told;
    lane->posted++;
    return 1;
}

static int take(struct side *side, const gdrc_wc *wc)
{
    bool is_recv = wc->wr_id >> 63;
    uint32_t index = (uint32_t)(wc->wr_id >> 48) & 0x7fff;
    uint64_t low = wc->wr_id & 0xffffffffffffull;
    struct lane *lane = &side->lanes[index];
    if (wc->status != GDRC_WC_SUCCESS) {
        gx_explain_wc(side->dev, lane->qp, wc, is_recv ? "RECV" : verb_name(side->plan->verb));
        return -EIO;
    }
    if (is_recv) {
        check_received(side, wc, index, low);
        lane->received++;
        /*
         * A due answer goes first, because the peer waits for it. Another receive is posted
         * already.
         */
        if (side->plan->mode == MODE_LAT && side->plan->rx_depth > 1 && !side->refill) {
            side->refill = true;
            side->refill_slot = low;
            return 0;
        }
        int err = side_post_recv(side, index, low);
        return err ? explain(side, err) : 0;
    }
    if (side->plan->check &&
        (side->plan->verb == VERB_ATOMIC || (side->plan->verb == VERB_READ && checks(side))))
        for (uint64_t i = 0; i < low; i++)
            check_fetched(side, index, lane->done + i);
    lane->pending--;
    lane->done += low;
    if (lane->done == side->goal)
        side->finished++;
    return 0;
}

static int look_at_clock(struct side *side, bool moved)
{
    uint64_t now = gx_now_ns();
    if (moved || !side->moved_ns)
        side->moved_ns = now;
    /*
     * A passive end waits for as long as its peer wants: the connection shows when the peer has
     * gone.
     */
    bool reliable = is_reliable(side->plan->qp_type);
    uint64_t silence = reliable ? SILENCE_RELIABLE_NS : SILENCE_NS;
    if (side->active && now - side->moved_ns > silence) {
        gx_error(reliable
                     ? "The other side may be stopped, or the network in between is down."
                     : "UC and UD do not repeat what the network lost: try again, or take RC.",
                 "nothing came for %d s", (int)(silence / 1000000000u));
        return -ETIMEDOUT;
    }
    uint64_t since = side->moved_ns > side->stop_ns ? side->moved_ns : side->stop_ns;
    return side->stop_ns && (now - since > STOP_SILENCE_NS || now - side->stop_ns > STOP_NS)
               ? -EINTR
               : 0;
}

/* Polls completions; runs the engine if there are none. Returns their number. */
static int poll_some(struct side *side)
{
    gdrc_wc wc[POLL];
    int n = gdrc_cq_fast_poll(side->cq_fast, POLL, wc), err = 0;
    if (n < 0) {
        gx_explain_call(side->dev, n, "polling");
        return n;
    }
    for (int i = 0; i < n && !err; i++)
        err = take(side, &wc[i]);
    if (n) {
        if (side->idle > IDLE_LOOK)
            side->moved_ns = 0;
        side->idle = 0;
    } else {
        if (++side->idle % IDLE_LOOK == 0)
            err = look_at_clock(side, side->idle == IDLE_LOOK);
        if (!err && side->plan->events && side->idle > 64 && !gx_stopping) {
            struct pollfd p = { .fd = side->conn_fd, .events = POLLIN };
            err = gx_sleep(side->dev->ctx, &side->cq, &p, side->conn_fd >= 0, 10);
            side->readable |= err > 0;
            /* The caller checks for the signal itself. */
            err = err == -EINTR ? 0 : err;
        } else if (side->idle % YIELD_IDLE == 0)
            sched_yield();
    }
    return err < 0 ? err : n;
}

/*
 * ---- the loops ---------------------------------------------------------------------------------
 */

/* Whether the last byte of the next WRITE has come, in up to so many looks. */
static bool comes(const struct side *side, unsigned looks)
{
    const struct lane *lane = &side->lanes[0];
    const uint8_t *last = lane->rx + side->size - 1;
    /* Acquire: all bytes written before the last one are visible, too. */
    while (looks && __atomic_load_n(last, __ATOMIC_ACQUIRE) != (uint8_t)(lane->received + 1))
        looks--;
    return looks;
}

/* Work of a target that leaves everything to the helper thread. It never yields its core. */
static int watch(struct side *side)
{
    side->idle = comes(side, WATCH) ? 0 : side->idle + 1;
    return gx_stopping ? -EINTR : 0;
}

/*
 * The processor's own counter where reading it is cheap: reading the clock takes a tenth of the
 * time of a message over shared memory. `traffic_end` converts to nanoseconds by the advance of
 * both during the run.
 */
static uint64_t ticks(void)
{
#if defined(__x86_64__)
    return __builtin_ia32_rdtsc();
#else
    return gx_now_ns();
#endif
}

static void sample(struct side *side)
{
    uint64_t now = ticks();
    if (side->last_ticks && side->sample_count < side->sample_max)
        side->samples[side->sample_count++] = now - side->last_ticks;
    side->last_ticks = now;
    if (side->end_ns && gx_now_ns() >= side->end_ns)
        side->goal = side->lanes[0].posted;
}

/* Posts the receive that was delayed. */
static int refill(struct side *side)
{
    if (!side->refill)
        return 0;
    side->refill = false;
    int err = side_post_recv(side, 0, side->refill_slot);
    return err ? explain(side, err) : 0;
}

static int begin_round(struct side *side)
{
    struct lane *lane = &side->lanes[0];
    if (side->plan->verb == VERB_WRITE)
        lane->tx[side->size - 1] = (uint8_t)(lane->posted + 1);
    int n = side->same ? post_same(side) : post(side, 0, 1);
    return n < 0 ? n : refill(side);
}

static int step_latency(struct side *side)
{
    const struct plan *plan = side->plan;
    struct lane *lane = &side->lanes[0];
    bool memory = plan->verb == VERB_WRITE, answered;
    uint64_t *back = plan->verb >= VERB_READ ? &lane->done : &lane->received;
    /*
     * Shared memory is written by a peer of this host itself: there this end looks several times
     * before it polls. perftest's ib_write_lat never polls while it waits.
     */
    if (memory && lane->received < lane->posted + !side->active &&
        comes(side, side->mem.fd >= 0 ? LOOKS : 1))
        lane->received++;
    answered = side->active ? *back == lane->posted : *back > lane->posted;
    if (!answered && plan->no_progress && !side->active)
        return watch(side);
    if (!answered || lane->posted - lane->done >= plan->tx_depth) {
        int n = poll_some(side);
        if (n <= 0)
            return n;
        answered = side->active ? *back == lane->posted : *back > lane->posted;
        if (!answered || lane->posted - lane->done >= plan->tx_depth)
            return 0;
    }
    if (side->active && lane->posted >= side->goal) {
        sample(side);
        int err = refill(side);
        return err ? err : 1;
    }
    int err = begin_round(side);
    /* Now the answer is under way, and reading the clock delays nothing. */
    if (side->active && !err)
        sample(side);
    return err;
}

/* Lowers the goal to the smallest that every queue pair can still reach. */
static void lower_goal(struct side *side)
{
    /* Whole groups, so that the last request of each queue pair is a signalled one. */
    uint64_t most = 0, goal;
    for (uint32_t i = 0; i < side->plan->qps; i++)
        most = side->lanes[i].posted > most ? side->lanes[i].posted : most;
    goal =
        side->plan->mode == MODE_LAT ? most : (most / side->plan->cq_mod + 1) * side->plan->cq_mod;
    side->goal = goal < side->goal ? goal : side->goal;
    side->end_ns = 0;
}

static void end_of_time(struct side *side)
{
    if (side->end_ns && gx_now_ns() >= side->end_ns)
        lower_goal(side);
}

void traffic_stop(struct side *side)
{
    if (side->stop_ns)
        return;
    side->stop_ns = gx_now_ns();
    for (uint32_t i = 0; i < side->plan->qps; i++)
        side->stop_done += side->lanes[i].done;
    lower_goal(side);
}

static int step_bandwidth(struct side *side)
{
    const struct plan *plan = side->plan;
    for (uint32_t i = 0; i < plan->qps && side->active; i++) {
        struct lane *lane = &side->lanes[i];
        for (;;) {
            uint64_t room = plan->tx_depth - (lane->posted - lane->done),
                     left = side->goal - lane->posted;
            uint64_t want = room < left ? room : left;
            if (!want || (want < plan->list && want < left))
                break;
            int n = post(side, i, want);
            if (n < 0)
                return n;
            if (n == 0)
                break;
        }
    }
    end_of_time(side);
    int n = poll_some(side);
    if (n < 0)
        return n;
    return side->active && side->finished == plan->qps;
}

void traffic_begin(struct side *side, uint64_t size, uint64_t goal, bool active,
                   uint64_t duration_ns)
{
    const struct plan *plan = side->plan;
    side->size = size;
    side->goal = duration_ns ? UINT64_MAX / 2 : goal;
    side->active = active;
    side->finished = side->bad = side->idle = side->moved_ns = side->last_ticks =
        side->sample_count = 0;
    side->stop_ns = side->stop_done = 0;
    side->readable = false;
    side->same = plan->mode == MODE_LAT && plan->verb != VERB_ATOMIC && !checks(side);
    if (side->same)
        build(side, 0, 0, &side->wr, &side->sge);
    side->begin_ns = gx_now_ns();
    side->begin_ticks = ticks();
    side->end_ns = duration_ns ? side->begin_ns + duration_ns : 0;
    for (uint32_t i = 0; i < plan->qps; i++) {
        struct lane *lane = &side->lanes[i];
        lane->posted = lane->done = lane->received = 0;
        /* The byte that a WRITE's target watches, and the word of an atomic. */
        clear_at(side, lane->rx, plan->verb == VERB_ATOMIC ? 8 : size);
        for (uint32_t slot = 0; plan->check && plan->verb != VERB_ATOMIC && slot < side->rx_slots;
             slot++) {
            uint8_t *at = lane->rx + slot * side->stride;
            clear_at(side, at, side->stride);
            if (plan->verb == VERB_READ) {
                fill(compose_at(side, at), size, slot, i);
                put_at(side, at, size);
            }
        }
    }
}

int traffic_step(struct side *side)
{
    if (side->plan->mode == MODE_BW)
        return step_bandwidth(side);
    if (side->active || side->plan->verb <= VERB_WRITE)
        return step_latency(side);
    int n = poll_some(side);
    return n < 0 ? n : 0;
}

int traffic_rest(struct side *side)
{
    int n = poll_some(side);
    for (uint32_t i = 0; i < side->plan->qps && n >= 0; i++)
        if (side->lanes[i].pending)
            return 0;
    return n < 0 ? n : n == 0;
}

static bool slot_is_whole(struct side *side, uint32_t index, uint32_t slot)
{
    const uint8_t *at = look_at(side, side->lanes[index].rx + slot * side->stride, side->size);
    return at && whole(at, side->size, index);
}

static void samples_in_ns(struct side *side)
{
    uint64_t went = ticks() - side->begin_ticks;
    double each = went ? (double)(gx_now_ns() - side->begin_ns) / (double)went : 1;
    for (uint64_t i = 0; i < side->sample_count; i++)
        side->samples[i] = (uint64_t)((double)side->samples[i] * each + 0.5);
}

void traffic_check(struct side *side)
{
    const struct plan *plan = side->plan;
    bool placed = (plan->verb == VERB_WRITE && plan->mode == MODE_BW) ||
                  plan->verb == VERB_ATOMIC_WRITE;
    for (uint32_t i = 0; placed && checks(side) && i < plan->qps; i++)
        for (uint32_t slot = 0; slot < side->rx_slots; slot++)
            side->bad += !slot_is_whole(side, i, slot);
}

void traffic_end(struct side *side, uint64_t start_ns, uint64_t end_ns, struct outcome *out)
{
    const struct plan *plan = side->plan;
    samples_in_ns(side);
    memset(out, 0, sizeof *out);
    out->ns = end_ns - start_ns;
    for (uint32_t i = 0; i < plan->qps; i++) {
        const struct lane *lane = &side->lanes[i];
        out->messages += lane->done;
        out->received += lane->received;
    }
    out->bytes = out->messages * side->size;
    out->bad = side->bad;
}
