// A program of libibverbs, run on the drop-in: verbs.c MODE. Exit code 0: all checks passed.
//
// It uses only names of IBVERBS_1.0 and 1.1, as programs of 2018 do (FreeFlow's router); for that
// ibv_reg_mr gets constant flags.
#include <errno.h>
#include <fcntl.h>
#include <infiniband/verbs.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "rc_pair.h"

#define SIZE 8192

// One side: all objects that a queue pair needs.
struct side {
    struct ibv_context *ctx;
    struct ibv_pd *pd;
    struct ibv_comp_channel *channel;
    struct ibv_cq *cq;
    struct ibv_srq *srq;
    struct ibv_qp *qp;
    struct ibv_mr *mr;
    char *buf;
};

static void make(struct side *s, enum ibv_qp_type type, int with_srq) {
    s->ctx = open_device();
    CHECK((s->pd = ibv_alloc_pd(s->ctx)));
    CHECK((s->channel = ibv_create_comp_channel(s->ctx)));
    CHECK((s->cq = ibv_create_cq(s->ctx, 64, s, s->channel, 0)));
    CHECK((s->buf = aligned_alloc(4096, SIZE)));
    memset(s->buf, 0, SIZE);
    CHECK((s->mr = ibv_reg_mr(s->pd, s->buf, SIZE,
                              IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE |
                                  IBV_ACCESS_REMOTE_READ)));
    s->srq = NULL;
    if (with_srq) {
        struct ibv_srq_init_attr init = {.attr = {.max_wr = 16, .max_sge = 1}};
        CHECK((s->srq = ibv_create_srq(s->pd, &init)));
    }
    struct ibv_qp_init_attr init = {
        .send_cq = s->cq,
        .recv_cq = s->cq,
        .srq = s->srq,
        .qp_type = type,
        .cap = { .max_send_wr = 16,
                 .max_recv_wr = 16,
                 .max_send_sge = 2,
                 .max_recv_sge = 2,
                 .max_inline_data = 64 },
    };
    CHECK((s->qp = ibv_create_qp(s->pd, &init)));
    // FreeFlow's client library indexes its tables by these numbers.
    CHECK(s->qp->handle < 10240 && s->cq->handle < 10240 && s->mr->handle < 10240 &&
          s->pd->handle < 10240);
}

// The GID table entry that programs here use; or the peer's LID, which is used alone if it is not
// 0.
static int gid_index;
static uint16_t peer_lid;

// Access bits of newer headers (IBV_ACCESS_FLUSH_GLOBAL, _PERSISTENT), and an undefined one: the
// device ignores them.
#define NEWER_ACCESS (1 << 8 | 1 << 9 | 1 << 29)

static void connect_to(struct side *s, uint32_t qpn) {
    struct ibv_qp_attr a = towards(s->ctx, qpn);
    a.qkey = 0x11;
    a.qp_access_flags = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | NEWER_ACCESS;
    a.max_dest_rd_atomic = a.max_rd_atomic = 1;
    a.ah_attr.grh.sgid_index = gid_index;
    CHECK(ibv_query_gid(s->ctx, 1, gid_index, &a.ah_attr.grh.dgid) == 0);
    if (peer_lid)
        a.ah_attr = (struct ibv_ah_attr){.dlid = peer_lid, .port_num = 1};
    take_to_rts(s->qp, a);
    CHECK(s->qp->state == IBV_QPS_RTS);
}

static void pair(struct side *a, struct side *b, enum ibv_qp_type type, int with_srq) {
    make(a, type, 0);
    make(b, type, with_srq);
    connect_to(a, b->qp->qp_num);
    connect_to(b, a->qp->qp_num);
}

static int post_write(struct side *a, struct side *b, uint32_t rkey, uint32_t length) {
    struct ibv_sge sge = {.addr = (uintptr_t)a->buf, .length = length, .lkey = a->mr->lkey};
    struct ibv_send_wr wr = { .wr_id = 7,
                              .sg_list = &sge,
                              .num_sge = 1,
                              .opcode = IBV_WR_RDMA_WRITE,
                              .send_flags = IBV_SEND_SIGNALED,
                              .wr.rdma = { (uintptr_t)b->buf, rkey } },
                       *bad;
    return ibv_post_send(a->qp, &wr, &bad);
}

static void transfer(struct side *a, struct side *b) {
    for (int i = 0; i < SIZE; i++)
        a->buf[i] = (char)(i * 7 + 1);
    memset(b->buf, 0, SIZE);
    CHECK(post_write(a, b, b->mr->rkey, SIZE) == 0);
    struct ibv_wc wc = next_wc(a->cq);
    CHECK(wc.status == IBV_WC_SUCCESS && wc.wr_id == 7 && wc.opcode == IBV_WC_RDMA_WRITE &&
          wc.qp_num == a->qp->qp_num);
    CHECK(memcmp(a->buf, b->buf, SIZE) == 0);
}

static void drop(struct side *s) {
    CHECK(ibv_dealloc_pd(s->pd) == EBUSY && ibv_destroy_cq(s->cq) == EBUSY &&
          ibv_destroy_comp_channel(s->channel) == EBUSY);
    CHECK(ibv_destroy_qp(s->qp) == 0);
    CHECK(!s->srq || ibv_destroy_srq(s->srq) == 0);
    CHECK(ibv_dereg_mr(s->mr) == 0 && ibv_destroy_cq(s->cq) == 0 &&
          ibv_destroy_comp_channel(s->channel) == 0);
    CHECK(ibv_dealloc_pd(s->pd) == 0 && ibv_close_device(s->ctx) == 0);
    free(s->buf);
}

