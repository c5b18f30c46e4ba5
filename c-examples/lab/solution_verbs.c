// SPDX-License-Identifier: MIT OR Apache-2.0
/*
 * The lab's solution for libibverbs: the same steps, messages and checks as solution.c, without
 * this library. The introduction over TCP has the same bytes, so either program may be the other
 * side of either.
 *
 *   cc solution_verbs.c -libverbs        runs on a NIC, and under gdrcore-run without one
 */
#include <arpa/inet.h>
#include <endian.h>
#include <errno.h>
#include <getopt.h>
#include <infiniband/verbs.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define PORT 18520
#define TEXT_MAX 1024
#define BLOCK 10000
#define SECONDS 20

/* Which queue pair, and what we put into wr_id: as in lab.h. */
enum { MESSAGES = 0, MEMORY = 1, QPS = 2 };
enum { WR_RECV = 1, WR_SEND = 2, WR_WRITE = 3, WR_READ = 4 };

/*
 * The introduction: frames of this header and a body, all in network byte order (common/gx.h,
 * gdrc_endpoint_pack).
 */
enum { MSG_ENDPOINT = 2, MSG_READY = 3 };
struct frame {
    uint32_t magic;         /* "GDRX" */
    uint16_t version, type;
    uint32_t length, zero;
} __attribute__((packed));
struct endpoint {
    char magic[4];          /* "GDRC" */
    uint32_t version;
    union ibv_gid gid;
    uint32_t qpn, psn, mtu, qp_type, udp_port, rkey;
    uint64_t addr, length;
    uint32_t qkey, max_rd_atomic;
    uint8_t zero[56];
} __attribute__((packed));
_Static_assert(sizeof(struct frame) == 16 && sizeof(struct endpoint) == 128, "as on the wire");

static const char *me = "solution_verbs";
static struct ibv_context *ctx;
static struct ibv_pd *pd;
static struct ibv_cq *send_cq, *recv_cq;
static struct ibv_qp *qp[QPS];
static struct ibv_mr *in_mr, *out_mr, *block_mr;
static union ibv_gid own;
static struct ibv_port_attr port;
static int gid_index, tcp = -1;
static unsigned steps;
static struct endpoint local[QPS], remote[QPS];
static char text_in[TEXT_MAX], text_out[TEXT_MAX];
static uint8_t block[BLOCK];

/* Ends the program if something has failed. libibverbs sets errno, or returns it. */
static void must(bool ok, const char *what)
{
    if (ok)
        return;
    fprintf(stderr, "%s: %s: %s\n", me, what, strerror(errno));
    exit(1);
}

static void step(const char *what)
{
    printf("[%s] %u. %s\n", me, ++steps, what);
    fflush(stdout);
}

/*
 * 1. The device and the entry of its GID table that has our address. On a NIC with several ports
 *    this would search each.
 */
static void find_gid(const char *ip)
{
    struct ibv_device **list = ibv_get_device_list(NULL);
    struct in_addr v4;
    union ibv_gid gid, wanted = { .raw = { [10] = 0xff, [11] = 0xff } };

    if (inet_pton(AF_INET, ip, &v4) == 1)
        memcpy(wanted.raw + 12, &v4, 4);
    else
        must(inet_pton(AF_INET6, ip, wanted.raw) == 1, "the address");
    must(list != NULL, "ibv_get_device_list");
    for (int i = 0; list[i] && !ctx; i++) {
        ctx = ibv_open_device(list[i]);
        for (gid_index = 0; ctx && !ibv_query_port(ctx, 1, &port) && gid_index < port.gid_tbl_len;
             gid_index++)
            if (!ibv_query_gid(ctx, 1, gid_index, &gid) && !memcmp(&gid, &wanted, sizeof gid))
                break;
        if (ctx && gid_index == port.gid_tbl_len) {
            ibv_close_device(ctx);
            ctx = NULL;
        }
    }
    errno = EADDRNOTAVAIL;
    must(ctx != NULL, ip);
    own = wanted;
    printf("[%s] %u. %s is GID index %d of %s\n", me, ++steps, ip, gid_index,
           ibv_get_device_name(ctx->device));
    ibv_free_device_list(list);
}

