// SPDX-License-Identifier: MIT OR Apache-2.0
/*
 * ping: checks whether a device answers, and measures the round trip by UD messages, as
 * ibping does.
 *
 *   ping -S -d soft:127.0.0.1             answers all clients until it is stopped
 *   ping -d soft:127.0.0.2 127.0.0.1      asks once a second
 *
 * Names and numbers are exchanged over TCP when a client connects; the pings themselves are UD
 * packets, one each way.
 */
#include "../common/gx.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <string.h>
#include <unistd.h>

#define PORT 18514
#define GRH 40u
#define SIZE_MAX_BYTES 4096u
#define RECEIVES 256u
#define CLIENTS_MAX 32u
#define ANSWER_MS 1000
/* An answer within this time needs no wake-up. */
#define SPIN_NS 50000u
#define WR_RECV (1ull << 32)

/* Contents of a ping, big-endian; the rest is padding. */
#define PING_BYTES 16u

struct ping {
    struct gx_dev dev;
    struct gx_mem mem;
    gdrc_mr mr;
    struct gdrc_mr_attr attr;
    gdrc_cq cq;
    gdrc_qp qp;
    struct gdrc_endpoint local;
    size_t stride;
};

/*
 * A client that may be answered: its address came over the connection, and is valid until that
 * closes.
 */
struct client {
    struct gx_conn conn;
    gdrc_ah ah;
    struct gdrc_endpoint remote;
    uint64_t answered;
    bool known;
};

static void usage(FILE *to)
{
    fprintf(to,
            "usage: ping -S [-d DEVICE]          answer\n"
            "       ping [-d DEVICE] HOST        ask\n\n"
            "  -S, --server             answer until stopped\n"
            "  -d, --device DEVICE      soft:ADDRESS[:PORT], an address of this machine, or a "
            "network interface\n"
            "  -g, --gid-index N        which of the interface's addresses\n"
            "  -p, --port PORT          TCP port for the introduction (default %d)\n"
            "  -c, --count N            stop after so many\n"
            "  -i, --interval MS        between two pings (1000)\n"
            "  -f, --flood              the next ping leaves as soon as the answer came\n"
            "  -s, --size BYTES         of a ping, at most the path MTU (64)\n"
            "  -h, --help               this text\n"
            "  -V, --version            the version\n"
            "The exit code is 0 if any answer came.\n",
            PORT);
}

static uint8_t *slot(const struct ping *p, uint64_t i)
{
    return (uint8_t *)p->mem.addr + i * p->stride;
}

static int post_recv(struct ping *p, uint64_t i)
{
    gdrc_sge sge = {
        .addr = p->attr.iova + i * p->stride,
        .length = (uint32_t)p->stride,
        .lkey = p->attr.lkey,
    };
    gdrc_recv_wr wr = { .wr_id = WR_RECV | i, .sg_list = &sge, .num_sge = 1 };
    return gdrc_post_recv(p->dev.ctx, p->qp, &wr, NULL);
}

/* Slots 0 to RECEIVES-1 receive, those above send. */
static int post_send(struct ping *p, uint64_t i, uint64_t offset, uint32_t length, gdrc_ah ah,
                     const struct gdrc_endpoint *to)
{
    gdrc_sge sge = {
        .addr = p->attr.iova + i * p->stride + offset,
        .length = length,
        .lkey = p->attr.lkey,
    };
    gdrc_send_wr wr = {
        .wr_id = i,
        .sg_list = &sge,
        .num_sge = 1,
        .opcode = GDRC_WR_SEND,
        .send_flags = GDRC_SEND_SIGNALED,
    };
    wr.wr.ud = (gdrc_ud_wr){ .ah = ah, .remote_qpn = to->qpn, .remote_qkey = to->qkey };
    return gdrc_post_send(p->dev.ctx, p->qp, &wr, NULL);
}