// The calls that a router of verbs makes for its clients: RC, SRQ, channels; UD with address
// handles.
static void router(void) {
    struct side a, b;
    pair(&a, &b, IBV_QPT_RC, 1);
    transfer(&a, &b);
    struct ibv_sge into = {.addr = (uintptr_t)b.buf, .length = SIZE, .lkey = b.mr->lkey};
    struct ibv_recv_wr rwr = {.wr_id = 9, .sg_list = &into, .num_sge = 1}, *rbad;
    CHECK(ibv_req_notify_cq(b.cq, 0) == 0);
    CHECK(ibv_post_srq_recv(b.srq, &rwr, &rbad) == 0);
    struct ibv_send_wr wr = { .opcode = IBV_WR_SEND_WITH_IMM,
                              .send_flags = IBV_SEND_INLINE,
                              .imm_data = 0x01020304,
                              .num_sge = 1 },
                       *bad;
    char word[] = "inline";
    struct ibv_sge from = {.addr = (uintptr_t)word, .length = sizeof word};
    wr.sg_list = &from;
    CHECK(ibv_post_send(a.qp, &wr, &bad) == 0);
    struct ibv_cq *cq = NULL;
    void *context = NULL;
    CHECK(ibv_get_cq_event(b.channel, &cq, &context) == 0 && cq == b.cq && context == &b);
    struct ibv_wc wc = next_wc(b.cq);
    CHECK(wc.status == 0 && wc.wr_id == 9 && wc.imm_data == 0x01020304 &&
          wc.byte_len == sizeof word && strcmp(b.buf, word) == 0);
    ibv_ack_cq_events(b.cq, 1);
    drop(&a);
    drop(&b);

    pair(&a, &b, IBV_QPT_UD, 0);
    union ibv_gid gid;
    CHECK(ibv_query_gid(a.ctx, 1, 0, &gid) == 0);
    struct ibv_ah_attr to = {.is_global = 1, .port_num = 1, .grh = {.dgid = gid}};
    struct ibv_ah *ah = ibv_create_ah(a.pd, &to);
    CHECK(ah);
    into = (struct ibv_sge){.addr = (uintptr_t)b.buf, .length = SIZE, .lkey = b.mr->lkey};
    CHECK(ibv_post_recv(b.qp, &rwr, &rbad) == 0);
    // Forty requests, more than one copy of the list takes, in a queue of sixteen: bad_wr names the
    // first that does not fit.
    static struct ibv_send_wr list[40];
    for (int i = 0; i < 40; i++)
        list[i] = (struct ibv_send_wr){
            .wr_id = i,
            .next = i < 39 ? &list[i + 1] : NULL,
            .sg_list = &from,
            .num_sge = 1,
            .opcode = IBV_WR_SEND,
            .send_flags = IBV_SEND_INLINE | IBV_SEND_SIGNALED,
            .wr.ud = { ah, b.qp->qp_num, 0x11 },
        };
    int rc = ibv_post_send(a.qp, list, &bad);
    CHECK(rc == 0 || (rc == ENOMEM && bad >= list + 16 && bad < list + 40));
    wc = next_wc(b.cq);
    CHECK(wc.status == 0 && wc.byte_len == 40 + sizeof word && strcmp(b.buf + 40, word) == 0 &&
          (wc.wc_flags & IBV_WC_GRH));
    struct ibv_ah *back = ibv_create_ah_from_wc(b.pd, &wc, (struct ibv_grh *)b.buf, 1);
    CHECK(back && ibv_destroy_ah(back) == 0 && ibv_destroy_ah(ah) == 0);
    drop(&a);
    drop(&b);
}

// Asynchronous events, and descriptors that do not block.
static void events(void) {
    struct side a, b;
    pair(&a, &b, IBV_QPT_RC, 1);
    struct ibv_cq *cq;
    void *context;
    CHECK(fcntl(a.channel->fd, F_SETFL, O_NONBLOCK) == 0 &&
          fcntl(b.ctx->async_fd, F_SETFL, O_NONBLOCK) == 0);
    CHECK(ibv_get_cq_event(a.channel, &cq, &context) == -1 && errno == EAGAIN);
    struct ibv_async_event event;
    CHECK(ibv_get_async_event(b.ctx, &event) == -1 && errno == EAGAIN);
    CHECK(ibv_req_notify_cq(a.cq, 0) == 0);
    CHECK(post_write(&a, &b, b.mr->rkey ^ 0x5a5a5a, 8) == 0);
    struct pollfd p[2] = { { .fd = a.channel->fd, .events = POLLIN },
                           { .fd = b.ctx->async_fd, .events = POLLIN } };
    CHECK(poll(p, 1, patience_ms(60)) == 1 && ibv_get_cq_event(a.channel, &cq, &context) == 0 &&
          cq == a.cq);
    CHECK(next_wc(a.cq).status == IBV_WC_REM_ACCESS_ERR);
    CHECK(poll(p + 1, 1, patience_ms(60)) == 1 && ibv_get_async_event(b.ctx, &event) == 0);
    CHECK(event.element.qp == b.qp && event.event_type == IBV_EVENT_QP_ACCESS_ERR);
    // Besides the end of its use of the SRQ there is no other event: the requester has its
    // completion, and no work queue has a catastrophic error.
    struct ibv_async_event other;
    CHECK(ibv_get_async_event(b.ctx, &other) == 0 && other.element.qp == b.qp &&
          other.event_type == IBV_EVENT_QP_LAST_WQE_REACHED);
    ibv_ack_async_event(&other);
    CHECK(ibv_get_async_event(b.ctx, &other) == -1 && errno == EAGAIN);
    CHECK(fcntl(a.ctx->async_fd, F_SETFL, O_NONBLOCK) == 0 &&
          ibv_get_async_event(a.ctx, &other) == -1 && errno == EAGAIN);
    struct ibv_qp_attr attr;
    struct ibv_qp_init_attr init;
    CHECK(ibv_query_qp(b.qp, &attr, IBV_QP_STATE, &init) == 0 && attr.qp_state == IBV_QPS_ERR &&
          init.srq == b.srq);
    ibv_ack_async_event(&event);
    ibv_ack_cq_events(a.cq, 1);
    // An event that was not taken does not keep its object.
    drop(&a);
    drop(&b);
}

