// SPDX-License-Identifier: MIT OR Apache-2.0
/* The client's engine thread. See copy.h for the picture. */
#include "copy.h"

#include <arpa/inet.h>
#include <errno.h>
#include <inttypes.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

/* Short: while this thread polls in vain, the disk threads of both sides could use the core. */
#define SPIN_NS 10000u
/* Interval of checks of the side channel while data flows. */
#define LOOK_NS 10000000u
/* Slots after which it is known whether the server's memory is mapped here. */
#define TRIALS 64u
/* Time that an interrupted client waits for the server's place. */
#define STOP_NS 3000000000u

struct sender {
    const struct copy_options *o;
    struct gx_dev dev;
    struct gx_conn conn;
    struct gx_mem mem;
    gdrc_mr mr;
    struct gdrc_mr_attr attr;
    gdrc_cq cq;
    gdrc_qp qp;
    struct gdrc_endpoint remote;
    struct ring ring;
    struct walk walk;
    pthread_t reader;
    bool ring_made, reading;
    int wake_fd;
    uint32_t posted, completed, credited; /* slots: posted, acknowledged, emptied by the server */
    /*
     * A slot's bytes and its immediate are two requests, and the next slot waits for the completion
     * of this one. Where the server's memory is mapped, a WRITE with nothing before it is a copy
     * inside the post; elsewhere this would only keep the wire idle. The first slots show which one
     * it is.
     */
    bool one_by_one;
    uint64_t sent_bytes;
    uint64_t answers;                     /* number of the server's answers so far */
    uint64_t compared, told_ns; /* by the reader; time of our last sign of life */
    uint64_t alive_ns;                    /* time of the server's last sign of life */
};

static int post_credit_receives(struct sender *s, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++) {
        gdrc_recv_wr wr = { .wr_id = 0 };
        int err = gdrc_post_recv(s->dev.ctx, s->qp, &wr, NULL);
        if (err) {
            gx_explain_call(&s->dev, err, "posting a receive");
            return err;
        }
    }
    return 0;
}

static int connect_to_server(struct sender *s, uint64_t bytes)
{
    const struct copy_options *o = s->o;
    uint32_t depth = (uint32_t)o->depth, size = (uint32_t)o->size;
    uint8_t hello[20];
    char own[80];
    int err = o->device ? gx_dev_address(o->device, 0, own, sizeof own) : 0;
    if (!err)
        err = gx_tcp_connect(&s->conn, o->host, (uint16_t)o->port, o->device ? own : NULL,
                             GX_TIMEOUT_MS);
    if (!err && !o->device)
        err = gx_conn_local_address(&s->conn, own, sizeof own);
    if (!err)
        err = gx_dev_open(&s->dev, o->device ? o->device : own, 0, NULL);
    if (err)
        return err;
    s->conn.ctx = s->dev.ctx;
    err = gdrc_cq_create(s->dev.ctx, 2 * depth + 2, &s->cq, NULL);
    if (err) {
        gx_explain_call(&s->dev, err, "creating a CQ");
        return err;
    }
    err = gx_mem_alloc(&s->mem, "host", (size_t)size * depth, false);
    if (!err)
        err = gx_mr_register(&s->dev, s->mem.addr, s->mem.length, 0, &s->mr, &s->attr);
    /* The server never has more credits under way than there are slots. */
    if (!err)
        err = gx_qp_create(&s->dev, s->cq, 2 * depth, depth, 1, &s->qp, NULL);
    if (err)
        return err;
    s->one_by_one = s->dev.path_flags != GDRC_CONFIG_UDP_ONLY;
    gx_put32(hello, size);
    gx_put32(hello + 4, depth);
    gx_put64(hello + 8, bytes);
    gx_put32(hello + 16, o->flags);
    err = gx_conn_send(&s->conn, COPY_MSG_HELLO, hello, sizeof hello, -1, "the greeting");
    if (!err) {
        int n = gx_conn_recv(&s->conn, COPY_MSG_TARGET, s->walk.target, TARGET_BYTES, GX_TIMEOUT_MS,
                             "the server's folder");
        err = n < 0 ? n : 0;
        s->walk.has_target = n == (int)TARGET_BYTES && gx_get64(s->walk.target) != 0;
    }
    if (!err)
        err = gx_qp_handshake(&s->dev, s->qp, NULL, &s->conn, o->timeout_s, &s->remote);
    if (!err)
        err = post_credit_receives(s, depth);
    if (!err)
        err = gx_ready(&s->conn);
    if (!err && s->remote.length < (uint64_t)size * depth) {
        gx_error("Build both sides from one source.",
                 "the server offers a ring of %" PRIu64 " bytes", s->remote.length);
        err = -EPROTO;
    }
    return err;
}