static int open_ping(struct ping *p, const char *device, unsigned gid_index)
{
    struct gdrc_qp_init init;
    int err = gx_dev_open(&p->dev, device, gid_index, NULL);
    if (err)
        return err;
    p->stride = GRH + SIZE_MAX_BYTES + 24;
    err = gx_mem_alloc(&p->mem, "host", p->stride * 2 * RECEIVES, false);
    if (!err)
        err = gx_mr_register(&p->dev, p->mem.addr, p->mem.length, GDRC_ACCESS_LOCAL_WRITE, &p->mr,
                             &p->attr);
    if (err)
        return err;
    memset(&init, 0, sizeof init);
    init.struct_size = sizeof init;
    init.qp_type = GDRC_QPT_UD;
    init.pd = p->dev.pd;
    err = gdrc_cq_create(p->dev.ctx, 2 * RECEIVES, &p->cq, NULL);
    init.send_cq = init.recv_cq = p->cq;
    init.cap.max_send_wr = init.cap.max_recv_wr = RECEIVES;
    init.cap.max_send_sge = init.cap.max_recv_sge = 1;
    if (!err)
        err = gdrc_qp_create(p->dev.ctx, &init, &p->qp, NULL);
    memset(&p->local, 0, sizeof p->local);
    p->local.struct_size = sizeof p->local;
    if (!err)
        err = gdrc_endpoint_local(p->dev.ctx, p->qp, NULL, &p->local);
    if (!err)
        err = gdrc_qp_connect(p->dev.ctx, p->qp, &p->local, NULL, NULL);
    for (uint64_t i = 0; i < RECEIVES && !err; i++)
        err = post_recv(p, i);
    if (err)
        gx_explain_call(&p->dev, err, "making a UD queue pair");
    return err;
}

static void close_ping(struct ping *p)
{
    if (p->qp.handle)
        gdrc_qp_destroy(p->dev.ctx, p->qp);
    if (p->cq.handle)
        gdrc_cq_destroy(p->dev.ctx, p->cq);
    if (p->mr.handle)
        gdrc_mr_dereg(p->dev.ctx, p->mr);
    gx_mem_free(&p->mem);
    gx_dev_close(&p->dev);
}

static int learn(struct ping *p, const uint8_t *wire, size_t length, gdrc_ah *ah,
                 struct gdrc_endpoint *remote)
{
    memset(remote, 0, sizeof *remote);
    remote->struct_size = sizeof *remote;
    int err = length == GDRC_ENDPOINT_WIRE_BYTES ? gdrc_endpoint_unpack(wire, remote) : -EPROTO;
    struct gdrc_ah_attr attr = {
        .scope_id = p->dev.attr.scope_id,
        .udp_port = (uint16_t)remote->udp_port,
    };
    memcpy(attr.dgid, remote->gid, sizeof attr.dgid);
    if (!err)
        err = gdrc_ah_create(p->dev.ctx, p->dev.pd, &attr, ah);
    return err;
}

static int introduce(struct ping *p, struct gx_conn *conn)
{
    uint8_t wire[GDRC_ENDPOINT_WIRE_BYTES];
    int err = gdrc_endpoint_pack(&p->local, wire);
    return err ? err : gx_conn_send(conn, GX_MSG_ENDPOINT, wire, sizeof wire, -1, "the endpoint");
}

/* ---- server ---------------------------------------------------------------------------------- */

static void forget(struct ping *p, struct client *c)
{
    if (c->known)
        gx_step("%s has left: %" PRIu64 " pings answered", c->conn.peer, c->answered);
    gx_conn_close(&c->conn);
    if (c->ah.handle)
        gdrc_ah_destroy(p->dev.ctx, c->ah);
    memset(c, 0, sizeof *c);
    c->conn.fd = -1;
}

static void hear(struct ping *p, struct client *c)
{
    uint8_t body[GX_BODY_MAX];
    unsigned type = 0;
    gx_conn_pump(&c->conn);
    int n = gx_conn_take(&c->conn, &type, body, sizeof body);
    if (n == -EAGAIN)
        return;
    if (n >= 0 && type == GX_MSG_ENDPOINT && !c->known &&
        learn(p, body, (size_t)n, &c->ah, &c->remote) == 0 && introduce(p, &c->conn) == 0) {
        c->known = true;
        gx_step("%s asks", c->conn.peer);
        return;
    }
    forget(p, c);
}

