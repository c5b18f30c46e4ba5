/*
 * SPDX-License-Identifier: MIT OR Apache-2.0
 *
 * ATOMIC WRITE and FLUSH between two processes, as programs of rdma-core 45 or newer use them. The
 * same program runs at both ends, each on a device of its own.
 *
 *   a19 DEVICE GID-INDEX PORT            the responder: checks its memory as the other end asks
 *   a19 DEVICE GID-INDEX PORT ADDRESS    the requester; ADDRESS is the responder's, for TCP
 *
 * Prints "ok" and the number of messages.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <infiniband/verbs.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define MUST(x)                                                                           \
    do {                                                                                  \
        if (!(x)) {                                                                       \
            fprintf(stderr, "a19.c:%d: %s (%s)\n", __LINE__, #x, strerror(errno));        \
            exit(1);                                                                      \
        }                                                                                 \
    } while (0)

enum { BYTES = 1 << 17, HALF = BYTES / 2, WORDS = 16 };
/* Questions to the responder. */
enum { SET = 1, CHECK, WORD, END };

struct side {
    union ibv_gid gid;
    uint64_t addr;
    uint32_t qpn, rkey, bare;
};

struct ask {
    uint64_t what, at, length, seed;
};

static struct ibv_context *ctx;
static struct ibv_cq *cq;
static struct ibv_qp *qp;
static struct ibv_mr *mr;
static uint8_t *memory;
static int gid_index;

static uint8_t byte_of(uint64_t seed, uint64_t i)
{
    return (uint8_t)((i * 0x9e3779b97f4a7c15ull + seed * 0xc2b2ae3d27d4eb4full) >> 56);
}

static void take(int fd, void *to, size_t n)
{
    MUST(recv(fd, to, n, MSG_WAITALL) == (ssize_t)n);
}

static void give(int fd, const void *from, size_t n)
{
    MUST(send(fd, from, n, MSG_NOSIGNAL) == (ssize_t)n);
}

static void make(const char *name, struct side *own)
{
    int n;
    struct ibv_device **list = ibv_get_device_list(&n);
    for (int i = 0; list && i < n && !ctx; i++)
        if (!strcmp(ibv_get_device_name(list[i]), name))
            ctx = ibv_open_device(list[i]);
    MUST(ctx);
    struct ibv_pd *pd = ibv_alloc_pd(ctx);
    memory = calloc(1, BYTES);
    MUST(pd && memory && (cq = ibv_create_cq(ctx, 64, NULL, NULL, 0)));
    int plain = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE;
    mr = ibv_reg_mr(pd, memory, BYTES, plain | IBV_ACCESS_FLUSH_GLOBAL);
    struct ibv_mr *bare = ibv_reg_mr(pd, memory, BYTES, plain);
    MUST(mr && bare);
    struct ibv_qp_init_attr_ex init = {
        .qp_type = IBV_QPT_RC,
        .send_cq = cq,
        .recv_cq = cq,
        .cap = { .max_send_wr = 16, .max_recv_wr = 1, .max_send_sge = 1, .max_recv_sge = 1 },
        .comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS,
        .pd = pd,
        .send_ops_flags =
            IBV_QP_EX_WITH_RDMA_WRITE | IBV_QP_EX_WITH_FLUSH | IBV_QP_EX_WITH_ATOMIC_WRITE,
    };
    MUST((qp = ibv_create_qp_ex(ctx, &init)));
    MUST(ibv_query_gid(ctx, 1, gid_index, &own->gid) == 0);
    own->addr = (uintptr_t)memory;
    own->qpn = qp->qp_num;
    own->rkey = mr->rkey;
    own->bare = bare->rkey;
}

static void join(const struct side *peer)
{
    struct ibv_qp_attr a = {
        .qp_state = IBV_QPS_INIT,
        .port_num = 1,
        .qp_access_flags = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_FLUSH_GLOBAL,
    };
    MUST(ibv_modify_qp(qp, &a,
                       IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS) == 0);
    a.qp_state = IBV_QPS_RTR;
    a.path_mtu = IBV_MTU_1024;
    a.dest_qp_num = peer->qpn;
    a.max_dest_rd_atomic = 8;
    a.min_rnr_timer = 12;
    a.ah_attr.is_global = a.ah_attr.port_num = 1;
    a.ah_attr.grh.dgid = peer->gid;
    a.ah_attr.grh.sgid_index = gid_index;
    a.ah_attr.grh.hop_limit = 64;
    MUST(ibv_modify_qp(qp, &a,
                       IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN |
                           IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER) == 0);
    a.qp_state = IBV_QPS_RTS;
    a.timeout = 17;
    a.retry_cnt = 6;
    a.rnr_retry = 6;
    a.max_rd_atomic = 8;
    MUST(ibv_modify_qp(qp, &a,
                       IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
                           IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC) == 0);
}

/* The responder: the offset of the first wrong byte, BYTES if there is none, or a word. */
static void serve(int fd)
{
    struct ask ask;
    for (take(fd, &ask, sizeof ask); ask.what != END; take(fd, &ask, sizeof ask)) {
        MUST(ask.at <= BYTES && ask.length <= BYTES - ask.at);
        uint64_t answer = BYTES;
        if (ask.what == SET)
            memset(memory, 0xee, BYTES);
        else if (ask.what == WORD)
            memcpy(&answer, memory + ask.at, 8);
        else
            for (uint64_t i = 0; i < BYTES && answer == BYTES; i++) {
                int is_in = i >= ask.at && i < ask.at + ask.length;
                if (memory[i] != (is_in ? byte_of(ask.seed, i - ask.at) : 0xee))
                    answer = i;
            }
        give(fd, &answer, sizeof answer);
    }
}