/*
 * Number of our WRITEs that were copies into the peer's memory; 0 also if the library has no such
 * counters.
 */
static uint64_t copies(struct sender *s)
{
    uint64_t values[128], all = 0;
    int n = gdrc_qp_counters(s->dev.ctx, s->qp, values, sizeof values / sizeof *values);
    for (int i = 0; i < n; i++) {
        const char *name = gdrc_counter_name((uint32_t)i);
        if (!strcmp(name, "mapped_writes") || !strcmp(name, "carried_writes"))
            all += values[i];
    }
    return all;
}

static int post_slot(struct sender *s)
{
    uint32_t slot = s->posted % s->ring.depth, used = s->ring.used[slot];
    uint64_t offset = (uint64_t)slot * s->ring.size;
    gdrc_sge piece = { .addr = s->attr.iova + offset, .length = used, .lkey = s->attr.lkey };
    gdrc_send_wr told, wr;
    memset(&wr, 0, sizeof wr);
    wr.wr_id = s->posted;
    wr.sg_list = &piece;
    wr.num_sge = 1;
    wr.opcode = GDRC_WR_RDMA_WRITE_WITH_IMM;
    wr.send_flags = GDRC_SEND_SIGNALED;
    wr.imm_data = htonl(used);
    wr.wr.rdma.remote_addr = s->remote.addr + offset;
    wr.wr.rdma.rkey = s->remote.rkey;
    if (s->one_by_one) {
        memset(&told, 0, sizeof told);
        told.wr_id = s->posted;
        told.opcode = GDRC_WR_SEND_WITH_IMM;
        told.send_flags = GDRC_SEND_SIGNALED;
        told.imm_data = wr.imm_data;
        wr.opcode = GDRC_WR_RDMA_WRITE;
        wr.send_flags = 0;
        wr.next = &told;
    }
    int err = gdrc_post_send(s->dev.ctx, s->qp, &wr, NULL);
    if (err) {
        gx_explain_call(&s->dev, err, "posting a WRITE");
        return err;
    }
    s->posted++;
    if (s->posted == TRIALS && s->one_by_one)
        s->one_by_one = copies(s) > 0;
    return 0;
}

/* Whether the next slot may be posted. */
static bool may_post(struct sender *s)
{
    return s->posted != atomic_load_explicit(&s->ring.produced, memory_order_acquire) &&
           (!s->one_by_one || s->completed == s->posted);
}

/* Polls completions. Returns their number, or a negative errno. */
static int reap(struct sender *s)
{
    gdrc_wc wc[32];
    int n = gdrc_poll_cq(s->dev.ctx, s->cq, 32, wc);
    if (n < 0) {
        gx_explain_call(&s->dev, n, "polling");
        return n;
    }
    for (int i = 0; i < n; i++) {
        /*
         * The server may have closed because it has everything: its message on the side channel
         * decides.
         */
        if (wc[i].status == GDRC_WC_WR_FLUSH_ERR && s->completed == s->posted)
            continue;
        if (wc[i].status != GDRC_WC_SUCCESS) {
            gx_explain_wc(&s->dev, s->qp, &wc[i], "sending to the server");
            return -EIO;
        }
        if (wc[i].opcode == GDRC_WC_OP_RDMA_WRITE || wc[i].opcode == GDRC_WC_OP_SEND) {
            s->sent_bytes += s->ring.used[s->completed % s->ring.depth];
            s->completed++;
        } else if (wc[i].opcode == GDRC_WC_OP_RECV) {
            uint32_t credit = ntohl(wc[i].imm_data);
            /*
             * A server that gives more credit than slots were sent would have us overwrite slots
             * that it has not read.
             */
            if (credit - s->credited > s->posted - s->credited) {
                gx_error("Build both sides from one source.",
                         "the server gives credit for slots that were never sent");
                return -EPROTO;
            }
            s->credited = credit;
            int err = post_credit_receives(s, 1);
            if (err)
                return err;
        }
    }
    if (n) {
        /* A slot is free when the server has emptied it and no retransmission needs our copy. */
        ring_set_consumed(&s->ring,
                          (int32_t)(s->completed - s->credited) >= 0 ? s->credited : s->completed);
    }
    return n;
}

