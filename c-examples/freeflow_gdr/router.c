// SPDX-License-Identifier: MIT OR Apache-2.0
/*
 * router: owns a buffer and the device. A client on this host gets the buffer by descriptor over a
 * Unix socket and writes into it; a peer on any host reads and writes it by RDMA. The client needs
 * neither the device nor the network: that is how a container gets RDMA without getting the NIC.
 */
#include "note.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define CQ_ENTRIES 64

struct router {
    const char *device, *listen, *path, *kind;
    unsigned gid_index;
    uint16_t port;
    uint64_t size;
    int patience_ms; /* for a client or peer to arrive; -1: for ever */
    bool keep, any_user;

    struct gx_dev dev;
    struct gx_mem mem;
    gdrc_mr mr;
    gdrc_cq cq;
    int tcp, local;
};

static void usage(FILE *to)
{
    fprintf(
        to,
        "usage: router -d DEVICE [options]\n"
        "Owns a buffer, hands it to a client over a Unix socket and serves it to a peer by "
        "RDMA.\n\n"
        "  -d, --device DEVICE     soft:ADDRESS[:PORT], an address of this machine, or a network "
        "interface\n"
        "  -g, --gid-index N       which of the interface's addresses (default 0)\n"
        "  -p, --port PORT         TCP port for the peer (default %d)\n"
        "  -l, --listen ADDRESS    where that is (default the device's address, which is another\n"
        "                          machine's where a router has the device)\n"
        "  -s, --socket PATH       Unix socket for the client (default %s)\n"
        "  -m, --memory KIND       host, shared or cuda[:BDF] (default host); shared or cuda, "
        "where a\n"
        "                          router has the device\n"
        "  -b, --size BYTES        size of the buffer, up to 2G (default 1M)\n"
        "  -t, --timeout SECONDS   give up when no client or peer comes for so long (default 0: "
        "wait for ever)\n"
        "  -k, --keep              serve round after round (default: one round, then exit)\n"
        "      --any-user          let clients of other users in, too\n"
        "  -h, --help              this text\n"
        "  -V, --version           the version\n",
        FF_PORT, FF_SOCKET);
}

static int parse_options(int argc, char **argv, struct router *r)
{
    enum { ANY_USER = 256 };
    static const struct option longs[] = {
        { "device", required_argument, NULL, 'd' },  { "gid-index", required_argument, NULL, 'g' },
        { "port", required_argument, NULL, 'p' },    { "socket", required_argument, NULL, 's' },
        { "memory", required_argument, NULL, 'm' },  { "size", required_argument, NULL, 'b' },
        { "timeout", required_argument, NULL, 't' }, { "keep", no_argument, NULL, 'k' },
        { "any-user", no_argument, NULL, ANY_USER }, { "listen", required_argument, NULL, 'l' },
        GX_COMMON_OPTIONS,
    };
    uint64_t n;
    for (int c; (c = gx_getopt(argc, argv, "d:g:p:l:s:m:b:t:khV", longs)) != -1;) {
        switch (c) {
        case 'd': r->device = optarg; break;
        case 'g':
            if (gx_parse_number(optarg, "--gid-index", 0, 255, &n))
                return -EINVAL;
            r->gid_index = (unsigned)n;
            break;
        case 'p':
            if (gx_parse_number(optarg, "--port", 1, 65535, &n))
                return -EINVAL;
            r->port = (uint16_t)n;
            break;
        case 'l': r->listen = optarg; break;
        case 's': r->path = optarg; break;
        case 'm': r->kind = optarg; break;
        case 'b':
            if (gx_parse_size(optarg, "--size", 4096, FF_SIZE_MAX, &r->size))
                return -EINVAL;
            break;
        case 't':
            if (gx_parse_number(optarg, "--timeout", 0, 86400, &n))
                return -EINVAL;
            r->patience_ms = n ? (int)n * 1000 : -1;
            break;
        case 'k': r->keep = true; break;
        case ANY_USER: r->any_user = true; break;
        case 'h': usage(stdout); exit(GX_EXIT_OK);
        default: gx_note("try 'router --help'"); return -EINVAL;
        }
    }
    if (optind < argc) {
        gx_error("See --help.", "unexpected argument '%s'", argv[optind]);
        return -EINVAL;
    }
    if (!r->device) {
        gx_error("For example -d soft:127.0.0.1, or -d eth0 -g 0.", "no device given");
        return -EINVAL;
    }
    return 0;
}

