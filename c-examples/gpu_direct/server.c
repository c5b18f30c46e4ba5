// SPDX-License-Identifier: MIT OR Apache-2.0
/*
 * gpu_direct server: writes and reads the buffers of many clients by RDMA, as they request by TCP.
 * One thread, one device, one poll loop; each client has a local buffer of its own. With DC a few
 * initiators serve all clients, with RC each client has a queue pair of its own.
 */
#include "gpu_direct_rdma_access.h"
#include "task.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define CLIENTS_MAX 63
/* Time within which a new connection must describe its buffer. */
#define GREETING_NS (5 * 1000000000ull)
#define SPIN_NS 50000u

struct options {
    const char *address;
    uint64_t iterations, size, port, pieces, initiators, debug;
    bool persistent;
    enum gda_transport transport;
};

struct client {
    bool used, connected, ready, busy;
    struct gx_conn conn;
    struct gx_mem mem;
    struct gda_buffer *buffer;
    struct gda_peer *peer;
    uint64_t since_ns, first_ns, done, bytes;
    uint32_t flags;
    uint64_t size, seed, number;
};

struct server {
    struct options o;
    struct gda_device *device;
    char kind[32];
    int listener;
    unsigned served, connected;
    struct client clients[CLIENTS_MAX];
};

static void usage(FILE *to)
{
    fprintf(to,
            "usage: server [options]\n"
            "Writes and reads the buffers of clients by RDMA, as they ask.\n\n"
            "  -a, --address ADDRESS   local address (default: the first that is not loopback)\n"
            "  -n, --iterations N      serve each client at most N tasks (default 0: as many as it "
            "wants)\n"
            "  -s, --size BYTES        size of the local buffer of each client, up to 1G (default "
            "64k)\n"
            "  -u, --use-gpu BDF       put the local buffers into the memory of this GPU, for "
            "example b7:00.0\n"
            "  -p, --port PORT         TCP port on that address (default %d)\n"
            "  -l, --sg-list-len N     split the local buffer into N pieces, 1 to %d (default 1)\n"
            "  -i, --initiators N      DC initiators, a pool for all clients: so many tasks run at "
            "a time (1 to %d,\n"
            "                          default %d)\n"
            "  -T, --transport dc|rc   dc: the server's few DC initiators serve all clients, rc: a "
            "queue pair\n"
            "                          for each client, needed on a NIC; the same on both sides "
            "(default dc)\n"
            "  -P, --persistent        go on when all clients have left (default: exit then)\n"
            "  -D, --debug MASK        1: each task, 2: counters at the end, 4: descriptions,\n"
            "                          8: fail each client's first task on purpose, to see the "
            "recovery (default 0)\n"
            "  -h, --help              this text\n"
            "  -V, --version           the version\n",
            GD_PORT, GDA_PIECES_MAX, GDA_INITIATORS_MAX, GDA_INITIATORS);
}

static void leave(struct server *s, struct client *c, const char *why)
{
    char rate[32];
    uint64_t ns = c->done ? gx_now_ns() - c->first_ns : 0;
    if (c->connected) {
        printf("%s %s: %" PRIu64 " tasks, %.3f s, %s\n", c->conn.peer, why, c->done,
               (double)ns / 1e9, gx_rate(rate, c->bytes, ns));
        fflush(stdout);
        s->served++;
    } else {
        gx_note("%s %s", c->conn.peer, why);
    }
    gda_peer_destroy(c->peer);
    gda_buffer_release(c->buffer);
    gx_mem_free(&c->mem);
    gx_conn_close(&c->conn);
    memset(c, 0, sizeof *c);
    s->connected--;
}

