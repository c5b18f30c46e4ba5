// SPDX-License-Identifier: MIT OR Apache-2.0
/*
 * The server: one engine thread for all clients, and a writer thread for each. See copy.h for the
 * picture. A client that fails, lies or vanishes does not affect the others.
 */
#include "copy.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/statvfs.h>
#include <unistd.h>

#define SESSIONS_MAX 16
/* Short: while this thread polls in vain, the disk threads of both sides could use the core. */
#define SPIN_NS 10000u
#define LOOK_NS 10000000u
#define GREETING_NS (10 * 1000000000ull)
/* For every session: its slots once as receives and once as credits. */
#define CQ_ENTRIES (SESSIONS_MAX * COPY_DEPTH_MAX * 2)

enum state { FREE, GREETING, CONNECTING, RUNNING, CLOSING };

struct session {
    enum state state;
    bool greeted;             /* it is a client of this program: its end counts for --once */
    bool ready;               /* the client has reported that it is ready */
    bool told;                /* the result was sent */
    struct gx_conn conn;
    struct gx_mem mem;
    gdrc_mr mr;
    gdrc_qp qp;
    uint32_t qpn;
    struct gdrc_endpoint local;
    struct ring ring;
    struct place place;
    pthread_t writer;
    bool ring_made, writing;
    bool stopping;            /* the client was stopped, and waits for the place */
    uint32_t received, credited;
    uint64_t moved;           /* bytes that came in slots */
    uint64_t start_ns, alive_ns;
    uint64_t compared, told_ns; /* by the writer; time of the last sign of life to the client */
};

struct receiver {
    const struct copy_options *o;
    struct gx_dev dev;
    gdrc_cq cq;
    int listener, wake_fd, root_fd;
    unsigned finished;        /* sessions that ended with a result or failed after the greeting */
    bool failed;
    uint8_t target[TARGET_BYTES];
    struct session sessions[SESSIONS_MAX];
};

/*
 * Disconnects the client at once; the writer thread may need a moment more, for which
 * reap_session() waits.
 */
static void close_session(struct receiver *r, struct session *s, const char *why)
{
    if (s->state == CLOSING || s->state == FREE)
        return;
    bool good = s->told;
    if (!good && why) {
        gx_error(s->state == RUNNING ? "No half file is left behind under its name." : NULL,
                 "client %s: %s", s->conn.peer, why);
        gx_conn_send_error(&s->conn, "%s", why);
    }
    if (s->greeted) {
        r->finished++;
        r->failed |= !good;
    }
    /* First the queue pair, then the memory: nothing may arrive in a slot that was freed. */
    if (s->qp.handle)
        gdrc_qp_destroy(r->dev.ctx, s->qp);
    if (s->mr.handle)
        gdrc_mr_dereg(r->dev.ctx, s->mr);
    s->qp.handle = s->mr.handle = 0;
    gx_conn_close(&s->conn);
    if (s->writing)
        ring_stop(&s->ring);
    s->state = CLOSING;
}

static void reap_session(struct session *s, bool wait)
{
    if (s->state != CLOSING || (s->writing && !wait && !atomic_load(&s->ring.finished)))
        return;
    if (s->writing)
        pthread_join(s->writer, NULL);
    if (s->ring_made)
        ring_destroy(&s->ring);
    gx_mem_free(&s->mem);
    memset(s, 0, sizeof *s);
}

static void welcome(struct receiver *r)
{
    struct gx_conn conn;
    if (gx_accept(r->listener, &conn, r->dev.ctx))
        return;
    for (unsigned i = 0; i < SESSIONS_MAX; i++) {
        struct session *s = &r->sessions[i];
        if (s->state != FREE)
            continue;
        s->state = GREETING;
        s->conn = conn;
        s->mem.fd = -1;
        s->start_ns = s->alive_ns = gx_now_ns();
        return;
    }
    gx_conn_send_error(&conn, "this server already has %d clients: try again later", SESSIONS_MAX);
    gx_conn_close(&conn);
}