/*
 * Collects the server's answers to our offers, and passes them to the reader when they are
 * complete.
 */
static int take_answers(struct sender *s, const uint8_t *body, size_t length)
{
    struct walk *w = &s->walk;
    struct answer a;
    for (size_t at = 0; at + ANSWER_BYTES <= length; at += ANSWER_BYTES) {
        answer_get(body + at, &a);
        bool answered = atomic_load(&w->answered);
        /*
         * Once complete, the table belongs to the reader; and no server has more answers than there
         * were offers.
         */
        if (a.type == ANSWER_RESUMED && answered) {
            w->resumed_at = a.offset;
            atomic_store(&w->resumed, true);
        } else if (a.type == ANSWER_ALL && !answered) {
            atomic_store(&w->answered, true);
        } else if ((a.type == ANSWER_KEEP || a.type == ANSWER_PART) && !answered &&
                   s->answers++ < atomic_load(&w->files)) {
            if (known_add(&w->known, &a))
                return gx_error("Copy fewer files at once.", "out of memory"), -ENOMEM;
        } else {
            return -EPROTO;
        }
        ring_wake_worker(&s->ring);
    }
    return length % ANSWER_BYTES ? -EPROTO : 0;
}

static const char *and_kept(const struct copy_end *e, char out[48])
{
    out[0] = 0;
    if (e->kept)
        snprintf(out, 48, ", %" PRIu64 " unchanged", e->kept);
    return out;
}

/* A signal has stopped us, and the server reports how far it came. */
static void print_place(struct sender *s, const uint8_t *body, size_t length)
{
    struct copy_end e;
    char kept[48];
    uint64_t part = gx_get64(body + END_BYTES);
    end_get(body, &e);
    fprintf(stderr, "%s: interrupted: %" PRIu64 " file%s, %" PRIu64 " bytes in place%s", gx_program,
            e.files, e.files == 1 ? "" : "s", e.bytes, and_kept(&e, kept));
    if (length > END_BYTES + 8) {
        fputs("; stopped inside ", stderr);
        gx_print_bytes(stderr, body + END_BYTES + 8, length - END_BYTES - 8, 500);
        fprintf(stderr, " at %" PRIu64 " bytes%s", part,
                part ? "" : ", of which nothing is left there");
    }
    fprintf(stderr, "\n    %s\n",
            s->o->flags & COPY_RESUME ? "The same command goes on from here."
                                      : "With --resume a copy that was interrupted can go on.");
}

/*
 * Reads the server's messages on the side channel. Returns 1 and the result when all is in place,
 * 0, or a negative errno (printed).
 */