static void welcome(struct server *s)
{
    struct client *c = NULL;
    struct gx_conn conn;
    if (gx_accept(s->listener, &conn, gda_context(s->device)))
        return;
    for (unsigned i = 0; i < CLIENTS_MAX && !c; i++)
        c = s->clients[i].used ? NULL : &s->clients[i];
    if (!c) {
        gx_conn_send_error(&conn, "this server already has %d clients", CLIENTS_MAX);
        gx_conn_close(&conn);
        return;
    }
    memset(c, 0, sizeof *c);
    c->used = true;
    c->conn = conn;
    c->since_ns = gx_now_ns();
    s->connected++;
    /* `failed` is both sent to the client and printed. */
    const char *failed = NULL;
    struct gdrc_memory memory;
    int none = gx_mem_alloc(&c->mem, s->kind, s->o.size, false);
    gx_mem_describe(&c->mem, &memory);
    if (none)
        failed = "no memory for another client";
    else if (!(c->buffer = gda_buffer_register(s->device, &memory)) ||
             !(c->peer = gda_peer_create(s->device)))
        failed = "the device has no room for another client";
    if (failed) {
        gx_conn_send_error(&c->conn, "%s", failed);
        leave(s, c, failed);
    }
}

static int on_describe(struct server *s, struct client *c, char *text)
{
    int err = 0;
    if (c->connected)
        /* The client connects again after a failure. */
        err = gda_peer_reset(c->peer);
    c->connected = c->ready = c->busy = false;
    if (s->o.debug & GD_DEBUG_DESCRIPTIONS)
        gx_note("%s describes: %s", c->conn.peer, text);
    char own[GDA_DESC_MAX];
    if (!err)
        err = gda_describe(c->peer, NULL, own, sizeof own);
    if (!err)
        err = gda_peer_connect(c->peer, text);
    if (err) {
        if (err == -EPROTOTYPE)
            gx_conn_send_error(&c->conn,
                               "this server uses %s: give both sides the same --transport",
                               gda_transport_name(s->o.transport));
        else
            gx_conn_send_error(&c->conn, "cannot connect to this description: %s",
                               gdrc_strerror(err));
        return err;
    }
    c->connected = true;
    return gx_conn_send(&c->conn, GD_MSG_DESCRIBE, own, strlen(own), -1, NULL);
}

static int send_result(struct client *c, int status)
{
    uint8_t result[GD_RESULT_BYTES];
    gx_put32(result, (uint32_t)-status);
    gx_put64(result + 4, c->number);
    c->busy = false;
    return gx_conn_send(&c->conn, GD_MSG_RESULT, result, sizeof result, -1, NULL);
}

static int on_task(struct server *s, struct client *c, const uint8_t *body)
{
    struct gda_piece pieces[GDA_PIECES_MAX];
    c->flags = gx_get32(body);
    c->size = gx_get64(body + 4);
    c->seed = gx_get64(body + 12);
    c->number = gx_get64(body + 20);
    bool read = c->flags & GD_FLAG_READ;
    if (!c->ready || c->busy) {
        gx_conn_send_error(&c->conn, "a task before its time");
        return -EPROTO;
    }
    if (c->size == 0 || c->size > s->o.size || c->size > gda_peer_remote_length(c->peer)) {
        gx_conn_send_error(&c->conn,
                           "task of %" PRIu64 " bytes; this server's buffer has %" PRIu64
                           " (its option -s), the client's %" PRIu64,
                           c->size, s->o.size, gda_peer_remote_length(c->peer));
        return -ERANGE;
    }
    if (s->o.iterations && c->done >= s->o.iterations) {
        gx_conn_send_error(&c->conn,
                           "this server does %" PRIu64 " tasks for each client (its option -n)",
                           s->o.iterations);
        return -EDQUOT;
    }
    if (c->flags & GD_FLAG_CHECK) {
        /* Before a READ: bytes that differ from the expected ones. */
        int err = gd_fill(&c->mem, c->size, read ? ~c->seed : c->seed);
        if (err)
            return err;
    }
    unsigned count = c->size < s->o.pieces ? (unsigned)c->size : (unsigned)s->o.pieces;
    for (unsigned i = 0; i < count; i++) {
        pieces[i].offset = c->size * i / count;
        pieces[i].length = c->size * (i + 1) / count - pieces[i].offset;
    }
    if (s->o.debug & GD_DEBUG_SPOIL && c->first_ns == 0)
        gda_peer_spoil(c->peer);
    if (c->first_ns == 0)
        c->first_ns = gx_now_ns();
    struct gda_task task = {
        .id = (uint64_t)(c - s->clients),
        .peer = c->peer,
        .local = c->buffer,
        .pieces = pieces,
        .count = count,
        .read = read,
    };
    c->busy = true;
    int err = gda_submit(s->device, &task);
    return err ? send_result(c, err) : 0;
}