/* 2 to 4. Protection domain, memory, completion queues, queue pairs, with the rights of lab.c. */
static void make_objects(void)
{
    int remote_access = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ;

    must((pd = ibv_alloc_pd(ctx)) != NULL, "ibv_alloc_pd");
    must((in_mr = ibv_reg_mr(pd, text_in, TEXT_MAX, IBV_ACCESS_LOCAL_WRITE)) != NULL, "ibv_reg_mr");
    must((out_mr = ibv_reg_mr(pd, text_out, TEXT_MAX, 0)) != NULL, "ibv_reg_mr");
    must((block_mr = ibv_reg_mr(pd, block, BLOCK, remote_access)) != NULL, "ibv_reg_mr");
    must((send_cq = ibv_create_cq(ctx, 16, NULL, NULL, 0)) != NULL, "ibv_create_cq");
    must((recv_cq = ibv_create_cq(ctx, 16, NULL, NULL, 0)) != NULL, "ibv_create_cq");
    for (int i = 0; i < QPS; i++) {
        struct ibv_qp_init_attr init = {
            .send_cq = send_cq,
            .recv_cq = recv_cq,
            .qp_type = IBV_QPT_RC,
            .cap = { .max_send_wr = 4, .max_recv_wr = 4, .max_send_sge = 1, .max_recv_sge = 1 }
        };
        must((qp[i] = ibv_create_qp(pd, &init)) != NULL, "ibv_create_qp");
    }
    step("memory is registered, the queue pairs are made");
}

static void tcp_send(uint16_t type, const void *body, uint32_t length)
{
    struct frame f = { htonl(0x47445258u), htons(1), htons(type), htonl(length), 0 };

    must(send(tcp, &f, sizeof f, MSG_NOSIGNAL) == sizeof f, "TCP");
    must(!length || send(tcp, body, length, MSG_NOSIGNAL) == (ssize_t)length, "TCP");
}

static void tcp_receive(uint16_t type, void *body, uint32_t length)
{
    struct frame f;
    ssize_t n = recv(tcp, &f, sizeof f, MSG_WAITALL);

    /* The other side has ended, or sends its reason, which its own output shows as well. */
    if (n >= 0)
        errno = EPROTO;
    must(n == sizeof f && ntohl(f.magic) == 0x47445258u && ntohs(f.type) == type &&
             ntohl(f.length) == length,
         "the other side");
    must(!length || recv(tcp, body, length, MSG_WAITALL) == (ssize_t)length, "TCP");
}

static void meet(const char *ip, const char *server)
{
    bool v6 = strchr(ip, ':') != NULL;
    struct sockaddr_in six4 = { .sin_family = AF_INET, .sin_port = htons(PORT) };
    struct sockaddr_in6 six = { .sin6_family = AF_INET6, .sin6_port = htons(PORT) };
    const struct sockaddr *a = v6 ? (struct sockaddr *)&six : (struct sockaddr *)&six4;
    socklen_t size = v6 ? sizeof six : sizeof six4;
    struct timeval limit = { .tv_sec = SECONDS };
    int on = 1, err = -1, fd = -1;

    must(inet_pton(v6 ? AF_INET6 : AF_INET, server ? server : ip,
                   v6 ? (void *)&six.sin6_addr : (void *)&six4.sin_addr) == 1,
         "the address");
    if (!server) {
        int listener = socket(a->sa_family, SOCK_STREAM, 0);
        setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
        must(listener >= 0 && !bind(listener, a, size) && !listen(listener, 1), "TCP");
        printf("[server] waiting for a client on %s, TCP port %d\n", ip, PORT);
        fflush(stdout);
        fd = accept(listener, NULL, NULL);
        close(listener);
    }
    /* The server may be started a moment after us. */
    for (int tries = 0; server && err && tries < SECONDS * 10; tries++) {
        if (fd >= 0)
            close(fd);
        fd = socket(a->sa_family, SOCK_STREAM, 0);
        err = connect(fd, a, size);
        if (err)
            nanosleep(&(struct timespec){ .tv_nsec = 100000000 }, NULL);
    }
    must(fd >= 0 && (!server || !err), "TCP");
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
    tcp = fd;
}