// A child that only exits; one that calls with its parent's objects, then opens the device itself;
// the parent continues.
static void forks(void) {
    CHECK(ibv_fork_init() == 0);
    struct side a, b;
    pair(&a, &b, IBV_QPT_RC, 0);
    for (int round = 0; round < 3; round++) {
        pid_t child = fork();
        CHECK(child >= 0);
        if (child == 0) {
            if (round == 0)
                exit(0);
            struct ibv_wc wc;
            CHECK(!ibv_alloc_pd(a.ctx) && errno == EOWNERDEAD);
            CHECK(post_write(&a, &b, b.mr->rkey, 8) == EOWNERDEAD && ibv_poll_cq(a.cq, 1, &wc) < 0);
            CHECK(ibv_req_notify_cq(a.cq, 0) == EOWNERDEAD);
            CHECK(ibv_destroy_qp(a.qp) == EOWNERDEAD && ibv_close_device(a.ctx) == 0);
            struct side c, d;
            pair(&c, &d, IBV_QPT_RC, 0);
            transfer(&c, &d);
            drop(&c);
            drop(&d);
            exit(0);
        }
        transfer(&a, &b);
        int status;
        CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0);
    }
    drop(&a);
    drop(&b);
}

// A program written for InfiniBand: it uses LIDs and no GID. Without GDRC_LID it is refused.
static void lid(void) {
    struct ibv_context *ctx = open_device();
    struct ibv_port_attr port;
    CHECK(ibv_query_port(ctx, 1, &port) == 0);
    struct side a, b;
    make(&a, IBV_QPT_UD, 0);
    struct ibv_ah_attr to = {.dlid = port.lid ? port.lid : 1, .port_num = 1};
    if (!getenv("GDRC_LID")) {
        CHECK(port.lid == 0 && !ibv_create_ah(a.pd, &to) && errno == EINVAL);
        drop(&a);
        CHECK(ibv_close_device(ctx) == 0);
        return;
    }
    CHECK(port.lid != 0);
    make(&b, IBV_QPT_UD, 0);
    connect_to(&a, 0);
    connect_to(&b, 0);
    struct ibv_ah *ah = ibv_create_ah(a.pd, &to);
    CHECK(ah);
    struct ibv_sge into = {.addr = (uintptr_t)b.buf, .length = SIZE, .lkey = b.mr->lkey};
    struct ibv_recv_wr rwr = {.sg_list = &into, .num_sge = 1}, *rbad;
    CHECK(ibv_post_recv(b.qp, &rwr, &rbad) == 0);
    strcpy(a.buf, "by LID");
    struct ibv_sge from = {.addr = (uintptr_t)a.buf, .length = 7, .lkey = a.mr->lkey};
    struct ibv_send_wr wr = { .sg_list = &from,
                              .num_sge = 1,
                              .opcode = IBV_WR_SEND,
                              .wr.ud = { ah, b.qp->qp_num, 0x11 } },
                       *bad;
    CHECK(ibv_post_send(a.qp, &wr, &bad) == 0);
    struct ibv_wc wc = next_wc(b.cq);
    CHECK(wc.status == IBV_WC_SUCCESS && wc.byte_len == 47 && strcmp(b.buf + 40, "by LID") == 0);
    CHECK(ibv_destroy_ah(ah) == 0);
    to.dlid = 0;
    CHECK(!ibv_create_ah(a.pd, &to) && errno == EINVAL);
    drop(&a);
    drop(&b);
    peer_lid = port.lid;
    pair(&a, &b, IBV_QPT_RC, 0);
    transfer(&a, &b);
    struct ibv_qp_attr attr;
    struct ibv_qp_init_attr init;
    CHECK(ibv_query_qp(a.qp, &attr, IBV_QP_AV, &init) == 0 && attr.ah_attr.dlid == port.lid &&
          !attr.ah_attr.is_global);
    drop(&a);
    drop(&b);
    peer_lid = 0;
    CHECK(ibv_close_device(ctx) == 0);
}

static long long counted(const char *name) {
    char path[200];
    long long n = -1;
    snprintf(path, sizeof path, "/sys/class/infiniband/gdrc0/ports/1/%s", name);
    FILE *f = fopen(path, "r");
    CHECK(f && fscanf(f, "%lld", &n) == 1 && fclose(f) == 0);
    return n;
}

// The files of the counters, which libgdrcore_preload.so provides.
static void counters(void) {
    CHECK(counted("hw_counters/rdma_writes") == 0);
    struct side a, b;
    pair(&a, &b, IBV_QPT_RC, 0);
    CHECK(counted("hw_counters/rdma_writes") == 0 && counted("counters/link_downed") == 0);
    transfer(&a, &b);
    transfer(&a, &b);
    CHECK(counted("hw_counters/rdma_writes") == 2 &&
          counted("hw_counters/request_bytes") == 2 * SIZE);
    CHECK(counted("counters/port_xmit_packets") == counted("hw_counters/sent_pkts"));
    CHECK(counted("counters/port_xmit_data") == counted("hw_counters/sent_bytes") / 4);
    drop(&a);
    drop(&b);
}