static int look_at_server(struct sender *s, struct copy_end *result)
{
    uint8_t body[GX_BODY_MAX];
    unsigned type = 0;
    int n;
    gx_conn_pump(&s->conn);
    while ((n = gx_conn_take(&s->conn, &type, body, sizeof body)) >= 0) {
        s->alive_ns = gx_now_ns();
        if (type == GX_MSG_ERROR) {
            fprintf(stderr, "%s: the server says: ", gx_program);
            gx_print_bytes(stderr, body, (size_t)n, 500);
            fputs("\n    No half file was left there under its name; files named before it are "
                  "complete.\n",
                  stderr);
            return -EREMOTEIO;
        }
        if (n == (int)END_BYTES && type == COPY_MSG_RESULT) {
            end_get(body, result);
            return 1;
        }
        if (n >= (int)END_BYTES + 8 && type == COPY_MSG_STOPPED && gx_stopping) {
            print_place(s, body, (size_t)n);
            return -EINTR;
        }
        if (type == COPY_MSG_ANSWERS)
            n = take_answers(s, body, (size_t)n);
        else if (type != COPY_MSG_ALIVE)
            n = -EPROTO;
        if (n == -ENOMEM)
            return n;
        if (n < 0)
            break;
    }
    if (n == -EAGAIN)
        return 0;
    if (n == -ECONNRESET)
        gx_error("It was killed or the network in between is gone; start it and copy again: no "
                 "half file is left under its name.",
                 "the server closed the connection");
    else
        gx_error("Build both sides from one source.", "the server broke the protocol");
    return n == -ECONNRESET ? n : -EPROTO;
}

/* A signal has stopped us: stops the server, and prints the place. */
static int stop_here(struct sender *s, struct copy_end *result)
{
    uint64_t end = gx_now_ns() + STOP_NS;
    int n = gx_conn_send(&s->conn, COPY_MSG_STOP, NULL, 0, -1, NULL);
    while (!n && gx_now_ns() < end) {
        struct pollfd p = { .fd = s->conn.fd, .events = POLLIN };
        gdrc_progress(s->dev.ctx);
        poll(&p, 1, 10);
        n = look_at_server(s, result);
    }
    if (!n)
        gx_error("It may be stopped.", "interrupted; the server does not say how far it came");
    return n == 1 ? 0 : -EINTR;
}

/* A reader that only compares sends nothing, so the server gets signs of life instead. */
static int send_sign_of_life(struct sender *s, uint64_t now)
{
    uint64_t compared = atomic_load_explicit(&s->walk.compared, memory_order_relaxed);
    if (compared == s->compared || now - s->told_ns < COPY_ALIVE_NS)
        return 0;
    s->compared = compared;
    s->told_ns = s->alive_ns = now; /* the wait is ours, not the server's */
    return gx_conn_send(&s->conn, COPY_MSG_ALIVE, NULL, 0, -1, "a sign of life");
}

static int reader_failed(struct sender *s)
{
    if (!atomic_load(&s->ring.finished) || !s->ring.error)
        return 0;
    gx_error("The server keeps the files that were complete before it.", "%s", s->ring.why);
    gx_conn_send_error(&s->conn, "the client gave up: %s", s->ring.why);
    return s->ring.error;
}

/* Sends slots as the reader fills them, until the server reports that all is in place. */
static int run(struct sender *s, struct gx_bar *bar, struct copy_end *result)
{
    uint64_t last_ns = gx_now_ns(), look_ns = last_ns;
    s->alive_ns = last_ns;
    for (;;) {
        int n = reap(s), err = 0;
        while (n >= 0 && may_post(s)) {
            err = post_slot(s);
            if (err)
                break;
            n++;
        }
        if (!err && n >= 0)
            err = reader_failed(s);
        uint64_t now = gx_now_ns();
        if (n > 0)
            last_ns = s->alive_ns = now;
        if (n < 0 || err) {
            /* The server's own error, if it sent one, says more than "retry exceeded". */
            look_at_server(s, result);
            return err ? err : n;
        }
        bool idle = now - last_ns > SPIN_NS;
        if (idle || now - look_ns > LOOK_NS) {
            look_ns = now;
            n = look_at_server(s, result);
            if (n)
                return n < 0 ? n : 0;
            const char *at_work = atomic_load(&s->walk.argument);
            gx_bar_update(bar, s->sent_bytes, at_work ? at_work : "");
            if (gx_stopping)
                return stop_here(s, result);
            if ((err = send_sign_of_life(s, now)))
                return err;
        }
        if (!idle)
            continue;
        /* Waiting for our own disk does not count as silence of the server. */
        if (s->posted == s->credited && !atomic_load(&s->ring.finished))
            s->alive_ns = now;
        if (now > s->alive_ns && now - s->alive_ns > s->o->timeout_s * 1000000000u) {
            gx_error("Its disk may hang, or it may be stopped; --timeout sets how long to wait.",
                     "the server has not moved for %" PRIu64 " s", s->o->timeout_s);
            return -ETIMEDOUT;
        }
        struct pollfd fds[2] = { { .fd = s->wake_fd, .events = POLLIN },
                                 { .fd = s->conn.fd, .events = POLLIN } };
        n = gx_sleep(s->dev.ctx, &s->cq, fds, 2, 100);
        if (n < 0 && n != -EINTR)
            return n;
        uint64_t count;
        if (n > 0 && fds[0].revents && read(s->wake_fd, &count, sizeof count) < 0 &&
            errno != EAGAIN)
            return -errno;
    }
}