static struct client *sender_of(struct client *clients, const gdrc_wc *wc, const uint8_t *grh)
{
    for (unsigned i = 0; i < CLIENTS_MAX; i++) {
        struct client *c = &clients[i];
        /*
         * An IPv4 header is in the last 20 of the 40 bytes, with the source at 12. An IPv6 header's
         * source is at 8.
         */
        bool same = c->known && c->remote.qpn == wc->src_qp &&
                    (grh[0] >> 4 == 6 ? !memcmp(c->remote.gid, grh + 8, 16)
                                      : !memcmp(c->remote.gid + 12, grh + 32, 4));
        if (same)
            return c;
    }
    return NULL;
}

static int answer(struct ping *p, struct client *clients)
{
    gdrc_wc wc[16];
    int n = gdrc_poll_cq(p->dev.ctx, p->cq, 16, wc);
    for (int i = 0; i < n; i++) {
        uint64_t at = wc[i].wr_id & ~WR_RECV;
        /* An answer that could not be sent is a lost ping, which the client notices. */
        bool sent = !(wc[i].wr_id & WR_RECV);
        if (!sent && wc[i].status == GDRC_WC_SUCCESS && wc[i].byte_len >= GRH + PING_BYTES) {
            struct client *c = sender_of(clients, &wc[i], slot(p, at));
            if (c && post_send(p, at, GRH, wc[i].byte_len - GRH, c->ah, &c->remote) == 0) {
                c->answered++;
                continue;
            }
        }
        int err = post_recv(p, at);
        if (err) {
            gx_explain_call(&p->dev, err, "posting a receive");
            return err;
        }
    }
    if (n < 0)
        gx_explain_call(&p->dev, n, "polling");
    return n;
}

static int serve(struct ping *p, uint16_t port)
{
    static struct client clients[CLIENTS_MAX];
    int listener = gx_tcp_listen(p->dev.address, port), err = 0;
    if (listener < 0)
        return listener;
    for (unsigned i = 0; i < CLIENTS_MAX; i++)
        clients[i].conn.fd = -1;
    gx_note("answering as %s, introductions on port %u", p->dev.name, (unsigned)port);
    while (err >= 0) {
        struct pollfd fds[CLIENTS_MAX + 1];
        for (unsigned i = 0; i < CLIENTS_MAX; i++)
            fds[i] = (struct pollfd){ .fd = clients[i].conn.fd, .events = POLLIN };
        fds[CLIENTS_MAX] = (struct pollfd){ .fd = listener, .events = POLLIN };
        while ((err = answer(p, clients)) > 0)
            ;
        if (err < 0 || (err = gx_sleep(p->dev.ctx, &p->cq, fds, CLIENTS_MAX + 1, 1000)) < 0)
            break;
        for (unsigned i = 0; i < CLIENTS_MAX; i++)
            if (clients[i].conn.fd >= 0 && fds[i].revents)
                hear(p, &clients[i]);
        for (unsigned i = 0; fds[CLIENTS_MAX].revents && i < CLIENTS_MAX; i++) {
            if (clients[i].conn.fd < 0) {
                gx_accept(listener, &clients[i].conn, p->dev.ctx);
                break;
            }
        }
    }
    for (unsigned i = 0; i < CLIENTS_MAX; i++)
        forget(p, &clients[i]);
    close(listener);
    return err == -EINTR && gx_stopping ? 0 : err;
}

/* ---- client ---------------------------------------------------------------------------------- */

struct tally { uint64_t sent, received, late; double min, max, sum, squares; };

static void count(struct tally *t, double us)
{
    t->min = t->received == 0 || us < t->min ? us : t->min;
    t->max = us > t->max ? us : t->max;
    t->sum += us;
    t->squares += us * us;
    t->received++;
}

/*
 * Waits for the answer to ping `number`, at most `ms`. Returns 1, 0 when the time is over, or a
 * negative errno.
 */