// Every used entry of the GID table leads to the device, for either type of RoCE; behind them are
// unused ones, which are no source of anything, and behind the last one there is none.
static void gids(void) {
    struct side a, b;
    union ibv_gid gid;
    struct ibv_context *ctx = open_device();
    struct ibv_port_attr port;
    struct ibv_gid_entry used[16];
    CHECK(ibv_query_port(ctx, 1, &port) == 0);
    int in_use = ibv_query_gid_table(ctx, used, 16, 0);
    CHECK(in_use > 3 && in_use < port.gid_tbl_len);
    int outside[] = {-1, port.gid_tbl_len, 255, 1 << 20};
    for (unsigned i = 0; i < sizeof outside / sizeof *outside; i++) {
        errno = 0;
        CHECK(ibv_query_gid(ctx, 1, outside[i], &gid) == -1 && errno == EINVAL);
    }
    for (gid_index = 0; gid_index < in_use; gid_index++) {
        pair(&a, &b, IBV_QPT_RC, 0);
        transfer(&a, &b);
        struct ibv_qp_attr attr;
        struct ibv_qp_init_attr init;
        CHECK(ibv_query_qp(a.qp, &attr, IBV_QP_AV, &init) == 0 &&
              attr.ah_attr.grh.sgid_index == gid_index);
        CHECK(ibv_query_gid(ctx, 1, gid_index, &gid) == 0);
        struct ibv_ah_attr to = {
            .is_global = 1,
            .port_num = 1,
            .grh = { .dgid = gid, .sgid_index = gid_index, .hop_limit = 1 },
        };
        struct ibv_ah *ah = ibv_create_ah(a.pd, &to);
        CHECK(ah && ibv_destroy_ah(ah) == 0);
        to.grh.sgid_index = port.gid_tbl_len;
        CHECK(!ibv_create_ah(a.pd, &to) && errno == EINVAL);
        to.grh.sgid_index = in_use;
        CHECK(!ibv_create_ah(a.pd, &to) && errno == ENODATA);
        drop(&a);
        drop(&b);
    }
    gid_index = 0;
    CHECK(ibv_close_device(ctx) == 0);
}

