// SPDX-License-Identifier: MIT OR Apache-2.0
/*
 * pingpong: one message back and forth, over RC, UC or UD, as ibv_rc_pingpong, ibv_uc_pingpong and
 * ibv_ud_pingpong do.
 *
 *   pingpong rc -d soft:127.0.0.1               waits
 *   pingpong rc -d soft:127.0.0.2 127.0.0.1     begins
 *   pingpong rc -d soft:10.0.0.1 --ibv-peer -p 18515 10.0.0.2
 *                                               begins, with an ibv_rc_pingpong as the other side
 */
#include "ibv_peer.h"

#include <errno.h>
#include <inttypes.h>
#include <sched.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

#define PORT 18518
#define IBV_PORT 18515
#define UD_GRH 40u
#define SILENCE_NS 2000000000u
#define YIELD_IDLE 256u
/*
 * The tools of rdma-core exit when they have received everything: their ACK of our last message may
 * be missing, and they may need ours again.
 */
#define LAST_ACK_NS 1000000000u
#define LINGER_NS 300000000u

enum { WR_RECV = 1, WR_SEND = 2 };

struct pingpong {
    uint32_t type;
    const char *device, *host;
    uint64_t gid_index, port, size, mtu, rx_depth, iters;
    bool events, check, ibv_peer;
    struct gx_dev dev;
    struct gx_conn conn;
    struct gx_mem mem;
    gdrc_mr mr;
    struct gdrc_mr_attr attr;
    gdrc_cq cq;
    gdrc_qp qp;
    gdrc_ah ah;
    struct gdrc_endpoint local, remote;
};

static void usage(FILE *to)
{
    fprintf(to,
            "usage: pingpong rc|uc|ud [OPTIONS]        wait for the other side\n"
            "       pingpong rc|uc|ud [OPTIONS] HOST   begin\n\n"
            "  -d, --ib-dev, --device DEVICE  soft:ADDRESS[:PORT], an address of this machine, or "
            "a network interface\n"
            "  -g, --gid-idx N                which of the interface's addresses\n"
            "  -p, --port PORT                TCP port for the introduction (default %d)\n"
            "  -s, --size BYTES               message size (4096; ud 1024); both sides alike\n"
            "  -m, --mtu BYTES                path MTU (what the link and the route carry)\n"
            "  -r, --rx-depth N               receives posted (500)\n"
            "  -n, --iters N                  exchanges (1000); both sides alike\n"
            "  -e, --events                   sleep until a completion comes instead of polling\n"
            "  -c, --chk                      check what was received\n"
            "  -I, --ibv-peer                 the other side is an ibv_rc_pingpong, "
            "ibv_uc_pingpong or ibv_ud_pingpong (which\n"
            "                                 take -p %d, and -m 1024, by default); not with -c\n"
            "  -h, --help                     this text\n"
            "  -V, --version                  the version\n",
            PORT, IBV_PORT);
}

static uint8_t letter(uint64_t number, uint64_t offset)
{
    return (uint8_t)(number * 7 + offset + 1);
}

static int wait_for_peer(struct pingpong *pp)
{
    int listener = gx_tcp_listen(pp->dev.address, (uint16_t)pp->port), err = listener;
    struct pollfd p = { .fd = listener, .events = POLLIN };
    if (listener < 0)
        return listener;
    gx_note("waiting on %s port %u", pp->dev.address, (unsigned)pp->port);
    while ((err = gx_accept(listener, &pp->conn, pp->dev.ctx)) == -EAGAIN &&
           (err = gx_sleep(pp->dev.ctx, NULL, &p, 1, 1000)) >= 0)
        ;
    close(listener);
    return err;
}

static void show(const char *side, const struct gdrc_endpoint *e, const struct gx_dev *dev)
{
    printf("  %-6s address: QPN 0x%06x, PSN 0x%06x, GID ", side, e->qpn, e->psn);
    for (int i = 0; i < 16; i += 2)
        printf("%s%02x%02x", i ? ":" : "", e->gid[i], e->gid[i + 1]);
    printf(", UDP port %u%s%s\n", e->udp_port, dev ? ", device " : "", dev ? dev->name : "");
}

