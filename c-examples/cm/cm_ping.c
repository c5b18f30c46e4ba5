// SPDX-License-Identifier: MIT OR Apache-2.0
/*
 * cm_ping: rping's job by the connection manager. No side channel: address and port are all that
 * the two sides know. The other side may be another cm_ping, or rping on a Linux machine with an
 * RDMA device.
 *
 *   cm_ping -s -d soft:127.0.0.1               waits at port 7174
 *   cm_ping -c -d soft:127.0.0.2 127.0.0.1     asks: 10 rounds
 *
 * A round, as rping has it: the client SENDs where its ping lies (address, rkey, length); the
 * server READs it and SENDs "go on"; the client SENDs where it wants it; the server WRITEs it there
 * and SENDs "done"; the client compares.
 */
#include "../common/gx.h"

#include <arpa/inet.h>
#include <errno.h>
#include <inttypes.h>
#include <string.h>

#define PORT 7174
#define INFO_BYTES 16u /* address 64, rkey 32, length 32, big-endian */
#define RECEIVES 4u
#define SEND_AT 64u
#define DATA_AT 128u
#define SIZE_MAX_BYTES (1u << 20)
#define WAIT_MS 5000

enum { WR_RECV = 0x100, WR_SEND = 1, WR_RDMA = 2 };

struct ping {
    struct gx_dev dev;
    struct gx_mem mem;
    gdrc_mr mr;
    struct gdrc_mr_attr attr;
    gdrc_cq cq;
    gdrc_qp qp;
    gdrc_cm_id id;
    uint64_t size, rounds;
    bool verbose, gone;
    uint32_t inbox[RECEIVES]; /* receives that hold a message, oldest first */
    uint32_t waiting;
};

static void usage(FILE *to)
{
    fprintf(to,
            "usage: cm_ping -s [OPTIONS]        wait for a client\n"
            "       cm_ping -c [OPTIONS] HOST   ping HOST, an address\n\n"
            "  -s, --server              serve one client, then end\n"
            "  -P, --persistent          serve one client after the other\n"
            "  -c, --client              ask\n"
            "  -d, --device DEVICE       soft:ADDRESS[:PORT], an address of this machine, or a "
            "network interface\n"
            "  -g, --gid-index N         which of the interface's addresses\n"
            "  -p, --port PORT           rdma_cm port (default %d)\n"
            "  -C, --count N             rounds; 0: until interrupted (10)\n"
            "  -S, --size BYTES          bytes of a ping (64)\n"
            "  -v, --verbose             print the pings\n"
            "  -h, --help                this text\n"
            "  -V, --version             the version\n",
            PORT);
}

static uint8_t *at(struct ping *p, uint64_t offset) { return (uint8_t *)p->mem.addr + offset; }

static int post_recv(struct ping *p, uint32_t slot)
{
    struct gdrc_sge sge = { p->attr.iova + slot * INFO_BYTES, INFO_BYTES, p->attr.lkey };
    struct gdrc_recv_wr wr = { .wr_id = WR_RECV | slot, .sg_list = &sge, .num_sge = 1 };
    return gdrc_post_recv(p->dev.ctx, p->qp, &wr, NULL);
}

static int post(struct ping *p, uint32_t opcode, uint64_t offset, uint64_t length, uint64_t remote,
                uint32_t rkey)
{
    struct gdrc_sge sge = { p->attr.iova + offset, (uint32_t)length, p->attr.lkey };
    struct gdrc_send_wr wr = {
        .wr_id = opcode == GDRC_WR_SEND ? WR_SEND : WR_RDMA,
        .sg_list = &sge,
        .num_sge = 1,
        .opcode = opcode,
        .send_flags = GDRC_SEND_SIGNALED,
    };
    wr.wr.rdma.remote_addr = remote;
    wr.wr.rdma.rkey = rkey;
    int err = gdrc_post_send(p->dev.ctx, p->qp, &wr, NULL);
    if (err)
        gx_explain_call(&p->dev, err, "posting");
    return err;
}

/* A fresh queue pair for the next connection. */
static int make_qp(struct ping *p)
{
    p->waiting = 0;
    p->gone = false;
    return gx_qp_create(&p->dev, p->cq, 8, RECEIVES, 1, &p->qp, NULL);
}

/* The queue pair is in INIT or beyond: receives may wait in it. */
static int fill_recv(struct ping *p)
{
    int err = 0;
    for (uint32_t slot = 0; !err && slot < RECEIVES; slot++)
        err = post_recv(p, slot);
    if (err)
        gx_explain_call(&p->dev, err, "posting a receive");
    return err;
}