// Arguments that no correct program passes, and memory that vanishes.
static void hostile(void) {
    struct side a, b;
    pair(&a, &b, IBV_QPT_RC, 0);
    CHECK(!ibv_alloc_pd(NULL) && errno == EINVAL && ibv_dealloc_pd(NULL) == EINVAL &&
          ibv_destroy_qp(NULL) == EINVAL);
    CHECK(ibv_destroy_cq(NULL) == EINVAL && ibv_dereg_mr(NULL) == EINVAL &&
          !ibv_create_cq(a.ctx, 0, NULL, NULL, 0));
    CHECK(!ibv_create_cq(a.ctx, -1, NULL, NULL, 0) && !ibv_create_cq(a.ctx, 1, NULL, NULL, 9) &&
          !ibv_create_ah(a.pd, NULL));
    CHECK(!ibv_reg_mr(a.pd, a.buf, SIZE, IBV_ACCESS_REMOTE_WRITE) &&
          !ibv_reg_mr(a.pd, (void *)64, SIZE, IBV_ACCESS_LOCAL_WRITE));
    struct ibv_ah_attr lid = {.dlid = 3, .port_num = 1};
    CHECK(!ibv_create_ah(a.pd, &lid) && errno == EINVAL);
    struct ibv_qp_attr attr = {.qp_state = 77};
    CHECK(ibv_modify_qp(a.qp, &attr, IBV_QP_STATE) == EINVAL &&
          ibv_modify_qp(a.qp, NULL, IBV_QP_STATE) == EINVAL);
    CHECK(ibv_resize_cq(a.cq, -5) == EINVAL && ibv_resize_cq(a.cq, 1 << 30) != 0);
    struct ibv_modify_cq_attr moderate = {
        .attr_mask = IBV_CQ_ATTR_MODERATE,
        .moderate = { .cq_count = 32, .cq_period = 100 },
    };
    CHECK(ibv_modify_cq(a.cq, &moderate) == 0 && ibv_modify_cq(a.cq, NULL) == EINVAL);
    moderate.attr_mask = 2;
    CHECK(ibv_modify_cq(a.cq, &moderate) == EINVAL);
    struct ibv_qp_init_attr huge = {
        .send_cq = a.cq,
        .recv_cq = a.cq,
        .qp_type = IBV_QPT_RC,
        .cap.max_send_wr = 1u << 31,
    };
    CHECK(!ibv_create_qp(a.pd, &huge) && !ibv_create_qp(a.pd, NULL));
    huge.qp_type = IBV_QPT_RAW_PACKET;
    CHECK(!ibv_create_qp(a.pd, &huge) && errno == EOPNOTSUPP);
    union ibv_gid gid;
    CHECK(ibv_query_gid(a.ctx, 2, 0, &gid) != 0 && ibv_query_gid(a.ctx, 1, 99, &gid) != 0 &&
          ibv_attach_mcast(a.qp, &gid, 0) != 0);

    struct ibv_sge sge = {.addr = (uintptr_t)a.buf, .length = 8, .lkey = a.mr->lkey};
    struct ibv_send_wr wr = {.sg_list = &sge, .num_sge = 1, .opcode = 200}, *bad = NULL;
    CHECK(ibv_post_send(a.qp, &wr, &bad) == EINVAL && bad == &wr);
    wr.opcode = IBV_WR_RDMA_WRITE;
    wr.num_sge = 1 << 30;
    CHECK(ibv_post_send(a.qp, &wr, &bad) == EINVAL && bad == &wr);
    wr.num_sge = -1;
    CHECK(ibv_post_send(a.qp, &wr, &bad) == EINVAL);
    wr.opcode = IBV_WR_BIND_MW;
    CHECK(ibv_post_send(a.qp, &wr, &bad) == EINVAL && bad == &wr);
    // A list without end: it ends where the queue is full.
    wr = (struct ibv_send_wr){
        .next = &wr,
        .sg_list = &sge,
        .num_sge = 1,
        .opcode = IBV_WR_RDMA_WRITE,
        .wr.rdma = { (uintptr_t)b.buf, b.mr->rkey },
    };
    int rc = ibv_post_send(a.qp, &wr, &bad);
    CHECK(rc == ENOMEM && bad == &wr);
    struct ibv_recv_wr rwr = {.next = &rwr}, *rbad;
    CHECK(ibv_post_recv(a.qp, &rwr, &rbad) == ENOMEM);
    drop(&a);
    drop(&b);

    // A region that is deregistered under traffic is an error of the queue pair.
    pair(&a, &b, IBV_QPT_RC, 0);
    transfer(&a, &b);
    char *map = mmap(NULL, SIZE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(map != MAP_FAILED);
    struct ibv_mr *mr =
        ibv_reg_mr(b.pd, map, SIZE, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
    CHECK(mr && munmap(map, SIZE) == 0);
    wr = (struct ibv_send_wr){
        .sg_list = &sge,
        .num_sge = 1,
        .opcode = IBV_WR_RDMA_WRITE,
        .send_flags = IBV_SEND_SIGNALED,
        .wr.rdma = { (uintptr_t)map, mr->rkey },
    };
    sge = (struct ibv_sge){.addr = (uintptr_t)a.buf, .length = 8, .lkey = a.mr->lkey};
    CHECK(ibv_post_send(a.qp, &wr, &bad) == 0 && next_wc(a.cq).status != IBV_WC_SUCCESS);
    CHECK(ibv_dereg_mr(mr) == 0);
    drop(&a);
    drop(&b);
}

enum { BUFFER = 4 * 4096, BUFFER_AT = 4096 + 64, BUFFER_LENGTH = 8000, BUFFER_PAGE = 0x10000 };
static const int buffer_flags =
    IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ;

// A region of a descriptor's memory (ibv_reg_dmabuf_mr), which it closes: bytes of it travel.
static void use_buffer(int fd) {
    enum { IOVA = BUFFER_PAGE + 64, LENGTH = BUFFER_LENGTH, OFFSET = BUFFER_AT };
    struct side a, b;
    pair(&a, &b, IBV_QPT_RC, 0);
    errno = 0;
    CHECK(!ibv_reg_dmabuf_mr(b.pd, 0, 4096, BUFFER_PAGE, -1, buffer_flags) && errno == EBADF);
    CHECK(!ibv_reg_dmabuf_mr(b.pd, 0, 0, BUFFER_PAGE, fd, buffer_flags) && errno == EINVAL);
    struct ibv_mr *mr = ibv_reg_dmabuf_mr(b.pd, OFFSET, LENGTH, IOVA, fd, buffer_flags);
    CHECK(mr && mr->length == LENGTH && mr->addr == (void *)(uintptr_t)OFFSET &&
          ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_ACCESS, NULL, NULL, 0, IBV_ACCESS_LOCAL_WRITE) != 0);
    char *map = mmap(NULL, BUFFER, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    CHECK(map != MAP_FAILED && close(fd) == 0);
    memset(a.buf, 0x5a, 1000);
    struct ibv_sge sge = {.addr = (uintptr_t)a.buf, .length = 1000, .lkey = a.mr->lkey};
    struct ibv_send_wr wr = { .sg_list = &sge,
                              .num_sge = 1,
                              .opcode = IBV_WR_RDMA_WRITE,
                              .send_flags = IBV_SEND_SIGNALED,
                              .wr.rdma = { IOVA + LENGTH - 1000, mr->rkey } },
                       *bad;
    CHECK(ibv_post_send(a.qp, &wr, &bad) == 0 && next_wc(a.cq).status == IBV_WC_SUCCESS);
    CHECK(map[OFFSET + LENGTH - 1001] == 0 && map[OFFSET + LENGTH] == 0 &&
          memcmp(map + OFFSET + LENGTH - 1000, a.buf, 1000) == 0);
    memset(map + OFFSET, 0x33, 8);
    sge.length = 8;
    wr.opcode = IBV_WR_RDMA_READ;
    wr.wr.rdma.remote_addr = IOVA;
    CHECK(ibv_post_send(a.qp, &wr, &bad) == 0 && next_wc(a.cq).status == IBV_WC_SUCCESS &&
          memcmp(a.buf, map + OFFSET, 8) == 0);
    // Beyond its end.
    wr.opcode = IBV_WR_RDMA_WRITE;
    wr.wr.rdma.remote_addr = IOVA + LENGTH - 7;
    CHECK(ibv_post_send(a.qp, &wr, &bad) == 0 && next_wc(a.cq).status == IBV_WC_REM_ACCESS_ERR);
    CHECK(munmap(map, BUFFER) == 0 && ibv_dereg_mr(mr) == 0);
    drop(&a);
    drop(&b);
}

// A buffer of a descriptor. Here it is plain memory: the CPU only needs to be able to map it.
static void buffers(void) {
    struct side a, b;
    pair(&a, &b, IBV_QPT_RC, 0);
    int fd = memfd_create("buffer", 0), nothing[2];
    CHECK(fd >= 0 && ftruncate(fd, BUFFER) == 0 &&
          socketpair(AF_UNIX, SOCK_STREAM, 0, nothing) == 0);
    errno = 0;
    CHECK(!ibv_reg_dmabuf_mr(b.pd, 0, 4096, BUFFER_PAGE, nothing[0], buffer_flags) &&
          errno == EOPNOTSUPP);
    CHECK(close(nothing[0]) == 0 && close(nothing[1]) == 0);
    use_buffer(fd);

    // A buffer that is truncated under traffic is an error of the queue pair, not the end of the
    // program.
    CHECK((fd = memfd_create("buffer", 0)) >= 0 && ftruncate(fd, 4096) == 0);
    struct ibv_mr *mr = ibv_reg_dmabuf_mr(b.pd, 0, 4096, BUFFER_PAGE, fd, buffer_flags);
    CHECK(mr && ftruncate(fd, 0) == 0 && close(fd) == 0);
    struct ibv_sge sge = {.addr = (uintptr_t)a.buf, .length = 8, .lkey = a.mr->lkey};
    struct ibv_send_wr wr = { .sg_list = &sge,
                              .num_sge = 1,
                              .opcode = IBV_WR_RDMA_WRITE,
                              .send_flags = IBV_SEND_SIGNALED,
                              .wr.rdma = { BUFFER_PAGE, mr->rkey } },
                       *bad;
    CHECK(ibv_post_send(a.qp, &wr, &bad) == 0 && next_wc(a.cq).status != IBV_WC_SUCCESS);
    CHECK(ibv_dereg_mr(mr) == 0);
    drop(&a);
    drop(&b);
}

// Memory of a descriptor that cannot shrink, with all its pages: a router takes it as well.
static int sealed_memory(void) {
    int fd = memfd_create("buffer", MFD_ALLOW_SEALING);
    CHECK(fd >= 0 && fallocate(fd, 0, 0, BUFFER) == 0 &&
          fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK) == 0);
    return fd;
}

static void sealed_buffer(void) {
    use_buffer(sealed_memory());
}

// A dma-buf: of memory of vgem, a driver of the kernel's that has no hardware.
static void dma_buf(void) {
    struct {
        uint32_t height, width, bits, flags, handle, pitch;
        uint64_t size;
    } dumb = {.height = 1, .width = BUFFER / 4, .bits = 32};
    struct {
        uint32_t handle, flags;
        int32_t fd;
    } prime = {.flags = O_RDWR | O_CLOEXEC};
    int card = open("/dev/dri/card0", O_RDWR | O_CLOEXEC);
    CHECK(card >= 0);
    // DRM_IOCTL_MODE_CREATE_DUMB and DRM_IOCTL_PRIME_HANDLE_TO_FD.
    CHECK(ioctl(card, _IOWR('d', 0xb2, dumb), &dumb) == 0 && dumb.size == BUFFER);
    prime.handle = dumb.handle;
    CHECK(ioctl(card, _IOWR('d', 0x2d, prime), &prime) == 0 && close(card) == 0);
    use_buffer(prime.fd);
}

// A buffer that ends while writes to it are under way: each of them completes, and a later one
// fails.
static void ended_buffer(void) {
    enum { ROUNDS = 20, WRITES = 15 };
    for (int round = 0; round < ROUNDS; round++) {
        struct side a, b;
        pair(&a, &b, IBV_QPT_RC, 0);
        int fd = sealed_memory();
        struct ibv_mr *mr = ibv_reg_dmabuf_mr(b.pd, 0, BUFFER, BUFFER_PAGE, fd, buffer_flags);
        CHECK(mr && close(fd) == 0);
        struct ibv_sge sge = {.addr = (uintptr_t)a.buf, .length = BUFFER, .lkey = a.mr->lkey};
        struct ibv_send_wr wr = { .sg_list = &sge,
                                  .num_sge = 1,
                                  .opcode = IBV_WR_RDMA_WRITE,
                                  .send_flags = IBV_SEND_SIGNALED,
                                  .wr.rdma = { BUFFER_PAGE, mr->rkey } },
                           *bad;
        for (int i = 0; i < WRITES; i++)
            CHECK(ibv_post_send(a.qp, &wr, &bad) == 0);
        CHECK(ibv_dereg_mr(mr) == 0 && ibv_post_send(a.qp, &wr, &bad) == 0);
        for (int i = 0; i < WRITES; i++)
            next_wc(a.cq);
        CHECK(next_wc(a.cq).status != IBV_WC_SUCCESS);
        drop(&a);
        drop(&b);
    }
}

static enum ibv_wc_status put(struct side *a, void *to, uint32_t rkey) {
    struct ibv_sge sge = {.addr = (uintptr_t)a->buf, .length = SIZE, .lkey = a->mr->lkey};
    struct ibv_send_wr wr = { .sg_list = &sge,
                              .num_sge = 1,
                              .opcode = IBV_WR_RDMA_WRITE,
                              .send_flags = IBV_SEND_SIGNALED,
                              .wr.rdma = { (uintptr_t)to, rkey } },
                       *bad;
    CHECK(ibv_post_send(a->qp, &wr, &bad) == 0);
    return next_wc(a->cq).status;
}

// A region that is registered anew: of other memory, in another domain, with other rights. Its keys
// may be others then.
static void rereg(void) {
    struct side a, b;
    pair(&a, &b, IBV_QPT_RC, 0);
    char *first = aligned_alloc(4096, SIZE), *second = aligned_alloc(4096, SIZE);
    struct ibv_pd *other = ibv_alloc_pd(b.ctx);
    CHECK(first && second && other);
    memset(first, 0, SIZE);
    memset(second, 0, SIZE);
    memset(a.buf, 0x5a, SIZE);
    int rights = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_MW_BIND;
    struct ibv_mr *mr = ibv_reg_mr(b.pd, first, SIZE, rights);
    CHECK(mr && ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_TRANSLATION, NULL, second, SIZE, 0) == 0);
    CHECK(mr->addr == second && put(&a, second, mr->rkey) == IBV_WC_SUCCESS);
    CHECK(memcmp(second, a.buf, SIZE) == 0 && first[0] == 0 && first[SIZE - 1] == 0);
    CHECK(ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_PD, other, NULL, 0, 0) == 0 && mr->pd == other);
    CHECK(ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_PD, b.pd, NULL, 0, 0) == 0);
    CHECK(ibv_dealloc_pd(other) == 0);
    // A window needs its region as it is.
    struct ibv_mw *mw = ibv_alloc_mw(b.pd, IBV_MW_TYPE_1);
    if (mw) {
        struct ibv_mw_bind bind = { .send_flags = IBV_SEND_SIGNALED,
                                    .bind_info = { .mr = mr,
                                                   .addr = (uintptr_t)second,
                                                   .length = SIZE,
                                                   .mw_access_flags = IBV_ACCESS_REMOTE_WRITE } };
        CHECK(ibv_bind_mw(b.qp, mw, &bind) == 0 && next_wc(b.cq).status == IBV_WC_SUCCESS);
        uint32_t before = mr->rkey;
        CHECK(ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_ACCESS, NULL, NULL, 0, 0) != 0);
        CHECK(mr->rkey == before && put(&a, second, mr->rkey) == IBV_WC_SUCCESS);
        CHECK(ibv_dealloc_mw(mw) == 0);
    }
    int fewer = IBV_ACCESS_LOCAL_WRITE;
    CHECK(ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_ACCESS, NULL, NULL, 0, fewer) == 0);
    CHECK(put(&a, second, mr->rkey) == IBV_WC_REM_ACCESS_ERR && ibv_dereg_mr(mr) == 0);
    free(first);
    free(second);
    drop(&a);
    drop(&b);
}