/* Makes the objects in the order of rdma.c; main destroys them. */
static int prepare(struct pingpong *pp)
{
    struct gdrc_qp_init init;
    int err = gx_dev_open(&pp->dev, pp->device, (unsigned)pp->gid_index, NULL);
    if (err)
        return err;
    pp->conn.ctx = pp->dev.ctx;
    /* One half to send from, one to receive into; a UD receive begins with the GRH. */
    err = gx_mem_alloc(&pp->mem, "host", 2 * (pp->size + UD_GRH), false);
    if (!err)
        err = gx_mr_register(&pp->dev, pp->mem.addr, pp->mem.length, GDRC_ACCESS_LOCAL_WRITE,
                             &pp->mr, &pp->attr);
    if (err)
        return err;
    memset(&init, 0, sizeof init);
    init.struct_size = sizeof init;
    init.qp_type = pp->type;
    init.pd = pp->dev.pd;
    err = gdrc_cq_create(pp->dev.ctx, (uint32_t)pp->rx_depth + 1, &pp->cq, NULL);
    init.send_cq = init.recv_cq = pp->cq;
    init.cap.max_send_wr = 1;
    init.cap.max_recv_wr = (uint32_t)pp->rx_depth;
    init.cap.max_send_sge = init.cap.max_recv_sge = 1;
    if (!err)
        err = gdrc_qp_create(pp->dev.ctx, &init, &pp->qp, NULL);
    memset(&pp->local, 0, sizeof pp->local);
    pp->local.struct_size = sizeof pp->local;
    if (!err)
        err = gdrc_endpoint_local(pp->dev.ctx, pp->qp, NULL, &pp->local);
    if (err) {
        gx_explain_call(&pp->dev, err, "making a queue pair");
        return err;
    }
    if (pp->ibv_peer)
        pp->local.qkey = IBV_PEER_QKEY;
    for (uint32_t code = GDRC_MTU_256; pp->mtu && code <= pp->local.mtu; code++)
        if (128u << code == pp->mtu)
            pp->local.mtu = code;
    if (pp->mtu && 128u << pp->local.mtu != pp->mtu) {
        gx_error("It is 256, 512, 1024, 2048 or 4096, and fits the link.",
                 "no path MTU of %" PRIu64 " bytes here", pp->mtu);
        return -EINVAL;
    }
    return 0;
}

/* Connects our queue pair: the remote endpoint is known. */
static int connect_qp(struct pingpong *pp)
{
    int err = gdrc_qp_connect(pp->dev.ctx, pp->qp, &pp->local, &pp->remote, NULL);
    if (!err && pp->type == GDRC_QPT_UD) {
        struct gdrc_ah_attr ah = {
            .scope_id = pp->dev.attr.scope_id,
            .udp_port = (uint16_t)pp->remote.udp_port,
        };
        memcpy(ah.dgid, pp->remote.gid, sizeof ah.dgid);
        err = gdrc_ah_create(pp->dev.ctx, pp->dev.pd, &ah, &pp->ah);
    }
    if (err)
        gx_explain_call(&pp->dev, err, "connecting");
    return err;
}

static int connect_peer(struct pingpong *pp)
{
    uint8_t wire[GDRC_ENDPOINT_WIRE_BYTES];
    if (!pp->mtu)
        gx_endpoint_fit(&pp->dev, &pp->conn, &pp->local);
    int err = gdrc_endpoint_pack(&pp->local, wire);
    if (!err)
        err = gx_conn_send(&pp->conn, GX_MSG_ENDPOINT, wire, sizeof wire, -1, "the endpoint");
    if (err)
        return err;
    int n = gx_conn_recv(&pp->conn, GX_MSG_ENDPOINT, wire, sizeof wire, GX_TIMEOUT_MS, "endpoint");
    if (n < 0)
        return n;
    memset(&pp->remote, 0, sizeof pp->remote);
    pp->remote.struct_size = sizeof pp->remote;
    err = n == (int)sizeof wire ? gdrc_endpoint_unpack(wire, &pp->remote) : -EPROTO;
    if (!err && pp->remote.qp_type != pp->type) {
        gx_error("Start both sides with the same of rc, uc and ud.",
                 "the other side has another type of queue pair");
        gx_conn_send_error(&pp->conn, "you have another type of queue pair");
        return -EINVAL;
    }
    if (err) {
        gx_explain_call(&pp->dev, err, "unpacking the endpoint");
        return err;
    }
    return connect_qp(pp);
}