/*
 * The next event of the connection manager, if there is one; requests of other clients are rejected
 * as "busy".
 */
static int take_event(struct ping *p, struct gdrc_cm_event *e)
{
    memset(e, 0, sizeof *e);
    e->struct_size = sizeof *e;
    int n = gdrc_cm_get_event(p->dev.ctx, e);
    if (n == 1 && e->event == GDRC_CM_EVENT_CONNECT_REQUEST && p->id.handle) {
        gdrc_cm_reject(p->dev.ctx, e->id, "busy", 4);
        gdrc_cm_destroy(p->dev.ctx, e->id);
        return 0;
    }
    return n;
}

/* Reports a failed call; an interrupted wait is no failure. */
static int failed(struct ping *p, int err, const char *what)
{
    if (err != -EINTR)
        gx_explain_call(&p->dev, err, what);
    return err;
}

/* Waits for an event; errors except -EINTR have been reported. 0 ms: without limit. */
static int await_event(struct ping *p, struct gdrc_cm_event *e, int timeout_ms, const char *what)
{
    uint64_t end = gx_now_ns() + (uint64_t)timeout_ms * 1000000;
    for (;;) {
        int n = take_event(p, e);
        if (n)
            return n < 0 ? failed(p, n, what) : 0;
        if (timeout_ms && gx_now_ns() > end) {
            gx_error("The other side may be stopped, or the network in between is down.",
                     "%s: nothing came within %d s", what, timeout_ms / 1000);
            return -ETIMEDOUT;
        }
        if ((n = gx_sleep(p->dev.ctx, NULL, NULL, 0, 100)) < 0)
            return failed(p, n, what);
    }
}

/* Whether an event has reported that the peer ended the connection. */
static bool has_gone(struct ping *p)
{
    struct gdrc_cm_event e;
    while (take_event(p, &e) == 1)
        if (e.event == GDRC_CM_EVENT_DISCONNECTED)
            p->gone = true;
    return p->gone;
}

/*
 * Waits until a request of this id has completed, or (WR_RECV) a message has come. -ECONNRESET: the
 * peer has ended the connection, which the caller judges. Other errors except -EINTR have been
 * reported.
 */
static int await(struct ping *p, uint64_t what)
{
    uint64_t end = gx_now_ns() + (uint64_t)WAIT_MS * 1000000;
    struct gdrc_wc wc;
    for (;;) {
        if (what == WR_RECV && p->waiting)
            return 0;
        int n = gdrc_poll_cq(p->dev.ctx, p->cq, 1, &wc);
        if (n < 0)
            return failed(p, n, "polling");
        if (n == 0) {
            if (has_gone(p))
                return -ECONNRESET;
            if (gx_now_ns() > end)
                return gx_error("The other side may be stopped, or the network in between is down.",
                                "no answer within %d s", WAIT_MS / 1000),
                       -ETIMEDOUT;
            if ((n = gx_sleep(p->dev.ctx, &p->cq, NULL, 0, 100)) < 0)
                return failed(p, n, "sleeping");
            continue;
        }
        if (wc.status == GDRC_WC_WR_FLUSH_ERR) {
            p->gone = true;
            continue;
        }
        /*
         * A peer that disconnects and exits at once removes the path: its DREQ came before that,
         * and says more than the request that then failed.
         */
        if (wc.status != GDRC_WC_SUCCESS && has_gone(p))
            return -ECONNRESET;
        if (wc.status != GDRC_WC_SUCCESS)
            return gx_explain_wc(&p->dev, p->qp, &wc, "an operation"), -EIO;
        if (!(wc.wr_id & WR_RECV)) {
            if (wc.wr_id == what)
                return 0;
            continue;
        }
        if (wc.byte_len != INFO_BYTES || p->waiting == RECEIVES)
            return gx_error("Is the other side rping or cm_ping?", "a message of %u bytes",
                            wc.byte_len),
                   -EPROTO;
        p->inbox[p->waiting++] = (uint32_t)wc.wr_id & ~WR_RECV;
    }
}

/* Reads the next message; its receive is posted again. */
static int receive_location(struct ping *p, uint64_t *addr, uint32_t *rkey, uint32_t *length)
{
    int err = await(p, WR_RECV);
    if (err)
        return err;
    uint32_t slot = p->inbox[0];
    memmove(p->inbox, p->inbox + 1, --p->waiting * sizeof p->inbox[0]);
    const uint8_t *m = at(p, slot * INFO_BYTES);
    *addr = gx_get64(m);
    *rkey = gx_get32(m + 8);
    *length = gx_get32(m + 12);
    err = post_recv(p, slot);
    return err ? failed(p, err, "posting a receive") : 0;
}