// What a router does not map for its soft device.
static void refused_buffers(void) {
    struct side a;
    make(&a, IBV_QPT_RC, 0);
    int sealed = sealed_memory(), plain = memfd_create("buffer", 0), nothing[2];
    CHECK(plain >= 0 && ftruncate(plain, BUFFER) == 0 &&
          socketpair(AF_UNIX, SOCK_STREAM, 0, nothing) == 0);
    const struct {
        int fd, error;
        uint64_t offset;
    } cases[] = { { plain, EACCES, 0 },
                  { nothing[0], EACCES, 0 },
                  { sealed, EINVAL, BUFFER },
                  { sealed, EINVAL, -4096ul } };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        errno = 0;
        CHECK(!ibv_reg_dmabuf_mr(a.pd, cases[i].offset, 4096, BUFFER_PAGE, cases[i].fd,
                                 buffer_flags) &&
              errno == cases[i].error);
    }
    CHECK(close(sealed) == 0 && close(plain) == 0 && close(nothing[0]) == 0 &&
          close(nothing[1]) == 0);
    drop(&a);
}

// Many more objects than the device initially has room for.
static void grow(void) {
    enum { QPS = 700 };
    static struct ibv_cq *cqs[QPS];
    static struct ibv_qp *qps[QPS];
    struct side a, b;
    pair(&a, &b, IBV_QPT_RC, 0);
    for (int i = 0; i < QPS; i++) {
        CHECK((cqs[i] = ibv_create_cq(a.ctx, 1024, NULL, NULL, 0)));
        struct ibv_qp_init_attr init = {
            .send_cq = cqs[i],
            .recv_cq = cqs[i],
            .qp_type = IBV_QPT_RC,
            .cap = { .max_send_wr = 256, .max_recv_wr = 256, .max_send_sge = 4, .max_recv_sge = 4 }
        };
        CHECK((qps[i] = ibv_create_qp(a.pd, &init)));
    }
    transfer(&a, &b);
    for (int i = 0; i < QPS; i++)
        CHECK(ibv_destroy_qp(qps[i]) == 0 && ibv_destroy_cq(cqs[i]) == 0);
    drop(&a);
    drop(&b);
}