static int post_recv(struct pingpong *pp)
{
    gdrc_sge sge = {
        .addr = pp->attr.iova + pp->size + UD_GRH,
        .length = (uint32_t)(pp->size + UD_GRH),
        .lkey = pp->attr.lkey,
    };
    gdrc_recv_wr wr = { .wr_id = WR_RECV, .sg_list = &sge, .num_sge = 1 };
    return gdrc_post_recv(pp->dev.ctx, pp->qp, &wr, NULL);
}

static int post_send(struct pingpong *pp, uint64_t number)
{
    uint8_t *out = pp->mem.addr;
    for (uint64_t i = 0; pp->check && i < pp->size; i++)
        out[i] = letter(number, i);
    gdrc_sge sge = { .addr = pp->attr.iova, .length = (uint32_t)pp->size, .lkey = pp->attr.lkey };
    gdrc_send_wr wr = {
        .wr_id = WR_SEND,
        .sg_list = &sge,
        .num_sge = 1,
        .opcode = GDRC_WR_SEND,
        .send_flags = GDRC_SEND_SIGNALED,
    };
    if (pp->type == GDRC_QPT_UD)
        wr.wr.ud = (gdrc_ud_wr){
            .ah = pp->ah,
            .remote_qpn = pp->remote.qpn,
            .remote_qkey = pp->remote.qkey,
        };
    return gdrc_post_send(pp->dev.ctx, pp->qp, &wr, NULL);
}

static int check_data(const struct pingpong *pp, uint64_t number)
{
    const uint8_t *in =
        (const uint8_t *)pp->mem.addr + pp->size + UD_GRH + (pp->type == GDRC_QPT_UD ? UD_GRH : 0);
    for (uint64_t i = 0; i < pp->size; i++) {
        if (in[i] != letter(number, i)) {
            gx_error("Start both sides with -c.",
                     "message %" PRIu64 " is wrong from byte %" PRIu64 " on", number, i);
            return -EIO;
        }
    }
    return 0;
}

static int post_receives(struct pingpong *pp)
{
    int err = 0;
    for (uint64_t i = 0; i < pp->rx_depth && !err; i++)
        if ((err = post_recv(pp)))
            gx_explain_call(&pp->dev, err, "posting receives");
    return err;
}

/*
 * As connect_peer and what follows it, with a tool of rdma-core: the side that waits must be ready
 * before it answers.
 */
static int meet_ibv_peer(struct pingpong *pp)
{
    bool begins = pp->host != NULL;
    int err = begins ? ibv_peer_send(&pp->conn, &pp->local) : 0;
    if (!err)
        err = ibv_peer_receive(&pp->conn, &pp->local, &pp->remote);
    if (!err)
        err = connect_qp(pp);
    if (!err)
        err = post_receives(pp);
    if (!err && !begins)
        err = ibv_peer_send(&pp->conn, &pp->local);
    return err ? err : ibv_peer_done(&pp->conn, begins);
}

/* Answers retransmissions of a tool that missed our last ACK. */
static void linger(struct pingpong *pp)
{
    for (uint64_t end = gx_now_ns() + LINGER_NS;
         gx_now_ns() < end && gx_sleep(pp->dev.ctx, NULL, NULL, 0, 20) >= 0;)
        ;
}