static int await(struct ping *p, struct gx_conn *conn, uint64_t number, uint64_t ms,
                 struct tally *t, bool quiet)
{
    uint64_t start = gx_now_ns(), end = start + ms * 1000000u, now;
    int found = 0;
    while ((now = gx_now_ns()) < end && !found) {
        gdrc_wc wc[8];
        int n = gdrc_poll_cq(p->dev.ctx, p->cq, 8, wc), err = 0;
        if (n < 0)
            return gx_explain_call(&p->dev, n, "polling"), n;
        for (int i = 0; i < n; i++) {
            uint64_t at = wc[i].wr_id & ~WR_RECV;
            if (wc[i].status != GDRC_WC_SUCCESS)
                return gx_explain_wc(&p->dev, p->qp, &wc[i],
                                     wc[i].wr_id & WR_RECV ? "RECV" : "SEND"),
                       -EIO;
            if (!(wc[i].wr_id & WR_RECV))
                continue;
            const uint8_t *in = slot(p, at) + GRH;
            if (wc[i].byte_len >= GRH + PING_BYTES && gx_get64(in) == number) {
                double us = (double)(gx_now_ns() - gx_get64(in + 8)) / 1e3;
                count(t, us);
                if (!quiet)
                    printf("%u bytes from %s: seq=%" PRIu64 " time=%.1f us\n", wc[i].byte_len - GRH,
                           conn->peer, number, us),
                        fflush(stdout);
                found = 1;
            } else {
                t->late++;
            }
            if ((err = post_recv(p, at)))
                return gx_explain_call(&p->dev, err, "posting a receive"), err;
        }
        if (n || now - start < SPIN_NS)
            continue;
        /* Sleeps, and notices when the server closes. */
        struct pollfd fd = { .fd = conn->fd, .events = POLLRDHUP };
        if ((err = gx_sleep(p->dev.ctx, &p->cq, &fd, 1, (int)((end - now) / 1000000 + 1))) < 0)
            return err;
        if (fd.revents & (POLLRDHUP | POLLHUP | POLLERR))
            return gx_error("Its own output says why.", "%s has left", conn->peer), -ECONNRESET;
    }
    return found;
}

static int ask(struct ping *p, const char *host, uint16_t port, uint64_t pings,
               uint64_t interval_ms, bool flood, uint64_t size)
{
    static struct gx_conn conn = { .fd = -1, .passed_fd = -1 };
    uint8_t wire[GDRC_ENDPOINT_WIRE_BYTES];
    struct gdrc_endpoint remote;
    struct tally t = { 0 };
    gdrc_ah ah = { 0 };
    int err = gx_tcp_connect(&conn, host, port, NULL, GX_TIMEOUT_MS);
    conn.ctx = p->dev.ctx;
    if (!err)
        err = introduce(p, &conn);
    int n =
        err ? err
            : gx_conn_recv(&conn, GX_MSG_ENDPOINT, wire, sizeof wire, GX_TIMEOUT_MS, "endpoint");
    if (n >= 0 && (err = learn(p, wire, (size_t)n, &ah, &remote)))
        gx_explain_call(&p->dev, err, "reading the server's endpoint");
    err = n < 0 ? n : err;
    uint32_t mtu = err ? 0 : 128u << (remote.mtu < p->local.mtu ? remote.mtu : p->local.mtu);
    if (!err && size > mtu) {
        gx_error("A ping is one packet.", "%" PRIu64 " bytes are more than the path MTU of %u",
                 size, mtu);
        err = -EMSGSIZE;
    }
    if (!err)
        printf("PING %s, QPN 0x%06x, UDP port %u: %" PRIu64 " bytes, path MTU %u\n", host,
               remote.qpn, remote.udp_port, size, mtu);
    for (uint64_t i = 1; !err && !gx_stopping && (!pings || i <= pings); i++) {
        uint64_t start = gx_now_ns(), at = RECEIVES + i % RECEIVES;
        gx_put64(slot(p, at), i);
        gx_put64(slot(p, at) + 8, start);
        if ((err = post_send(p, at, 0, (uint32_t)size, ah, &remote))) {
            gx_explain_call(&p->dev, err, "sending");
            break;
        }
        t.sent++;
        err = await(p, &conn, i, ANSWER_MS, &t, flood);
        if (err == 0 && !gx_stopping)
            gx_note("no answer to ping %" PRIu64 " within %d ms", i, ANSWER_MS);
        err = err > 0 ? 0 : err;
        uint64_t gone = (gx_now_ns() - start) / 1000000;
        if (!err && !flood && gone < interval_ms && (!pings || i < pings)) {
            err = gx_sleep(NULL, NULL, NULL, 0, (int)(interval_ms - gone));
            err = err > 0 ? 0 : err;
        }
    }
    if (t.sent) {
        double average = t.received ? t.sum / (double)t.received : 0,
               spread = t.received ? t.squares / (double)t.received - average * average : 0;
        printf("%" PRIu64 " sent, %" PRIu64 " received, %.1f %% lost", t.sent, t.received,
               100.0 * (double)(t.sent - t.received) / (double)t.sent);
        if (t.late)
            printf(", %" PRIu64 " late", t.late);
        if (t.received)
            printf("; there and back min/avg/max/mdev = %.1f/%.1f/%.1f/%.1f us", t.min, average,
                   t.max, spread > 0 ? sqrt(spread) : 0.0);
        printf("\n");
    }
    if (ah.handle)
        gdrc_ah_destroy(p->dev.ctx, ah);
    gx_conn_close(&conn);
    err = err == -EINTR ? 0 : err;
    return err ? err : t.received ? 0 : -ETIMEDOUT;
}

