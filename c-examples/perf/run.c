// SPDX-License-Identifier: MIT OR Apache-2.0
/* One run, at either end: the conversation about it, and the steps of the traffic. */
#include "perf.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* Datagrams may be under way when the sender is done: after this long without one they are lost. */
#define STRAGGLERS_NS 50000000u

#define OUTCOME_WORDS 6u
#define OUTCOME_BYTES (8u * OUTCOME_WORDS)

static void outcome_pack(const struct outcome *r, uint8_t *at)
{
    const uint64_t words[OUTCOME_WORDS] = { r->messages, r->bytes, r->ns,
                                            r->received, r->bad,   r->stopped };
    for (unsigned i = 0; i < OUTCOME_WORDS; i++)
        gx_put64(at + 8 * i, words[i]);
}

static void outcome_unpack(struct outcome *r, const uint8_t *at)
{
    uint64_t *const words[OUTCOME_WORDS] = { &r->messages, &r->bytes, &r->ns,
                                             &r->received, &r->bad,   &r->stopped };
    for (unsigned i = 0; i < OUTCOME_WORDS; i++)
        *words[i] = gx_get64(at + 8 * i);
}

/*
 * Waits for a message although a signal has come, so that both ends stay in step. Another signal
 * ends the wait.
 */
int recv_in_step(struct gx_conn *conn, unsigned type, void *body, size_t capacity,
                 const char *what)
{
    gx_allowed = gx_signals ? gx_signals : 1;
    int n = gx_conn_recv(conn, type, body, capacity, GX_TIMEOUT_MS, what);
    gx_allowed = 0;
    return n;
}

/* Prints the other end's reason to give up, if it has sent one. */
void print_reason(struct gx_conn *conn, const uint8_t *text, int length)
{
    fprintf(stderr, "%s: %s says: ", gx_program, conn->peer);
    gx_print_bytes(stderr, text, (size_t)length, 500);
    fputc('\n', stderr);
}

/*
 * Checks for a message without waiting. Returns 1 and its body, 0, or a negative errno (printed).
 */
static int look(struct gx_conn *conn, unsigned type, uint8_t *body, size_t length)
{
    unsigned got = 0;
    uint8_t buffer[GX_BODY_MAX];
    gx_conn_pump(conn);
    int n = gx_conn_take(conn, &got, buffer, sizeof buffer);
    if (n == -EAGAIN)
        return 0;
    if (n >= 0 && got == type && (size_t)n == length) {
        memcpy(body, buffer, length);
        return 1;
    }
    if (n >= 0 && got == GX_MSG_ERROR)
        print_reason(conn, buffer, n);
    gx_error("Its own output says why.", "%s %s", conn->peer,
             n >= 0 && got == GX_MSG_ERROR ? "gave up"
             : n == -ECONNRESET            ? "closed the connection"
                                           : "does not speak this program's protocol");
    return n < 0 ? n : got == GX_MSG_ERROR ? -EREMOTEIO : -EPROTO;
}

/*
 * Steps between two checks of the connection: a system call that must not affect the result. A step
 * of bandwidth is up to the depth of its queues.
 */
#define LOOK_IDLE 512u
static uint64_t look_steps(const struct plan *plan)
{
    return plan->mode == MODE_BW ? 1024u : 65536u;
}

/* Whether the connection is to be checked now. */
static bool is_time_to_look(struct side *side, uint64_t steps, uint64_t often)
{
    bool readable = side->readable;
    side->readable = false;
    return readable || steps % often == 0 || side->idle % LOOK_IDLE == LOOK_IDLE - 1;
}

/*
 * A run that a signal ended: counts what was complete when the signal came. Nothing is known of the
 * other end.
 */
static int cut(struct side *side, uint64_t start, struct outcome *mine, struct outcome *theirs)
{
    uint64_t end = side->stop_ns ? side->stop_ns : gx_now_ns(), done = side->stop_done;
    bool known = side->stop_ns != 0;
    memset(theirs, 0, sizeof *theirs);
    traffic_end(side, start, end, mine);
    mine->messages = known ? done : mine->messages;
    /* UC and UD count the messages that the other end has received. */
    theirs->received = mine->messages;
    return -EINTR;
}

/*
 * One run, at the client; `conn` NULL: `other` is the second end in this process. -EINTR: a signal
 * ended it early, but both outcomes are filled in.
 */