static int play(struct pingpong *pp)
{
    gdrc_wc wc[2];
    uint64_t received = 0, sent = 0, idle = 0, start = gx_now_ns(), last = start,
             grh = pp->type == GDRC_QPT_UD ? UD_GRH : 0;
    bool sending = false, begins = pp->host != NULL;
    int err = 0;
    while (!err && !gx_stopping && (received < pp->iters || sent < pp->iters || sending)) {
        /*
         * The side that begins is one message ahead; a slot is free once the last message was
         * acknowledged.
         */
        if (!sending && sent < pp->iters && sent < received + begins) {
            err = post_send(pp, sent);
            sending = !err;
            sent += sending;
        }
        int n = err ? 0 : gdrc_poll_cq(pp->dev.ctx, pp->cq, 2, wc);
        if (err || n < 0) {
            gx_explain_call(&pp->dev, err ? err : n, err ? "posting" : "polling");
            return err ? err : n;
        }
        for (int i = 0; i < n && !err; i++) {
            /*
             * Everything is done: receives that are left are flushed if the other side exits first.
             */
            if (received == pp->iters && sent == pp->iters && !sending)
                break;
            if (wc[i].status != GDRC_WC_SUCCESS) {
                gx_explain_wc(&pp->dev, pp->qp, &wc[i], wc[i].wr_id == WR_SEND ? "SEND" : "RECV");
                err = -EIO;
            } else if (wc[i].wr_id == WR_SEND) {
                sending = false;
            } else if (wc[i].byte_len != pp->size + grh) {
                gx_error("Start both sides with the same -s.",
                         "a message of %" PRIu64 " bytes came", wc[i].byte_len - grh);
                err = -EIO;
            } else {
                err = pp->check ? check_data(pp, received) : 0;
                received++;
                if (!err)
                    err = post_recv(pp);
            }
        }
        idle = n ? 0 : idle + 1;
        if (idle == 1)
            last = gx_now_ns();
        if (idle && idle % YIELD_IDLE == 0) {
            sched_yield();
            if (pp->ibv_peer && received == pp->iters && sent == pp->iters &&
                gx_now_ns() - last > LAST_ACK_NS)
                break;
            if (gx_now_ns() - last > (pp->type == GDRC_QPT_RC ? 5u : 1u) * (uint64_t)SILENCE_NS) {
                gx_error(pp->type == GDRC_QPT_RC
                             ? "The other side may be stopped."
                             : "UC and UD do not repeat what the network lost: try again.",
                         "nothing came after %" PRIu64 " of %" PRIu64 " messages", received,
                         pp->iters);
                err = -ETIMEDOUT;
            }
        }
        if (pp->events && idle > 16 && !err &&
            (err = gx_sleep(pp->dev.ctx, &pp->cq, NULL, 0, 100)) > 0)
            err = 0;
    }
    uint64_t ns = gx_now_ns() - start;
    if (err || gx_stopping)
        return err ? err : -EINTR;
    double seconds = (double)ns / 1e9, bytes = 2.0 * (double)pp->size * (double)pp->iters;
    printf("%.0f bytes in %.3f seconds = %.2f Mbit/sec\n", bytes, seconds,
           bytes * 8 / 1e6 / seconds);
    printf("%" PRIu64 " iters in %.3f seconds = %.2f usec/iter\n", pp->iters, seconds,
           (double)ns / 1e3 / (double)pp->iters);
    if (pp->check)
        printf("all %" PRIu64 " messages were right\n", pp->iters);
    return 0;
}

static int run(struct pingpong *pp)
{
    int err = prepare(pp);
    if (!err)
        err = pp->host
                  ? gx_tcp_connect(&pp->conn, pp->host, (uint16_t)pp->port, NULL, GX_TIMEOUT_MS)
                  : wait_for_peer(pp);
    pp->conn.ctx = pp->dev.ctx;
    if (!err)
        err = pp->ibv_peer ? meet_ibv_peer(pp) : connect_peer(pp);
    if (err)
        return err;
    show("local", &pp->local, &pp->dev);
    show("remote", &pp->remote, NULL);
    uint32_t mtu = 128u << (pp->local.mtu < pp->remote.mtu ? pp->local.mtu : pp->remote.mtu);
    if (pp->type == GDRC_QPT_UD && pp->size > mtu) {
        gx_error("Both sides: -s with at most so many bytes.",
                 "a UD message is one packet: at most %u bytes here", mtu);
        if (!pp->ibv_peer)
            gx_conn_send_error(&pp->conn, "the path MTU is %u bytes", mtu);
        return -EMSGSIZE;
    }
    if (pp->ibv_peer) {
        err = play(pp);
        linger(pp);
        return err;
    }
    err = post_receives(pp);
    if (!err)
        err = gx_ready(&pp->conn);
    if (!err)
        err = play(pp);
    if (!err)
        err = gx_ready(&pp->conn);
    else if (err != -EREMOTEIO)
        gx_conn_send_error(&pp->conn, "the other side gave up: %s", gdrc_strerror(err));
    return err;
}