static void clean_up(struct sender *s)
{
    if (s->reading) {
        ring_stop(&s->ring);
        pthread_join(s->reader, NULL);
    }
    if (s->qp.handle)
        gdrc_qp_destroy(s->dev.ctx, s->qp);
    if (s->mr.handle)
        gdrc_mr_dereg(s->dev.ctx, s->mr);
    if (s->cq.handle)
        gdrc_cq_destroy(s->dev.ctx, s->cq);
    if (s->ring_made)
        ring_destroy(&s->ring);
    if (s->wake_fd >= 0)
        close(s->wake_fd);
    known_free(&s->walk.known);
    gx_mem_free(&s->mem);
    gx_dev_close(&s->dev);
    gx_conn_close(&s->conn);
}

int copy_send(const struct copy_options *o, char **paths, int count)
{
    static struct sender s;
    struct gx_bar bar;
    struct copy_end result;
    char rate[32], kept[48];
    memset(&s, 0, sizeof s);
    s.o = o;
    s.conn.fd = s.conn.passed_fd = s.mem.fd = s.wake_fd = -1;
    s.walk.paths = paths;
    s.walk.count = count;
    s.walk.flags = o->flags;
    s.walk.changing = o->changing;
    int err = walk_count(&s.walk);
    if (err)
        return err;
    uint64_t files = s.walk.files, stored = s.walk.stored, start = gx_now_ns();
    err = connect_to_server(&s, stored);
    if (!err && (s.wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) < 0)
        err = -errno;
    if (!err) {
        err = ring_init(&s.ring, s.mem.addr, (uint32_t)o->size, (uint32_t)o->depth, s.wake_fd);
        s.ring_made = !err;
        s.walk.ring = &s.ring;
    }
    if (!err) {
        err = -pthread_create(&s.reader, NULL, walk_main, &s.walk);
        s.reading = !err;
    }
    if (!err) {
        gx_bar_start(&bar, stored, !o->quiet);
        err = run(&s, &bar, &result);
        gx_bar_end(&bar);
    }
    uint64_t ns = gx_now_ns() - start;
    /* Joins the reader: its counts are final after it. */
    clean_up(&s);
    if (err)
        return err;
    if (result.files != s.walk.files || result.bytes != s.walk.bytes ||
        result.kept != s.walk.kept) {
        gx_error("Build both sides from one source.",
                 "the server has another count of files or bytes than we sent");
        return -EPROTO;
    }
    if (s.walk.files + s.walk.kept + s.walk.failed != files && !s.walk.failed)
        gx_note("something changed while it was copied: %" PRIu64 " files were counted before",
                files);
    if (!o->quiet) {
        printf("copied %" PRIu64 " file%s, %" PRIu64
               " bytes in %.3f s, %s; size and CRC-32C checked%s",
               result.files, result.files == 1 ? "" : "s", result.bytes, (double)ns / 1e9,
               gx_rate(rate, s.sent_bytes, ns), and_kept(&result, kept));
        if (s.walk.resumed_bytes)
            printf("; %" PRIu64 " bytes were there", (uint64_t)s.walk.resumed_bytes);
        puts(s.walk.skipped ? "; some entries were not copied" : "");
    }
    if (s.walk.failed) {
        gx_error("Everything else is in place.", "%" PRIu64 " %s not copied",
                 (uint64_t)s.walk.failed, s.walk.failed == 1 ? "entry was" : "entries were");
        return -EIO;
    }
    return 0;
}