static int on_end(struct server *s, struct client *c, int status)
{
    uint64_t where = 0;
    if (!status && c->flags & GD_FLAG_CHECK && c->flags & GD_FLAG_READ) {
        status = gd_verify(&c->mem, c->size, c->seed, &where);
        if (status)
            gx_error("A bug of the transport: please report it with the counters (-D 2).",
                     "task %" PRIu64 " of %s: wrong bytes were read, the first at %" PRIu64,
                     c->number, c->conn.peer, where);
    }
    if (!status) {
        c->done++;
        c->bytes += c->size;
    }
    if (s->o.debug & GD_DEBUG_TASKS)
        gx_note("task %" PRIu64 " of %s: %" PRIu64 " bytes %s, %s", c->number, c->conn.peer,
                c->size, c->flags & GD_FLAG_READ ? "read" : "written",
                status ? strerror(-status) : "done");
    return send_result(c, status);
}

/*
 * Handles everything that a client has sent. Returns 1 if there was something, and a negative errno
 * if the client must be disconnected.
 */
static int on_readable(struct server *s, struct client *c, const char **why)
{
    uint8_t body[GX_BODY_MAX + 1];
    unsigned type;
    int n, had = 0;
    gx_conn_pump(&c->conn);
    while ((n = gx_conn_take(&c->conn, &type, body, GX_BODY_MAX)) >= 0) {
        int err = -EPROTO;
        had = 1;
        body[n] = 0;
        *why = "broke the protocol";
        if (type == GD_MSG_DESCRIBE && n < GDA_DESC_MAX)
            err = on_describe(s, c, (char *)body);
        else if (type == GX_MSG_READY && c->connected)
            err = 0, c->ready = true;
        else if (type == GD_MSG_TASK && n == (int)GD_TASK_BYTES)
            err = on_task(s, c, body);
        else if (type == GX_MSG_DONE) {
            *why = "is done";
            err = -ESHUTDOWN;
        } else if (type == GX_MSG_ERROR)
            *why = "gave up";
        if (err == -EPROTOTYPE)
            *why = "uses the other transport";
        if (err)
            return err;
    }
    *why = n == -EPROTO ? "does not speak our protocol" : "closed the connection";
    return n == -EAGAIN ? had : n;
}

static int serve(struct server *s)
{
    uint64_t last_ns = gx_now_ns();
    while (s->o.persistent || !s->served || s->connected) {
        struct pollfd fds[CLIENTS_MAX + 1];
        struct client *of[CLIENTS_MAX + 1];
        struct gda_event events[CLIENTS_MAX];
        int n = gda_poll(s->device, events, CLIENTS_MAX);
        if (n < 0)
            return n;
        for (int i = 0; i < n; i++) {
            struct client *c = &s->clients[events[i].id % CLIENTS_MAX];
            if (c->used && c->busy && c->peer == events[i].peer && on_end(s, c, events[i].status))
                leave(s, c, "closed the connection");
        }
        uint64_t now = gx_now_ns();
        if (n)
            last_ns = now;
        nfds_t used = 0;
        bool busy = false;
        fds[used++] = (struct pollfd){ .fd = s->listener, .events = POLLIN };
        for (unsigned i = 0; i < CLIENTS_MAX; i++) {
            struct client *c = &s->clients[i];
            if (!c->used)
                continue;
            if (!c->connected && now - c->since_ns > GREETING_NS) {
                leave(s, c, "said nothing");
                continue;
            }
            busy |= c->busy;
            of[used] = c;
            fds[used++] = (struct pollfd){ .fd = c->conn.fd, .events = POLLIN };
        }
        /* While a task is under way the CQ is polled without sleeping, for a short time. */
        if (busy && now - last_ns < SPIN_NS)
            continue;
        int ready = gda_sleep(s->device, fds, used, 1000);
        if (ready < 0)
            return ready;
        if (ready > 0)
            last_ns = gx_now_ns();
        for (nfds_t i = 1; i < used; i++) {
            const char *why = "";
            if (fds[i].revents && on_readable(s, of[i], &why) < 0)
                leave(s, of[i], why);
        }
        if (fds[0].revents)
            welcome(s);
    }
    return 0;
}