static uint64_t answer(int fd, struct ask ask)
{
    uint64_t said;
    give(fd, &ask, sizeof ask);
    take(fd, &said, sizeof said);
    return said;
}

static struct ibv_wc next_wc(void)
{
    struct ibv_wc wc;
    int n;
    while (!(n = ibv_poll_cq(cq, 1, &wc)))
        ;
    MUST(n == 1);
    return wc;
}

static void begin(uint64_t id, unsigned flags)
{
    struct ibv_qp_ex *ex = ibv_qp_to_qp_ex(qp);
    ex->wr_id = id;
    ex->wr_flags = flags;
}

/* A WRITE that nothing but the FLUSH behind it reports. */
static int flushes(int fd, const struct side *peer)
{
    static const uint32_t lengths[] = { 0, 1, 7, 1023, 1024, 1025, 5000, HALF };
    struct ibv_qp_ex *ex = ibv_qp_to_qp_ex(qp);
    int n = 0;
    for (unsigned i = 0; i < 2 * sizeof lengths / sizeof *lengths; i++, n += 2) {
        uint32_t length = lengths[i / 2];
        uint64_t at = 64 * i;
        MUST(answer(fd, (struct ask){ .what = SET }) == BYTES);
        for (uint32_t k = 0; k < length; k++)
            memory[k] = byte_of(i, k);
        ibv_wr_start(ex);
        begin(1, 0);
        ibv_wr_rdma_write(ex, peer->rkey, peer->addr + at);
        ibv_wr_set_sge(ex, mr->lkey, (uintptr_t)memory, length);
        begin(2, IBV_SEND_SIGNALED);
        ibv_wr_flush(ex, peer->rkey, peer->addr + at, length, IBV_FLUSH_GLOBAL,
                     i % 2 ? IBV_FLUSH_MR : IBV_FLUSH_RANGE);
        MUST(ibv_wr_complete(ex) == 0);
        struct ibv_wc wc = next_wc();
        MUST(wc.wr_id == 2 && wc.status == IBV_WC_SUCCESS && wc.opcode == IBV_WC_FLUSH);
        MUST(answer(fd, (struct ask){ CHECK, at, length, i }) == BYTES);
    }
    return n;
}

static int words(int fd, const struct side *peer)
{
    struct ibv_qp_ex *ex = ibv_qp_to_qp_ex(qp);
    for (uint64_t i = 0; i < WORDS; i++) {
        uint64_t word = (i + 1) * 0x0102030405060708ull;
        ibv_wr_start(ex);
        begin(3, IBV_SEND_SIGNALED);
        ibv_wr_atomic_write(ex, peer->rkey, peer->addr + 8 * i, &word);
        MUST(ibv_wr_complete(ex) == 0);
        struct ibv_wc wc = next_wc();
        MUST(wc.status == IBV_WC_SUCCESS && wc.opcode == IBV_WC_ATOMIC_WRITE);
        MUST(answer(fd, (struct ask){ .what = WORD, .at = 8 * i }) == word);
    }
    return WORDS;
}

/* A region without the right to be flushed: the last request, since it ends the queue pair. */
static int refused(const struct side *peer)
{
    struct ibv_qp_ex *ex = ibv_qp_to_qp_ex(qp);
    ibv_wr_start(ex);
    begin(4, IBV_SEND_SIGNALED);
    ibv_wr_flush(ex, peer->bare, peer->addr, 64, IBV_FLUSH_GLOBAL, IBV_FLUSH_RANGE);
    MUST(ibv_wr_complete(ex) == 0);
    struct ibv_wc wc = next_wc();
    MUST(wc.wr_id == 4 && wc.status == IBV_WC_REM_ACCESS_ERR);
    return 1;
}

int main(int argc, char **argv)
{
    MUST(argc == 4 || argc == 5);
    gid_index = atoi(argv[2]);
    struct side own, peer;
    make(argv[1], &own);
    struct sockaddr_in at = { .sin_family = AF_INET, .sin_port = htons(atoi(argv[3])) };
    int one = 1, fd = socket(AF_INET, SOCK_STREAM, 0);
    if (argc == 4) {
        int listener = fd;
        MUST(setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one) == 0);
        MUST(bind(listener, (struct sockaddr *)&at, sizeof at) == 0 && listen(listener, 1) == 0);
        MUST((fd = accept(listener, NULL, NULL)) >= 0);
    } else {
        MUST(inet_pton(AF_INET, argv[4], &at.sin_addr) == 1);
        while (connect(fd, (struct sockaddr *)&at, sizeof at)) {
            MUST(errno == ECONNREFUSED);
            close(fd);
            usleep(20000);
            MUST((fd = socket(AF_INET, SOCK_STREAM, 0)) >= 0);
        }
    }
    give(fd, &own, sizeof own);
    take(fd, &peer, sizeof peer);
    join(&peer);
    /* Both are ready before the first request. */
    give(fd, &one, sizeof one);
    take(fd, &one, sizeof one);
    int n = 0;
    if (argc == 4) {
        serve(fd);
    } else {
        n += flushes(fd, &peer);
        n += words(fd, &peer);
        n += refused(&peer);
        struct ask end = { .what = END };
        give(fd, &end, sizeof end);
    }
    printf("ok, %d messages\n", n);
    return 0;
}