// A process can create as many objects as the device reports, whatever other processes of the
// address have; then it gets ENOMEM.
static void fill_and_empty(int full, int go_on) {
    struct side a, b;
    pair(&a, &b, IBV_QPT_RC, 0);
    struct ibv_device_attr attr;
    CHECK(ibv_query_device(a.ctx, &attr) == 0 && attr.max_qp > 1000);
    struct ibv_qp_init_attr init = {
        .send_cq = a.cq,
        .recv_cq = a.cq,
        .qp_type = IBV_QPT_RC,
        .cap = { 1, 1, 1, 1, 0 },
    };
    int more = attr.max_qp - 2;
    struct ibv_qp **qps = calloc(more, sizeof *qps);
    CHECK(qps);
    for (int i = 0; i < more; i++)
        CHECK((qps[i] = ibv_create_qp(a.pd, &init)));
    for (int i = 0; i < 2; i++) {
        errno = 0;
        CHECK(!ibv_create_qp(a.pd, &init) && errno == ENOMEM);
        // Destroying one makes room for one.
        CHECK(ibv_destroy_qp(qps[i]) == 0 && (qps[i] = ibv_create_qp(a.pd, &init)));
    }
    char c = 0;
    CHECK(write(full, &c, 1) == 1 && read(go_on, &c, 1) == 1);
    transfer(&a, &b);
    for (int i = 0; i < more; i++)
        CHECK(ibv_destroy_qp(qps[i]) == 0);
    free(qps);
    drop(&a);
    drop(&b);
}