int run_client(struct side *side, struct side *other, struct gx_conn *conn,
               const struct options *o, uint64_t size, uint64_t goal, struct outcome *mine,
               struct outcome *theirs)
{
    const struct plan *plan = side->plan;
    uint8_t body[OUTCOME_BYTES];
    uint64_t duration = o->duration_s * 1000000000u, start, end = 0, other_end = 0,
             often = look_steps(plan);
    int err = 0, got = 0;
    traffic_begin(side, size, goal, true, duration);
    if (other) {
        traffic_begin(other, size, goal, plan->bidir, duration);
    } else {
        gx_put64(body, size), gx_put64(body + 8, goal), gx_put64(body + 16, duration);
        err = gx_conn_send(conn, MSG_RUN, body, 24, -1, "a run");
        if (err || (err = recv_in_step(conn, GX_MSG_READY, NULL, 0, "readiness")) < 0)
            return err;
    }
    if ((err = crew_meet()))
        return err;
    start = gx_now_ns();
    for (uint64_t steps = 1; !end; steps++) {
        if (gx_stopping) {
            traffic_stop(side);
            if (other)
                traffic_stop(other);
        }
        if ((err = traffic_step(side)) < 0)
            return err == -EINTR ? cut(side, start, mine, theirs) : err;
        if (err)
            end = gx_now_ns();
        if (other && (err = other_end ? traffic_rest(other) : traffic_step(other)) < 0)
            return err;
        if (other && err && !other_end)
            other_end = gx_now_ns();
        if (!other && is_time_to_look(side, steps, often)) {
            gx_conn_pump(conn);
            if (conn->hangup)
                return look(conn, MSG_RESULT, body, sizeof body);
        }
    }
    if (other) {
        int quiet = 0;
        while (quiet < 2) {
            if (gx_stopping) {
                traffic_stop(side);
                traffic_stop(other);
            }
            if ((err = traffic_rest(side)) < 0)
                return err == -EINTR ? cut(side, start, mine, theirs) : err;
            quiet = err ? quiet + 1 : 0;
            if ((err = plan->bidir && !other_end ? traffic_step(other) : traffic_rest(other)) < 0)
                return err;
            if (err && !other_end)
                other_end = gx_now_ns();
            quiet = err ? quiet : 0;
        }
        traffic_check(side);
        traffic_check(other);
        traffic_end(side, start, end, mine);
        traffic_end(other, start, other_end ? other_end : end, theirs);
        return 0;
    }
    traffic_end(side, start, end, mine);
    mine->stopped = side->stop_ns != 0;
    outcome_pack(mine, body);
    err = gx_conn_send(conn, MSG_RESULT, body, sizeof body, -1, "a result");
    /* The server may need to continue: it needs our receives, and our memory. */
    for (bool quiet = false; !err && !(got && quiet);) {
        if (gx_stopping)
            traffic_stop(side);
        int n = traffic_rest(side);
        err = n < 0 ? n : 0;
        quiet = n == 1;
        if (!got && !err && (side->idle % 16 == 15 || side->readable) &&
            (got = look(conn, MSG_RESULT, body, sizeof body)) < 0)
            err = got;
    }
    if (err == -EINTR)
        theirs->received = mine->messages;
    if (err)
        return err;
    outcome_unpack(theirs, body);
    /* Not before the server has ended: it writes our memory until then. */
    traffic_check(side);
    mine->received = 0;
    for (uint32_t i = 0; i < plan->qps; i++)
        mine->received += side->lanes[i].received;
    mine->bad = side->bad;
    return 0;
}

/* One run, at the server. */
int run_server(struct side *side, struct gx_conn *conn, uint64_t size, uint64_t goal,
               uint64_t duration)
{
    const struct plan *plan = side->plan;
    uint8_t body[OUTCOME_BYTES];
    struct outcome mine, theirs;
    bool active = plan->bidir, all_sent = !active;
    uint64_t start, end = 0, quiet_since = 0, received = 0, often = look_steps(plan);
    int got = 0, err;
    traffic_begin(side, size, goal, active, duration);
    err = gx_conn_send(conn, GX_MSG_READY, NULL, 0, -1, "readiness");
    start = gx_now_ns();
    for (uint64_t steps = 1; !err && !(got && all_sent); steps++) {
        if (gx_stopping)
            return -EINTR;
        err = all_sent && active ? traffic_rest(side) : traffic_step(side);
        if (err > 0 && !all_sent)
            all_sent = true, end = gx_now_ns();
        err = err < 0 ? err : 0;
        if (!got && !err && is_time_to_look(side, steps, often) &&
            (got = look(conn, MSG_RESULT, body, sizeof body)) < 0)
            err = got;
        if (got > 0 && !all_sent) {
            outcome_unpack(&theirs, body);
            if (theirs.stopped)
                traffic_stop(side);
        }
    }
    if (err)
        return err;
    outcome_unpack(&theirs, body);
    /*
     * Messages that the client sent and we have not received yet: on RC they are here already,
     * elsewhere they may be lost.
     */
    for (;;) {
        if ((err = traffic_rest(side)) < 0)
            return err;
        uint64_t now = gx_now_ns(), sum = 0;
        for (uint32_t i = 0; i < plan->qps; i++)
            sum += side->lanes[i].received;
        if (sum != received || !quiet_since)
            quiet_since = now, received = sum;
        bool complete =
            plan->verb != VERB_SEND || sum >= theirs.messages || now - quiet_since > STRAGGLERS_NS;
        if (err && complete)
            break;
    }
    traffic_check(side);
    traffic_end(side, start, end ? end : gx_now_ns(), &mine);
    outcome_pack(&mine, body);
    return gx_conn_send(conn, MSG_RESULT, body, sizeof body, -1, "a result");
}