/* Waits for somebody to connect. */
static int wait_for(struct router *r, int listener, struct gx_conn *conn, const char *who)
{
    uint64_t start = gx_now_ns();
    for (;;) {
        int err = gx_accept(listener, conn, r->dev.ctx);
        if (err != -EAGAIN) {
            if (err)
                gx_error(NULL, "accepting a %s: %s", who, strerror(-err));
            return err;
        }
        if (r->patience_ms >= 0 && gx_now_ns() - start > (uint64_t)r->patience_ms * 1000000u) {
            gx_error("Start it, and compare addresses, port and socket path; --timeout 0 waits for "
                     "ever.",
                     "no %s came within %d s", who, r->patience_ms / 1000);
            return -ETIMEDOUT;
        }
        struct pollfd p = { .fd = listener, .events = POLLIN };
        int ready = gx_sleep(r->dev.ctx, NULL, &p, 1, 100);
        if (ready < 0)
            return ready;
    }
}

/* The kernel, not the client, says who the client is. */
static int check_client(struct router *r, struct gx_conn *client)
{
    struct ucred who;
    socklen_t length = sizeof who;
    if (getsockopt(client->fd, SOL_SOCKET, SO_PEERCRED, &who, &length) < 0)
        return -errno;
    /* A client in another pid namespace has no pid here: the kernel says 0. */
    gx_step("client connected: pid %d, uid %u, gid %u (as the kernel says)", (int)who.pid, who.uid,
            who.gid);
    snprintf(client->peer, sizeof client->peer, "the client (pid %d)", (int)who.pid);
    if (who.uid != geteuid() && !r->any_user) {
        gx_error("Start the router with --any-user to let other users in.",
                 "refused a client of uid %u", who.uid);
        gx_conn_send_error(client, "this router serves uid %u only", geteuid());
        return -EACCES;
    }
    return 0;
}

static int serve_client(struct router *r, struct gx_conn *client)
{
    uint8_t body[FF_TOKEN_AT + sizeof r->mem.token];
    int err = check_client(r, client);
    if (err)
        return err;
    memset(body, 0, sizeof body);
    gx_put64(body, r->mem.length);
    memcpy(body + FF_KIND_AT, r->mem.kind, strlen(r->mem.kind));
    memcpy(body + FF_TOKEN_AT, r->mem.token, r->mem.token_bytes);
    err = gx_conn_send(client, FF_MSG_BUFFER, body, FF_TOKEN_AT + r->mem.token_bytes, r->mem.fd,
                       "the buffer");
    if (err)
        return err;
    gx_step("handed the buffer over (%zu bytes, %s), waiting for the client's signal",
            r->mem.length,
            !r->mem.gpu      ? "sealed"
            : r->mem.fd >= 0 ? "by descriptor"
                             : "by CUDA IPC");
    int n = gx_conn_recv(client, FF_MSG_WRITTEN, NULL, 0, 6 * GX_TIMEOUT_MS, "signal");
    if (n < 0)
        return n;
    struct note note;
    err = note_check(&r->mem, &note);
    if (err) {
        gx_conn_send_error(client, "the buffer holds no whole note");
        return err;
    }
    gx_step("client has written:");
    note_show(&r->mem, &note);
    return 0;
}

static int serve_peer(struct router *r, struct gx_conn *peer)
{
    struct gdrc_endpoint remote;
    struct note note;
    gdrc_qp qp;
    uint32_t qpn = 0;
    gx_step("peer connected from %s", peer->peer);
    int err = gx_qp_create(&r->dev, r->cq, 4, 4, 1, &qp, &qpn);
    if (err) {
        gx_conn_send_error(peer, "no queue pair");
        return err;
    }
    err = gx_conn_send(peer, FF_MSG_HELLO, NULL, 0, -1, "the greeting");
    if (!err)
        err = gx_qp_handshake(&r->dev, qp, &r->mr, peer, 5, &remote);
    if (!err)
        err = gx_ready(peer);
    if (!err) {
        gx_step("queue pair 0x%06x is connected to 0x%06x of the peer; it may now read and write "
                "the buffer",
                qpn, remote.qpn);
        int n =
            gx_conn_recv(peer, FF_MSG_READ, NULL, 0, 6 * GX_TIMEOUT_MS, "word that it has read");
        err = n < 0 ? n : 0;
    }
    if (!err) {
        gx_step("peer has read and checked the client's note");
        int n = gx_conn_recv(peer, FF_MSG_WRITTEN, NULL, 0, 6 * GX_TIMEOUT_MS,
                             "word that it has written");
        err = n < 0 ? n : note_check(&r->mem, &note);
    }
    if (!err) {
        gx_step("peer has written:");
        note_show(&r->mem, &note);
        err = gx_conn_send(peer, GX_MSG_DONE, NULL, 0, -1, "thanks");
    }
    int left = gdrc_qp_destroy(r->dev.ctx, qp);
    if (left)
        gx_explain_call(&r->dev, left, "destroying the queue pair");
    return err;
}