static void introduce(void)
{
    for (int i = 0; i < QPS; i++) {
        struct endpoint *e = &local[i];
        memcpy(e->magic, "GDRC", 4);
        e->version = htonl(1);
        e->gid = own;
        e->qpn = htonl(qp[i]->qp_num);
        e->psn = htonl((uint32_t)(time(NULL) * 2654435761u + qp[i]->qp_num) & 0xffffff);
        e->mtu = htonl(port.active_mtu);
        e->qp_type = htonl(IBV_QPT_RC);
        e->udp_port = htonl(4791);
        e->max_rd_atomic = htonl(16);
        if (i == MEMORY) {
            e->rkey = htonl(block_mr->rkey);
            e->addr = htobe64((uintptr_t)block);
            e->length = htobe64(BLOCK);
        }
        tcp_send(MSG_ENDPOINT, e, sizeof *e);
    }
    for (int i = 0; i < QPS; i++) {
        tcp_receive(MSG_ENDPOINT, &remote[i], sizeof remote[i]);
        errno = EPROTO;
        must(!memcmp(remote[i].magic, "GDRC", 4) && remote[i].qp_type == htonl(IBV_QPT_RC),
             "the peer's endpoint");
    }
    must(be64toh(remote[MEMORY].length) == BLOCK, "the peer's block has another size");
}

/* 5. RESET, INIT, RTR, RTS: solution.c explains each attribute. */
static void connect_qp(int i)
{
    uint32_t mtu = ntohl(remote[i].mtu);
    struct ibv_qp_attr init = {
        .qp_state = IBV_QPS_INIT,
        .port_num = 1,
        .qp_access_flags = i == MEMORY ? IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ : 0
    };
    struct ibv_qp_attr rtr = {
        .qp_state = IBV_QPS_RTR,
        .path_mtu = mtu < port.active_mtu ? mtu : port.active_mtu,
        .dest_qp_num = ntohl(remote[i].qpn),
        .rq_psn = ntohl(remote[i].psn),
        .max_dest_rd_atomic = 16,
        .min_rnr_timer = 12,
        .ah_attr = { .is_global = 1,
                     .port_num = 1,
                     .grh = { .dgid = remote[i].gid,
                              .sgid_index = (uint8_t)gid_index,
                              .hop_limit = 64 } },
    };
    struct ibv_qp_attr rts = {
        .qp_state = IBV_QPS_RTS,
        .sq_psn = ntohl(local[i].psn),
        .timeout = 14,
        .retry_cnt = 7,
        .rnr_retry = 7,
        .max_rd_atomic = 16,
    };

    errno = ibv_modify_qp(qp[i], &init,
                          IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS);
    must(!errno, "to INIT: ibv_modify_qp");
    errno = ibv_modify_qp(qp[i], &rtr,
                          IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN |
                              IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER);
    must(!errno, "to RTR: ibv_modify_qp");
    errno = ibv_modify_qp(qp[i], &rts,
                          IBV_QP_STATE | IBV_QP_SQ_PSN | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT |
                              IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC);
    must(!errno, "to RTS: ibv_modify_qp");
}

static void post_receive(void)
{
    struct ibv_sge piece = { .addr = (uintptr_t)text_in, .length = TEXT_MAX, .lkey = in_mr->lkey };
    struct ibv_recv_wr request = { .wr_id = WR_RECV, .sg_list = &piece, .num_sge = 1 }, *bad;

    errno = ibv_post_recv(qp[MESSAGES], &request, &bad);
    must(!errno, "ibv_post_recv");
}

static struct ibv_wc wait_for(uint64_t wr_id)
{
    struct ibv_wc wc;
    time_t end = time(NULL) + SECONDS;
    int n;

    while ((n = ibv_poll_cq(wr_id == WR_RECV ? recv_cq : send_cq, 1, &wc)) == 0) {
        errno = ETIMEDOUT;
        must(time(NULL) < end, "no completion");
    }
    errno = n < 0 ? -n : EIO;
    must(n == 1 && wc.status == IBV_WC_SUCCESS,
         n == 1 ? ibv_wc_status_str(wc.status) : "ibv_poll_cq");
    errno = EPROTO;
    must(wc.wr_id == wr_id, "another request's completion");
    return wc;
}

static void post_and_wait(int which, struct ibv_send_wr *request)
{
    struct ibv_send_wr *bad;

    request->num_sge = 1;
    request->send_flags = IBV_SEND_SIGNALED;
    errno = ibv_post_send(qp[which], request, &bad);
    must(!errno, "ibv_post_send");
    wait_for(request->wr_id);
}

static void send_text(const char *text, const char *immediate)
{
    struct ibv_sge piece = {
        .addr = (uintptr_t)text_out,
        .length = (uint32_t)strlen(text),
        .lkey = out_mr->lkey,
    };
    struct ibv_send_wr request = { .wr_id = WR_SEND, .sg_list = &piece, .opcode = IBV_WR_SEND };

    memcpy(text_out, text, strlen(text));
    if (immediate) {
        request.opcode = IBV_WR_SEND_WITH_IMM;
        request.imm_data = htonl((uint32_t)strtoul(immediate, NULL, 0));
    }
    post_and_wait(MESSAGES, &request);
}