/* SENDs the location of `length` bytes at `offset` of our buffer. */
static int send_location(struct ping *p, uint64_t offset, uint64_t length)
{
    uint8_t *m = at(p, SEND_AT);
    gx_put64(m, p->attr.iova + offset);
    gx_put32(m + 8, p->attr.rkey);
    gx_put32(m + 12, (uint32_t)length);
    int err = post(p, GDRC_WR_SEND, SEND_AT, INFO_BYTES, 0, 0);
    return err ? err : await(p, WR_SEND);
}

static int rounds_of_server(struct ping *p, uint64_t *done)
{
    uint64_t addr;
    uint32_t rkey, length;
    for (*done = 0; !gx_stopping;) {
        int err = receive_location(p, &addr, &rkey, &length);
        if (err)
            return err;
        if (length > SIZE_MAX_BYTES)
            return gx_error("cm_ping takes up to 1 MiB.", "the peer offers %u bytes", length),
                   -EMSGSIZE;
        if ((err = post(p, GDRC_WR_RDMA_READ, DATA_AT, length, addr, rkey)) ||
            (err = await(p, WR_RDMA)))
            return err;
        if (p->verbose) {
            printf("ping data: ");
            gx_print_bytes(stdout, at(p, DATA_AT), strnlen((char *)at(p, DATA_AT), length), 64);
            printf("\n");
        }
        if ((err = send_location(p, DATA_AT, 0)) ||
            (err = receive_location(p, &addr, &rkey, &length)))
            return err;
        if (length > SIZE_MAX_BYTES)
            return gx_error("cm_ping takes up to 1 MiB.", "the peer wants %u bytes", length),
                   -EMSGSIZE;
        if ((err = post(p, GDRC_WR_RDMA_WRITE, DATA_AT, length, addr, rkey)) ||
            (err = await(p, WR_RDMA)))
            return err;
        /*
         * The bytes have been there and back. The side that has received its last message
         * disconnects, perhaps before our SEND has its completion.
         */
        (*done)++;
        if ((err = send_location(p, DATA_AT, 0)))
            return err;
    }
    return -EINTR;
}

static int rounds_of_client(struct ping *p, uint64_t *done)
{
    uint64_t addr, sink = DATA_AT + p->size;
    uint32_t rkey, length;
    for (*done = 0; !gx_stopping && (!p->rounds || *done < p->rounds); (*done)++) {
        int n = snprintf((char *)at(p, DATA_AT), p->size, "rdma-ping-%" PRIu64 ": ", *done);
        for (uint64_t i = (uint64_t)n; i + 1 < p->size; i++)
            *at(p, DATA_AT + i) = (uint8_t)('A' + (*done + i) % 58);
        *at(p, DATA_AT + p->size - 1) = 0;
        memset(at(p, sink), 0xee, p->size);
        int err = send_location(p, DATA_AT, p->size);
        if (!err)
            err = receive_location(p, &addr, &rkey, &length);
        if (!err)
            err = send_location(p, sink, p->size);
        if (!err)
            err = receive_location(p, &addr, &rkey, &length);
        if (err)
            return err;
        if (memcmp(at(p, DATA_AT), at(p, sink), p->size))
            return gx_error(NULL, "round %" PRIu64 ": what came back is not what was sent", *done),
                   -EBADMSG;
        if (p->verbose) {
            printf("ping data: ");
            gx_print_bytes(stdout, at(p, sink), strnlen((char *)at(p, sink), p->size), 64);
            printf("\n");
        }
    }
    return 0;
}

/* Disconnects, and frees the queue pair for the next connection. */
static void disconnect(struct ping *p)
{
    struct gdrc_cm_event e;
    if (p->id.handle) {
        /*
         * The signal has ended the rounds; the peer is still notified. Another signal ends this
         * wait, too.
         */
        int stopping = gx_stopping;
        gx_stopping = 0;
        if (!p->gone && gdrc_cm_disconnect(p->dev.ctx, p->id) == 0)
            while (await_event(p, &e, WAIT_MS, "disconnecting") == 0 &&
                   e.event != GDRC_CM_EVENT_DISCONNECTED)
                ;
        gx_stopping = gx_stopping ? gx_stopping : stopping;
        gdrc_cm_destroy(p->dev.ctx, p->id);
        p->id.handle = 0;
    }
    if (p->qp.handle)
        gdrc_qp_destroy(p->dev.ctx, p->qp);
    p->qp.handle = 0;
    struct gdrc_wc wc;
    while (gdrc_poll_cq(p->dev.ctx, p->cq, 1, &wc) > 0)
        ;
}