/* Makes the objects for a client and sends their description. Returns NULL, or an error text. */
static const char *on_hello(struct receiver *r, struct session *s, const uint8_t *body)
{
    uint32_t size = gx_get32(body), depth = gx_get32(body + 4), flags = gx_get32(body + 16);
    struct statvfs disk;
    s->greeted = true;
    if (size < COPY_SIZE_MIN || size > COPY_SIZE_MAX || depth < 1 || depth > COPY_DEPTH_MAX ||
        (uint64_t)size * depth > COPY_RING_MAX)
        return "message size or depth out of range";
    if (flags & ~(uint32_t)(COPY_UPDATE | COPY_CHECKSUM | COPY_RESUME))
        return "options that this server does not know";
    /*
     * Better now than after an hour. The disk may still run full; then the writer reports it. Files
     * that exist already need no room.
     */
    if (!flags && fstatvfs(r->root_fd, &disk) == 0 &&
        gx_get64(body + 8) / disk.f_frsize > disk.f_bavail)
        return "not enough room on the server's disk (No space left on device)";
    if (gx_mem_alloc(&s->mem, "shared", (size_t)size * depth, false))
        return "the server has no memory for another client";
    struct gdrc_memory memory;
    gx_mem_describe(&s->mem, &memory);
    if (gx_mem_register(&r->dev, &memory, GDRC_ACCESS_LOCAL_WRITE | GDRC_ACCESS_REMOTE_WRITE,
                        &s->mr, NULL) ||
        gx_qp_create(&r->dev, r->cq, depth, depth, 1, &s->qp, &s->qpn))
        return "the server's device has no room for another client";
    if (ring_init(&s->ring, s->mem.addr, size, depth, r->wake_fd))
        return "the server has no memory for another client";
    s->ring_made = true;
    memset(&s->place, 0, sizeof s->place);
    s->place.ring = &s->ring;
    s->place.root_fd = r->root_fd;
    s->place.sync = r->o->sync;
    s->place.flags = flags;
    if (gx_conn_send(&s->conn, COPY_MSG_TARGET, r->target, sizeof r->target, -1, NULL) ||
        gx_endpoint_send(&r->dev, s->qp, &s->mr, &s->conn, &s->local))
        return "the endpoint could not be sent";
    s->state = CONNECTING;
    return NULL;
}

static int post_receive(struct receiver *r, struct session *s)
{
    gdrc_recv_wr wr = { .wr_id = 0 };
    int err = gdrc_post_recv(r->dev.ctx, s->qp, &wr, NULL);
    if (err)
        gx_explain_call(&r->dev, err, "posting a receive");
    return err;
}

static const char *on_endpoint(struct receiver *r, struct session *s, const uint8_t *wire,
                               size_t length)
{
    struct gdrc_endpoint remote;
    if (gx_endpoint_connect(&r->dev, s->qp, &s->conn, &s->local, wire, length, r->o->timeout_s,
                            &remote))
        return "the queue pair could not be connected";
    for (uint32_t i = 0; i < s->ring.depth; i++)
        if (post_receive(r, s))
            return "receives could not be posted";
    if (pthread_create(&s->writer, NULL, place_main, &s->place))
        return "the server can start no thread";
    s->writing = true;
    s->state = RUNNING;
    return gx_conn_send(&s->conn, GX_MSG_READY, NULL, 0, -1, NULL) ? "the client has gone" : NULL;
}

static void on_readable(struct receiver *r, struct session *s)
{
    uint8_t body[GX_BODY_MAX];
    unsigned type;
    const char *wrong = NULL;
    int n;
    gx_conn_pump(&s->conn);
    while (!wrong && (n = gx_conn_take(&s->conn, &type, body, sizeof body)) >= 0) {
        s->alive_ns = gx_now_ns();
        if (s->state == GREETING && type == COPY_MSG_HELLO && n == 20) {
            s->state =
                CONNECTING; /* a known client from here on: refusing it is a result, too */
            wrong = on_hello(r, s, body);
        }
        else if (s->state == CONNECTING && type == GX_MSG_ENDPOINT)
            wrong = on_endpoint(r, s, body, (size_t)n);
        else if (s->state == RUNNING && type == GX_MSG_READY && !s->ready)
            s->ready = true;
        else if (s->state == RUNNING && type == COPY_MSG_ALIVE)
            ;
        else if (s->state == RUNNING && type == COPY_MSG_STOP && !s->stopping) {
            s->stopping = true;
            ring_stop(&s->ring);
        }
        else if (type == GX_MSG_ERROR)
            wrong = "the client gave up";
        else
            wrong = "the client broke the protocol";
    }
    if (!wrong && n == -ECONNRESET)
        wrong =
            "the client closed the connection before it was done (killed, or the network is gone)";
    if (!wrong && n == -EPROTO)
        wrong = "somebody who does not speak this program's protocol";
    if (wrong)
        close_session(r, s, wrong);
}