/* WRITE and READ: the whole block, between our memory and the peer's. */
static void move_block(enum ibv_wr_opcode opcode)
{
    struct ibv_sge piece = { .addr = (uintptr_t)block, .length = BLOCK, .lkey = block_mr->lkey };
    struct ibv_send_wr request = {
        .wr_id = opcode == IBV_WR_RDMA_READ ? WR_READ : WR_WRITE,
        .sg_list = &piece,
        .opcode = opcode,
    };

    request.wr.rdma.remote_addr = be64toh(remote[MEMORY].addr);
    request.wr.rdma.rkey = ntohl(remote[MEMORY].rkey);
    post_and_wait(MEMORY, &request);
}

static void receive(void)
{
    struct ibv_wc wc = wait_for(WR_RECV);

    printf("[%s] received %u bytes", me, wc.byte_len);
    if (wc.wc_flags & IBV_WC_WITH_IMM)
        printf(", immediate 0x%08x", ntohl(wc.imm_data));
    printf(": %.*s\n", (int)wc.byte_len, text_in);
    post_receive();
}

/* The series of lab.c, so that either program checks the other's. */
static uint8_t series(bool server, size_t i) { return (uint8_t)(i * (server ? 7 : 5) + i / 251); }

static void fill_block(bool server)
{
    for (size_t i = 0; i < BLOCK; i++)
        block[i] = series(server, i);
}

static void check_block(bool server, const char *what)
{
    errno = EBADMSG;
    for (size_t i = 0; i < BLOCK; i++)
        must(block[i] == series(server, i), what);
    step(what);
}

int main(int argc, char **argv)
{
    const char *ip = NULL, *text = "hello", *immediate = NULL;
    bool good = true;
    static const struct option options[] = {{"help", no_argument, NULL, 'h'}, {0}};
    static const char usage[] =
        "usage: solution_verbs -a IP                         the server\n"
        "       solution_verbs -a IP [-t TEXT] [-i N] SERVER  the client\n"
        "  -a IP    the address of the device to use; its GID is found by it\n"
        "  -t TEXT  what the client sends\n"
        "  -i N     with immediate data, a number\n";
    for (int c; (c = getopt_long(argc, argv, "ha:t:i:", options, NULL)) != -1;) {
        switch (c) {
        case 'a': ip = optarg; break;
        case 't': text = optarg; break;
        case 'i': immediate = optarg; break;
        case 'h':
            return must(fputs(usage, stdout) >= 0 && fflush(stdout) == 0,
                        "writing to standard output"),
                   0;
        default: good = false;
        }
    }
    const char *server = optind < argc ? argv[optind] : NULL;
    if (!good || !ip || strlen(text) >= TEXT_MAX || argc - optind > 1) {
        fputs(usage, stderr);
        return 2;
    }
    me = server ? "client" : "server";
    find_gid(ip);
    make_objects();
    meet(ip, server);
    introduce();
    for (int i = 0; i < QPS; i++)
        connect_qp(i);
    post_receive();
    step("both queue pairs are connected");
    tcp_send(MSG_READY, NULL, 0);
    tcp_receive(MSG_READY, NULL, 0);
    if (server) {
        send_text(text, immediate);
        fill_block(false);
        move_block(IBV_WR_RDMA_WRITE);
        send_text("the block is there", NULL);
        receive();
        move_block(IBV_WR_RDMA_READ);
        check_block(true, "our READ: all 10000 bytes are right");
    } else {
        receive();
        receive();
        check_block(false, "the client's WRITE: all 10000 bytes are right");
        fill_block(true);
        send_text("your turn", NULL);
    }
    tcp_send(MSG_READY, NULL, 0);
    tcp_receive(MSG_READY, NULL, 0);
    for (int i = 0; i < QPS; i++)
        ibv_destroy_qp(qp[i]);
    ibv_destroy_cq(send_cq);
    ibv_destroy_cq(recv_cq);
    ibv_dereg_mr(in_mr);
    ibv_dereg_mr(out_mr);
    ibv_dereg_mr(block_mr);
    ibv_dealloc_pd(pd);
    ibv_close_device(ctx);
    close(tcp);
    must(fflush(stdout) == 0 && !ferror(stdout), "writing to standard output");
    return 0;
}