int main(int argc, char **argv)
{
    static const struct option longs[] = {
        { "device", required_argument, NULL, 'd' },
        { "ib-dev", required_argument, NULL, 'd' },
        { "gid-idx", required_argument, NULL, 'g' },
        { "port", required_argument, NULL, 'p' },
        { "size", required_argument, NULL, 's' },
        { "mtu", required_argument, NULL, 'm' },
        { "rx-depth", required_argument, NULL, 'r' },
        { "iters", required_argument, NULL, 'n' },
        { "events", no_argument, NULL, 'e' },
        { "chk", no_argument, NULL, 'c' },
        { "ibv-peer", no_argument, NULL, 'I' },
        GX_COMMON_OPTIONS,
    };
    static const char *const types[] = { "rc", "uc", "ud" };
    static struct pingpong pp = {
        .port = PORT,
        .rx_depth = 500,
        .iters = 1000,
        .conn = { .fd = -1, .passed_fd = -1 },
        .mem = { .fd = -1 },
    };
    int err = 0;
    gx_program = "pingpong";
    for (int c; !err && (c = gx_getopt(argc, argv, "d:g:p:s:m:r:n:ecIhV", longs)) != -1;) {
        switch (c) {
        case 'd': pp.device = optarg; break;
        case 'g': err = gx_parse_number(optarg, "--gid-idx", 0, 1000, &pp.gid_index); break;
        case 'p': err = gx_parse_number(optarg, "--port", 1, 65535, &pp.port); break;
        case 's': err = gx_parse_size(optarg, "--size", 1, 1u << 30, &pp.size); break;
        case 'm': err = gx_parse_number(optarg, "--mtu", 256, 4096, &pp.mtu); break;
        case 'r': err = gx_parse_number(optarg, "--rx-depth", 1, 8192, &pp.rx_depth); break;
        case 'n': err = gx_parse_number(optarg, "--iters", 1, 1ull << 40, &pp.iters); break;
        case 'e': pp.events = true; break;
        case 'c': pp.check = true; break;
        case 'I': pp.ibv_peer = true; break;
        case 'h': return usage(stdout), GX_EXIT_OK;
        default: err = -EINVAL; gx_note("try 'pingpong --help'"); break;
        }
    }
    for (unsigned i = 0; !err && i < 3; i++)
        if (optind < argc && !strcasecmp(argv[optind], types[i]))
            pp.type = GDRC_QPT_RC + i;
    if (!err && pp.ibv_peer && pp.check) {
        gx_error("Give one of them: the tools of rdma-core fill their messages in another way.",
                 "--ibv-peer and -c exclude each other");
        return GX_EXIT_USAGE;
    }
    if (err || !pp.type || argc - optind > 2) {
        if (!err)
            gx_error("pingpong rc|uc|ud [OPTIONS] [HOST]: see --help.", "%s '%s'",
                     pp.type ? "unexpected argument" : "none of rc, uc and ud:",
                     optind < argc ? argv[optind + (pp.type ? 2 : 0)] : "");
        return GX_EXIT_USAGE;
    }
    pp.host = argc - optind == 2 ? argv[optind + 1] : NULL;
    if (pp.ibv_peer && !pp.mtu && pp.type != GDRC_QPT_UD)
        pp.mtu = IBV_PEER_MTU;
    if (!pp.size)
        pp.size = pp.type == GDRC_QPT_UD ? 1024 : 4096;
    gx_catch_signals();
    err = run(&pp);
    if (pp.qp.handle)
        gdrc_qp_destroy(pp.dev.ctx, pp.qp);
    if (pp.ah.handle)
        gdrc_ah_destroy(pp.dev.ctx, pp.ah);
    if (pp.cq.handle)
        gdrc_cq_destroy(pp.dev.ctx, pp.cq);
    if (pp.mr.handle)
        gdrc_mr_dereg(pp.dev.ctx, pp.mr);
    gx_mem_free(&pp.mem);
    gx_conn_close(&pp.conn);
    gx_dev_close(&pp.dev);
    return gx_exit_code(err);
}