int main(int argc, char **argv)
{
    static const struct option longs[] = {
        { "server", no_argument, NULL, 'S' },
        { "device", required_argument, NULL, 'd' },
        { "gid-index", required_argument, NULL, 'g' },
        { "port", required_argument, NULL, 'p' },
        { "count", required_argument, NULL, 'c' },
        { "interval", required_argument, NULL, 'i' },
        { "flood", no_argument, NULL, 'f' },
        { "size", required_argument, NULL, 's' },
        GX_COMMON_OPTIONS,
    };
    static struct ping p = { .mem = { .fd = -1 } };
    const char *device = NULL;
    uint64_t gid_index = 0, port = PORT, pings = 0, interval = 1000, size = 64;
    bool server = false, flood = false;
    int err = 0;
    gx_program = "ping";
    for (int c; !err && (c = gx_getopt(argc, argv, "Sd:g:p:c:i:fs:hV", longs)) != -1;) {
        switch (c) {
        case 'S': server = true; break;
        case 'd': device = optarg; break;
        case 'g': err = gx_parse_number(optarg, "--gid-index", 0, 1000, &gid_index); break;
        case 'p': err = gx_parse_number(optarg, "--port", 1, 65535, &port); break;
        case 'c': err = gx_parse_number(optarg, "--count", 1, UINT64_MAX, &pings); break;
        case 'i': err = gx_parse_number(optarg, "--interval", 1, 3600000, &interval); break;
        case 'f': flood = true; break;
        case 's': err = gx_parse_number(optarg, "--size", PING_BYTES, SIZE_MAX_BYTES, &size); break;
        case 'h': return usage(stdout), GX_EXIT_OK;
        default: err = -EINVAL; gx_note("try 'ping --help'"); break;
        }
    }
    if (!err && argc - optind != !server) {
        if (argc - optind > !server)
            gx_error("ping -S answers, ping HOST asks: see --help.", "unexpected argument '%s'",
                     argv[optind + !server]);
        else
            gx_error("ping -S answers, ping HOST asks: see --help.", "no HOST");
        err = -EINVAL;
    }
    if (err)
        return GX_EXIT_USAGE;
    gx_catch_signals();
    err = open_ping(&p, device, (unsigned)gid_index);
    if (!err)
        err = server ? serve(&p, (uint16_t)port)
                     : ask(&p, argv[optind], (uint16_t)port, pings, interval, flood, size);
    close_ping(&p);
    return gx_exit_code(err);
}