static void limits(void) {
    int full[2], go_on[2];
    CHECK(pipe(full) == 0 && pipe(go_on) == 0);
    pid_t children[2];
    for (int i = 0; i < 2; i++) {
        CHECK((children[i] = fork()) >= 0);
        if (children[i] == 0) {
            fill_and_empty(full[1], go_on[0]);
            exit(0);
        }
    }
    close(full[1]);
    // Both processes have their maximum at the same time. A process that fails closes its end.
    char c[2];
    CHECK(read(full[0], c, 1) == 1 && read(full[0], c, 1) == 1);
    CHECK(write(go_on[1], c, 2) == 2);
    for (int i = 0; i < 2; i++) {
        int status;
        CHECK(waitpid(children[i], &status, 0) == children[i] && WIFEXITED(status) &&
              WEXITSTATUS(status) == 0);
    }
}

// Threads of a program may have small stacks (dapltest's have 64 KB), and each of them may run the
// engine.
static void *all_of_it(void *children) {
    router();
    struct side a, b;
    pair(&a, &b, IBV_QPT_RC, 1);
    transfer(&a, &b);
    // Other devices join and leave the address while this thread polls.
    for (int i = 0; i < *(int *)children; i++) {
        pid_t child = fork();
        if (child == 0) {
            struct ibv_context *ctx = open_device();
            _exit(ibv_close_device(ctx) != 0);
        }
        int status;
        CHECK(child > 0);
        while (waitpid(child, &status, WNOHANG) == 0)
            transfer(&a, &b);
        CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    }
    drop(&a);
    drop(&b);
    return NULL;
}

static void on_small_stack(int children) {
    pthread_t thread;
    pthread_attr_t attr;
    CHECK(pthread_attr_init(&attr) == 0 && pthread_attr_setstacksize(&attr, 64 << 10) == 0);
    CHECK(pthread_create(&thread, &attr, all_of_it, &children) == 0);
    CHECK(pthread_join(thread, NULL) == 0);
}

static void stack(void) {
    on_small_stack(10);
}

// A child may lack pages beside memory that is registered with a router's device.
static void lone_stack(void) {
    on_small_stack(0);
}

static int count_lines(const char *file) {
    FILE *f = fopen(file, "r");
    CHECK(f);
    int n = 0;
    for (int c; (c = getc(f)) != EOF;)
        n += c == '\n';
    fclose(f);
    return n;
}

static int count_descriptors(void) {
    int n = 0;
    for (int fd = 0; fd < 1024; fd++)
        n += fcntl(fd, F_GETFD) >= 0;
    return n;
}

// Opening and closing leaks nothing, also where a program closes a context with queues on it.
static void leaks(void) {
    int descriptors = 0, maps = 0;
    for (int round = 0; round < 60; round++) {
        struct side a, b, c;
        pair(&a, &b, IBV_QPT_RC, round & 1);
        transfer(&a, &b);
        make(&c, IBV_QPT_RC, 1);
        CHECK(ibv_req_notify_cq(c.cq, 0) == 0 && ibv_close_device(c.ctx) == 0);
        // The channel's memory is the library's, but the descriptor is the process's.
        close(c.channel->fd);
        free(c.buf);
        transfer(&a, &b);
        drop(&a);
        drop(&b);
        // The allocator reaches its steady state in the first rounds.
        if (round == 20) {
            descriptors = count_descriptors();
            maps = count_lines("/proc/self/maps");
        }
    }
    CHECK(count_descriptors() == descriptors);
    CHECK(count_lines("/proc/self/maps") <= maps + 2);
}

int main(int argc, char **argv) {
    static const struct {
        const char *name;
        void (*run)(void);
    } modes[] = { { "router", router },   { "events", events },     { "gids", gids },
                  { "lid", lid },         { "counters", counters }, { "forks", forks },
                  { "hostile", hostile }, { "buffers", buffers },   { "grow", grow },
                  { "limits", limits },   { "stack", stack },       { "leaks", leaks },
                  { "lone_stack", lone_stack },
                  { "sealed_buffer", sealed_buffer },
                  { "dma_buf", dma_buf },
                  { "ended_buffer", ended_buffer },
                  { "rereg", rereg },
                  { "refused_buffers", refused_buffers } };
    for (size_t i = 0; argc == 2 && i < sizeof modes / sizeof *modes; i++)
        if (strcmp(argv[1], modes[i].name) == 0) {
            modes[i].run();
            return 0;
        }
    fprintf(stderr,
            "usage: verbs "
            "router|events|gids|lid|counters|forks|hostile|buffers|grow|limits|stack|lone_stack|"
            "leaks|sealed_buffer|dma_buf|ended_buffer|rereg|refused_buffers\n");
    return 2;
}