static struct session *find(struct receiver *r, uint32_t qpn)
{
    for (unsigned i = 0; i < SESSIONS_MAX; i++)
        if (r->sessions[i].qp.handle && r->sessions[i].qpn == qpn)
            return &r->sessions[i];
    return NULL;
}

/* A slot has arrived: pass it to the writer. */
static void on_slot(struct receiver *r, struct session *s, const gdrc_wc *wc)
{
    uint32_t waiting = s->received - atomic_load_explicit(&s->ring.consumed, memory_order_acquire),
             used = ntohl(wc->imm_data);
    uint32_t carried = wc->opcode == GDRC_WC_OP_RECV ? 0 : used;
    if (used == 0 || used > s->ring.size || wc->byte_len != carried || waiting >= s->ring.depth) {
        close_session(r, s, "the client broke the protocol");
        return;
    }
    s->ring.used[s->received % s->ring.depth] = used;
    s->received++;
    s->moved += used;
    s->alive_ns = gx_now_ns();
    if (post_receive(r, s))
        close_session(r, s, "receives could not be posted");
    else
        ring_set_produced(&s->ring, s->received);
}

static int reap(struct receiver *r)
{
    gdrc_wc wc[32];
    int n = gdrc_poll_cq(r->dev.ctx, r->cq, 32, wc);
    if (n < 0)
        gx_explain_call(&r->dev, n, "polling");
    for (int i = 0; i < n; i++) {
        struct session *s = find(r, wc[i].qp_num);
        if (!s)
            continue;
        if (wc[i].status != GDRC_WC_SUCCESS) {
            gx_explain_wc(&r->dev, s->qp, &wc[i], "the connection to a client");
            close_session(r, s, "the connection failed");
        } else if (wc[i].opcode == GDRC_WC_OP_RECV_RDMA_WITH_IMM ||
                   (wc[i].opcode == GDRC_WC_OP_RECV && wc[i].wc_flags & GDRC_WC_FLAG_WITH_IMM)) {
            on_slot(r, s, &wc[i]);
        }
    }
    return n;
}

/* Sends the client the number of slots that the writer has emptied. */
static void send_credit(struct receiver *r, struct session *s)
{
    uint32_t consumed = atomic_load_explicit(&s->ring.consumed, memory_order_acquire);
    if (consumed == s->credited)
        return;
    gdrc_send_wr wr;
    memset(&wr, 0, sizeof wr);
    wr.opcode = GDRC_WR_SEND_WITH_IMM;
    wr.send_flags = GDRC_SEND_SIGNALED;
    wr.imm_data = htonl(consumed);
    int err = gdrc_post_send(r->dev.ctx, s->qp, &wr, NULL);
    if (err == -EAGAIN || err == -ENOMEM)
        return; /* the queue is full: the next round sends a newer number */
    if (err) {
        gx_explain_call(&r->dev, err, "posting a SEND");
        close_session(r, s, "the connection failed");
        return;
    }
    s->credited = consumed;
    s->alive_ns = gx_now_ns();
}