/* Reports why the connection ended early, as far as this side knows. */
static void explain_end(struct ping *p, const char *peer, uint64_t done)
{
    struct gdrc_cause cause;
    char why[256] = "";
    if (p->qp.handle && gdrc_qp_cause(p->dev.ctx, p->qp, &cause) == 0 &&
        cause.code != GDRC_CAUSE_NONE && cause.code != GDRC_CAUSE_FLUSHED)
        gdrc_cause_str(&cause, why, sizeof why);
    gx_error("The other side has ended or was told to stop: its own output says why.",
             "%s ended the connection after %" PRIu64 " rounds%s%s", peer, done, *why ? ": " : "",
             why);
}

static const char *text_of(const struct gdrc_cm_event *e, char out[80])
{
    char host[INET6_ADDRSTRLEN] = "?";
    inet_ntop(AF_INET6, e->peer.dgid, host, sizeof host);
    snprintf(out, 80, "%s port %u", strncmp(host, "::ffff:", 7) ? host : host + 7, e->remote_port);
    return out;
}

static int serve(struct ping *p, uint32_t port, bool persistent)
{
    gdrc_cm_id listener;
    struct gdrc_cm_event e;
    char peer[80];
    int err = gdrc_cm_listen(p->dev.ctx, GDRC_PS_TCP, port, 0, 0, &listener);
    if (err < 0)
        return gx_explain_call(&p->dev, err, "listening"), err;
    gx_note("waiting on %s port %d", p->dev.address, err);
    do {
        while ((err = await_event(p, &e, 0, "waiting for a client")) == 0 &&
               e.event != GDRC_CM_EVENT_CONNECT_REQUEST)
            ;
        if (err || (err = make_qp(p)))
            break;
        p->id = e.id;
        text_of(&e, peer);
        /*
         * Accepting brings the queue pair to RTS. The peer may send once it has the REP; it finds
         * us ready or repeats.
         */
        if ((err = gdrc_cm_accept(p->dev.ctx, p->id, p->qp, NULL)))
            gx_explain_call(&p->dev, err, "accepting");
        if (!err)
            err = fill_recv(p);
        if (!err && (err = await_event(p, &e, WAIT_MS, "waiting for the connection")) == 0 &&
            e.event != GDRC_CM_EVENT_ESTABLISHED) {
            gx_error("The client gave up: its own output says why.", "%s: %s, status %d", peer,
                     gdrc_cm_event_str(e.event), e.status);
            err = -ECONNREFUSED;
        }
        uint64_t done = 0;
        if (!err)
            err = rounds_of_server(p, &done);
        if (err == -ECONNRESET && done > 0)
            err = 0;
        if (err == -ECONNRESET)
            explain_end(p, peer, done);
        printf("%s: %" PRIu64 " rounds\n", peer, done);
        fflush(stdout);
        disconnect(p);
    } while (persistent && !gx_stopping);
    gdrc_cm_destroy(p->dev.ctx, listener);
    return err == -EINTR && persistent ? 0 : err;
}