/*
 * One client, then one peer. A client or peer that fails costs only itself: the next one is waited
 * for.
 */
static int serve_round(struct router *r)
{
    struct gx_conn client = { .fd = -1, .passed_fd = -1 }, peer = { .fd = -1, .passed_fd = -1 };
    int err;
    gx_step("waiting for a client on %s", r->path);
    do {
        gx_conn_close(&client);
        err = wait_for(r, r->local, &client, "client");
        if (err)
            return err;
        err = serve_client(r, &client);
    } while (err && err != -EINTR);
    if (!err)
        gx_step("waiting for a peer on %s port %u", r->listen, r->port);
    while (!err) {
        err = wait_for(r, r->tcp, &peer, "peer");
        if (err)
            break;
        err = serve_peer(r, &peer);
        gx_conn_close(&peer);
        if (!err || err == -EINTR)
            break;
        gx_note("that peer failed; waiting for another");
        err = 0;
    }
    if (!err && gx_conn_send(&client, FF_MSG_WRITTEN, NULL, 0, -1, NULL) == 0) {
        gx_step("told the client");
        /* Wait until it has looked: a new round may overwrite the note. */
        if (gx_conn_recv(&client, GX_MSG_DONE, NULL, 0, GX_TIMEOUT_MS,
                         "word that it has seen the note") >= 0)
            gx_step("client has seen the peer's note");
    } else if (!err) {
        gx_note("the client has left before the peer's note came");
    } else if (client.fd >= 0) {
        gx_conn_send_error(&client, "no peer came");
    }
    gx_conn_close(&client);
    return err;
}

static int start(struct router *r)
{
    struct gdrc_mr_attr attr;
    int err = gx_dev_open(&r->dev, r->device, r->gid_index, NULL);
    if (err)
        return err;
    gx_step("device %s is open, QPNs from 0x%06x, UDP port %u", r->dev.name, r->dev.attr.qpn_base,
            r->dev.attr.udp_port);
    err = gx_mem_alloc(&r->mem, r->kind, r->size, true);
    if (err)
        return err;
    struct gdrc_memory memory;
    gx_mem_describe(&r->mem, &memory);
    err = gx_mem_register(&r->dev, &memory,
                          GDRC_ACCESS_LOCAL_WRITE | GDRC_ACCESS_REMOTE_READ |
                              GDRC_ACCESS_REMOTE_WRITE,
                          &r->mr, &attr);
    if (err)
        return err;
    gx_step("buffer of %zu bytes in %s memory is registered (%s), rkey 0x%08x", r->mem.length,
            r->mem.kind, gdrc_mr_route_str(attr.route), attr.rkey);
    err = gdrc_cq_create(r->dev.ctx, CQ_ENTRIES, &r->cq, NULL);
    if (err) {
        gx_explain_call(&r->dev, err, "creating a CQ");
        return err;
    }
    if (!r->listen)
        r->listen = r->dev.address;
    r->tcp = gx_tcp_listen(r->listen, r->port);
    r->local = r->tcp < 0 ? -1 : gx_unix_listen(r->path, r->any_user ? 0666 : 0600);
    return r->tcp < 0 ? r->tcp : r->local < 0 ? r->local : 0;
}

static void stop(struct router *r)
{
    if (r->local >= 0) {
        close(r->local);
        unlink(r->path);
    }
    if (r->tcp >= 0)
        close(r->tcp);
    if (r->cq.handle)
        gdrc_cq_destroy(r->dev.ctx, r->cq);
    if (r->mr.handle)
        gdrc_mr_dereg(r->dev.ctx, r->mr);
    gx_mem_free(&r->mem);
    gx_dev_close(&r->dev);
}

int main(int argc, char **argv)
{
    struct router r = {
        .path = FF_SOCKET,
        .kind = "host",
        .port = FF_PORT,
        .size = 1 << 20,
        .patience_ms = -1,
        .tcp = -1,
        .local = -1,
    };
    gx_program = "router";
    r.mem.fd = -1;
    if (parse_options(argc, argv, &r))
        return GX_EXIT_USAGE;
    gx_catch_signals();
    int err = start(&r);
    unsigned rounds = 0;
    while (!err) {
        err = serve_round(&r);
        if (err)
            break;
        rounds++;
        if (!r.keep)
            break;
    }
    /* Being told to stop is how a router that keeps serving ends. */
    if (err == -EINTR && r.keep)
        err = 0;
    stop(&r);
    if (!err)
        gx_step("done, %u round%s served", rounds, rounds == 1 ? "" : "s");
    return gx_exit_code(err);
}