/* Sends the writer's answers to the client's offers. */
static void send_answers(struct receiver *r, struct session *s)
{
    struct place *p = &s->place;
    uint8_t body[ANSWERS_MAX * ANSWER_BYTES];
    uint32_t made = atomic_load_explicit(&p->answers_made, memory_order_acquire);
    uint32_t taken = atomic_load_explicit(&p->answers_taken, memory_order_relaxed);
    while (taken != made) {
        uint32_t n = 0;
        for (; n < ANSWERS_MAX && taken != made; n++, taken++)
            answer_put(body + n * ANSWER_BYTES, &p->answers[taken % PLACE_ANSWERS]);
        if (gx_conn_send(&s->conn, COPY_MSG_ANSWERS, body, n * ANSWER_BYTES, -1, NULL)) {
            close_session(r, s, "the client has gone");
            return;
        }
        atomic_store_explicit(&p->answers_taken, taken, memory_order_release);
        ring_wake_worker(&s->ring);
    }
}

/* A writer that only compares gives no credits, so the client gets signs of life instead. */
static void send_sign_of_life(struct receiver *r, struct session *s, uint64_t now)
{
    uint64_t compared = atomic_load_explicit(&s->place.compared, memory_order_relaxed);
    if (compared == s->compared || now - s->told_ns < COPY_ALIVE_NS)
        return;
    s->compared = compared;
    s->told_ns = now;
    if (gx_conn_send(&s->conn, COPY_MSG_ALIVE, NULL, 0, -1, NULL))
        close_session(r, s, "the client has gone");
}

/* The writer has stopped, because the client was stopped: sends how far it came. */
static void send_stopped(struct receiver *r, struct session *s)
{
    uint8_t body[END_BYTES + 8 + COPY_PATH_MAX];
    size_t length = strlen(s->place.part_path);
    end_put(body, &s->place.end);
    gx_put64(body + END_BYTES, s->place.part);
    memcpy(body + END_BYTES + 8, s->place.part_path, length);
    gx_conn_send(&s->conn, COPY_MSG_STOPPED, body, END_BYTES + 8 + length, -1, NULL);
    if (s->greeted) {
        r->finished++;
        r->failed = true;
    }
    s->greeted = false;
    gx_note("client %s was told to stop: %" PRIu64 " files are in place", s->conn.peer,
            s->place.end.files);
    close_session(r, s, NULL);
}

static void on_writer_finished(struct receiver *r, struct session *s)
{
    const struct copy_end *e = &s->place.end;
    uint8_t result[END_BYTES];
    char rate[32];
    if (s->ring.error == -ECANCELED && s->stopping) {
        send_stopped(r, s);
        return;
    }
    if (s->ring.error) {
        char why[sizeof s->ring.why + 32];
        snprintf(why, sizeof why, "%s", s->ring.why);
        close_session(r, s, why);
        return;
    }
    end_put(result, e);
    s->told = gx_conn_send(&s->conn, COPY_MSG_RESULT, result, sizeof result, -1, NULL) == 0;
    if (s->told && !r->o->quiet) {
        uint64_t ns = gx_now_ns() - s->start_ns;
        printf("received %" PRIu64 " file%s, %" PRIu64 " bytes from %s in %.3f s, %s", e->files,
               e->files == 1 ? "" : "s", e->bytes, s->conn.peer, (double)ns / 1e9,
               gx_rate(rate, s->moved, ns));
        if (e->kept)
            printf("; %" PRIu64 " unchanged", e->kept);
        printf("\n");
        fflush(stdout);
    }
    close_session(r, s, "the client left before it was told the result");
}

static void look_after(struct receiver *r, struct session *s, uint64_t now)
{
    if (s->state == RUNNING)
        send_answers(r, s);
    if (s->state == RUNNING)
        send_sign_of_life(r, s, now);
    if (s->state == RUNNING && atomic_load(&s->ring.finished))
        on_writer_finished(r, s);
    if (s->state == RUNNING)
        send_credit(r, s);
    /* If the writer still has slots to empty, the delay is the server's own. */
    if (s->state == RUNNING && s->received != s->credited)
        s->alive_ns = now;
    uint64_t patience = s->state == RUNNING ? r->o->timeout_s * 1000000000ull : GREETING_NS;
    if (s->state != FREE && s->state != CLOSING && now > s->alive_ns &&
        now - s->alive_ns > patience)
        close_session(r, s, "the client has been silent for too long");
    reap_session(s, false);
}