int main(int argc, char **argv)
{
    static const struct option longs[] = {
        { "address", required_argument, NULL, 'a' },
        { "iterations", required_argument, NULL, 'n' },
        { "size", required_argument, NULL, 's' },
        { "port", required_argument, NULL, 'p' },
        { "sg-list-len", required_argument, NULL, 'l' },
        { "initiators", required_argument, NULL, 'i' },
        { "transport", required_argument, NULL, 'T' },
        { "persistent", no_argument, NULL, 'P' },
        { "debug", required_argument, NULL, 'D' },
        { "debug-mask", required_argument, NULL, 'D' },
        { "use-gpu", required_argument, NULL, 'u' },
        { "use-cuda", required_argument, NULL, 'u' },
        GX_COMMON_OPTIONS,
    };
    static struct server s;
    int bad = 0;
    s.o = (struct options){ .size = 65536, .port = GD_PORT, .pieces = 1,
                            .initiators = GDA_INITIATORS };
    gx_program = "server";
    strcpy(s.kind, "host");
    for (int c; (c = gx_getopt(argc, argv, "a:n:s:p:l:i:T:PD:u:hV", longs)) != -1;) {
        switch (c) {
        case 'a': s.o.address = optarg; break;
        case 'u':
            if (snprintf(s.kind, sizeof s.kind, "cuda:%s", optarg) >= (int)sizeof s.kind) {
                gx_error("As lspci prints it: b7:00.0 or 0000:b7:00.0.", "'%s' is no PCI address",
                         optarg);
                bad = 1;
            }
            break;
        case 'n':
            bad |= gx_parse_number(optarg, "--iterations", 0, UINT32_MAX, &s.o.iterations);
            break;
        case 's': bad |= gx_parse_size(optarg, "--size", 1, GD_SIZE_MAX, &s.o.size); break;
        case 'p': bad |= gx_parse_number(optarg, "--port", 1, 65535, &s.o.port); break;
        case 'l':
            bad |= gx_parse_number(optarg, "--sg-list-len", 1, GDA_PIECES_MAX, &s.o.pieces);
            break;
        case 'i':
            bad |= gx_parse_number(optarg, "--initiators", 1, GDA_INITIATORS_MAX, &s.o.initiators);
            break;
        case 'T': bad |= gd_parse_transport(optarg, &s.o.transport); break;
        case 'P': s.o.persistent = true; break;
        case 'D': bad |= gx_parse_number(optarg, "--debug", 0, 15, &s.o.debug); break;
        case 'h': usage(stdout); return GX_EXIT_OK;
        default: gx_note("try 'server --help'"); return GX_EXIT_USAGE;
        }
    }
    if (optind < argc) {
        gx_error("See --help.", "unexpected argument '%s'", argv[optind]);
        bad = 1;
    }
    if (bad)
        return GX_EXIT_USAGE;
    gx_catch_signals();
    s.device = gda_open(s.o.address, s.o.transport, (unsigned)s.o.initiators);
    if (!s.device)
        return GX_EXIT_FAILED;
    s.listener = gx_tcp_listen(gda_address(s.device), (uint16_t)s.o.port);
    int err = s.listener;
    if (err >= 0) {
        printf("serving on %s port %" PRIu64 " by %s\n", gda_address(s.device), s.o.port,
               gda_transport_name(s.o.transport));
        fflush(stdout);
        err = serve(&s);
        for (unsigned i = 0; i < CLIENTS_MAX; i++)
            if (s.clients[i].used)
                leave(&s, &s.clients[i], "was let go");
        close(s.listener);
    }
    if (s.o.debug & GD_DEBUG_COUNTERS)
        gd_print_counters(gda_context(s.device));
    gda_close(s.device);
    /* A persistent server ends by a signal. */
    return err == -EINTR && s.o.persistent ? GX_EXIT_OK : gx_exit_code(err);
}