static int ask(struct ping *p, const char *host, uint32_t port)
{
    struct gdrc_ah_attr to = { 0 };
    struct gdrc_cm_conn_param param = { .struct_size = sizeof param };
    struct gdrc_cm_event e;
    uint64_t done = 0, start = gx_now_ns();
    uint8_t v4[4];
    if (inet_pton(AF_INET, host, v4) == 1) {
        to.dgid[10] = to.dgid[11] = 0xff;
        memcpy(to.dgid + 12, v4, 4);
    } else if (inet_pton(AF_INET6, host, to.dgid) != 1) {
        gx_error("10.0.0.1 or fd00::1, say.", "%s is no address", host);
        return -EINVAL;
    }
    int err = make_qp(p);
    if (err)
        return err;
    err = gdrc_cm_connect(p->dev.ctx, &to, GDRC_PS_TCP, port, p->qp, &param, &p->id);
    if (err)
        gx_explain_call(&p->dev, err, "connecting");
    /* The queue pair is in INIT now, so the server's first message finds a receive. */
    if (!err)
        err = fill_recv(p);
    if (!err && (err = await_event(p, &e, 0, "waiting for the connection")) == 0 &&
        e.event != GDRC_CM_EVENT_ESTABLISHED) {
        gx_error(e.event == GDRC_CM_EVENT_REJECTED && e.status == (int)GDRC_REJ_INVALID_SERVICE_ID
                     ? "Nobody listens at that port."
                     : NULL,
                 "%s: %s, status %d", host, gdrc_cm_event_str(e.event), e.status);
        p->gone = true;
        err = -ECONNREFUSED;
    }
    if (!err)
        err = rounds_of_client(p, &done);
    if (err == -ECONNRESET)
        explain_end(p, host, done);
    /* A server without a limit has succeeded when it is told to stop. */
    bool told_to_stop = (!err || err == -EINTR) && gx_stopping;
    if (!err || told_to_stop)
        printf("%s: %" PRIu64 " rounds of %" PRIu64 " bytes, %.1f us each\n", host, done, p->size,
               done ? (double)(gx_now_ns() - start) / 1e3 / (double)done : 0.0);
    disconnect(p);
    return !told_to_stop ? err : p->rounds ? -EINTR : 0;
}

int main(int argc, char **argv)
{
    static const struct option longs[] = {
        { "server", no_argument, NULL, 's' },
        { "persistent", no_argument, NULL, 'P' },
        { "client", no_argument, NULL, 'c' },
        { "device", required_argument, NULL, 'd' },
        { "gid-index", required_argument, NULL, 'g' },
        { "port", required_argument, NULL, 'p' },
        { "count", required_argument, NULL, 'C' },
        { "size", required_argument, NULL, 'S' },
        { "verbose", no_argument, NULL, 'v' },
        GX_COMMON_OPTIONS,
    };
    static struct ping p = { .mem = { .fd = -1 }, .size = 64, .rounds = 10 };
    const char *device = NULL;
    uint64_t gid_index = 0, port = PORT;
    bool server = false, client = false, persistent = false;
    int err = 0;
    gx_program = "cm_ping";
    for (int c; !err && (c = gx_getopt(argc, argv, "sPcd:g:p:C:S:vhV", longs)) != -1;) {
        switch (c) {
        case 's': server = true; break;
        case 'P': server = persistent = true; break;
        case 'c': client = true; break;
        case 'd': device = optarg; break;
        case 'g': err = gx_parse_number(optarg, "--gid-index", 0, 1000, &gid_index); break;
        case 'p': err = gx_parse_number(optarg, "--port", 1, 65535, &port); break;
        case 'C': err = gx_parse_number(optarg, "--count", 0, UINT64_MAX, &p.rounds); break;
        case 'S': err = gx_parse_size(optarg, "--size", 32, SIZE_MAX_BYTES, &p.size); break;
        case 'v': p.verbose = true; break;
        case 'h': return usage(stdout), GX_EXIT_OK;
        default: err = -EINVAL; gx_note("try 'cm_ping --help'"); break;
        }
    }
    if (!err && (server == client || argc - optind != (int)client)) {
        gx_error("cm_ping -s waits, cm_ping -c HOST asks: see --help.", "bad arguments");
        err = -EINVAL;
    }
    if (err)
        return GX_EXIT_USAGE;
    gx_catch_signals();
    err = gx_dev_open(&p.dev, device, (unsigned)gid_index, NULL);
    if (!err)
        err = gx_mem_alloc(&p.mem, "host", DATA_AT + 2 * SIZE_MAX_BYTES, false);
    if (!err)
        err = gx_mr_register(&p.dev, p.mem.addr, p.mem.length,
                             GDRC_ACCESS_LOCAL_WRITE | GDRC_ACCESS_REMOTE_READ |
                                 GDRC_ACCESS_REMOTE_WRITE,
                             &p.mr, &p.attr);
    if (!err && (err = gdrc_cq_create(p.dev.ctx, 32, &p.cq, NULL)))
        gx_explain_call(&p.dev, err, "creating a completion queue");
    if (!err)
        err =
            server ? serve(&p, (uint32_t)port, persistent) : ask(&p, argv[optind], (uint32_t)port);
    if (p.cq.handle)
        gdrc_cq_destroy(p.dev.ctx, p.cq);
    if (p.mr.handle)
        gdrc_mr_dereg(p.dev.ctx, p.mr);
    gx_mem_free(&p.mem);
    gx_dev_close(&p.dev);
    return gx_exit_code(err);
}