static int serve(struct receiver *r)
{
    uint64_t last_ns = gx_now_ns(), look_ns = 0;
    while (!(r->o->once && r->finished)) {
        int n = reap(r);
        if (n < 0)
            return n;
        uint64_t now = gx_now_ns(), count;
        if (n)
            last_ns = now;
        for (unsigned i = 0; i < SESSIONS_MAX; i++)
            look_after(r, &r->sessions[i], now);
        bool idle = now - last_ns > SPIN_NS;
        if (!idle && now - look_ns < LOOK_NS)
            continue;
        look_ns = now;
        struct pollfd fds[SESSIONS_MAX + 2];
        struct session *of[SESSIONS_MAX + 2];
        nfds_t used = 0;
        fds[used++] = (struct pollfd){ .fd = r->listener, .events = POLLIN };
        fds[used++] = (struct pollfd){ .fd = r->wake_fd, .events = POLLIN };
        for (unsigned i = 0; i < SESSIONS_MAX; i++) {
            if (r->sessions[i].state == FREE || r->sessions[i].state == CLOSING)
                continue;
            of[used] = &r->sessions[i];
            fds[used++] = (struct pollfd){ .fd = r->sessions[i].conn.fd, .events = POLLIN };
        }
        n = gx_sleep(r->dev.ctx, &r->cq, fds, used, idle ? 1000 : 0);
        if (n < 0)
            return n;
        if (fds[1].revents) {
            if (read(r->wake_fd, &count, sizeof count) < 0 && errno != EAGAIN)
                return -errno;
            last_ns = gx_now_ns();
        }
        for (nfds_t i = 2; i < used; i++)
            if (fds[i].revents)
                on_readable(r, of[i]);
        if (fds[0].revents)
            welcome(r);
    }
    return r->failed && r->o->once ? -EIO : 0;
}

static int start(struct receiver *r)
{
    struct gdrc_config config;
    memset(&config, 0, sizeof config);
    config.struct_size = sizeof config;
    config.ring_bytes = 16u << 20;
    r->root_fd = open(r->o->dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (r->root_fd < 0) {
        int err = -errno;
        gx_error("Give an existing folder with --dir.", "cannot open folder %s: %s", r->o->dir,
                 strerror(-err));
        return err;
    }
    r->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (r->wake_fd < 0)
        return -errno;
    int err = gx_dev_open(&r->dev, r->o->device, 0, &config);
    if (err)
        return err;
    err = gdrc_cq_create(r->dev.ctx, CQ_ENTRIES, &r->cq, NULL);
    if (err) {
        gx_explain_call(&r->dev, err, "creating a CQ");
        return err;
    }
    r->listener = gx_tcp_listen(r->dev.address, (uint16_t)r->o->port);
    if (r->listener < 0)
        return r->listener;
    partial_sweep(r->root_fd);
    struct stat st;
    if (fstat(r->root_fd, &st) < 0)
        return -errno;
    target_put(r->target, st.st_dev, st.st_ino);
    if (!r->o->quiet) {
        printf("receiving into %s on %s port %" PRIu64 " (device %s)\n", r->o->dir, r->dev.address,
               r->o->port, r->dev.name);
        fflush(stdout);
    }
    return 0;
}

int copy_serve(const struct copy_options *o)
{
    static struct receiver r;
    r = (struct receiver){ .o = o, .listener = -1, .wake_fd = -1, .root_fd = -1 };
    int err = start(&r);
    if (!err)
        err = serve(&r);
    for (unsigned i = 0; i < SESSIONS_MAX; i++) {
        close_session(&r, &r.sessions[i], "the server was stopped");
        reap_session(&r.sessions[i], true);
    }
    if (r.cq.handle)
        gdrc_cq_destroy(r.dev.ctx, r.cq);
    if (r.listener >= 0)
        close(r.listener);
    if (r.wake_fd >= 0)
        close(r.wake_fd);
    if (r.root_fd >= 0)
        close(r.root_fd);
    gx_dev_close(&r.dev);
    /* A server without --once ends by a signal. */
    return err == -EINTR && !o->once ? 0 : err;
}
