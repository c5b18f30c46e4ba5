// Commands written to a context's cmd_fd, as FreeFlow's router writes them: commands
// refused|answered. Exit code 0: all answers were right. `refused`: without the preloaded library
// each write(2) is EBADF. `answered`: the answers are those of the kernel's uverbs.
#include <errno.h>
#include <fcntl.h>
#include <infiniband/verbs.h>
#include <pthread.h>
#include <rdma/ib_user_verbs.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#include "rc_pair.h"

#define PAGE 4096

struct query {
    struct ib_uverbs_cmd_hdr hdr;
    union {
        struct {
            __u64 response;
        } device;
        struct {
            __u64 response;
            __u32 qp_handle, attr_mask;
        } qp;
        __u64 words[8];
    };
};

static int words(size_t bytes) {
    return (int)(bytes / 4);
}

static struct query device_query(void *response) {
    struct query q = {
        .hdr = { IB_USER_VERBS_CMD_QUERY_DEVICE, words(sizeof q.hdr + sizeof q.device),
                 words(sizeof(struct ib_uverbs_query_device_resp)) },
    };
    q.device.response = (uintptr_t)response;
    return q;
}

static struct query qp_query(const struct ibv_qp *qp, void *response) {
    struct query q = {
        .hdr = { IB_USER_VERBS_CMD_QUERY_QP, words(sizeof q.hdr + sizeof q.qp),
                 words(sizeof(struct ib_uverbs_query_qp_resp)) },
    };
    q.qp.response = (uintptr_t)response;
    q.qp.qp_handle = qp->handle;
    q.qp.attr_mask = IBV_QP_STATE;
    return q;
}

// Writes a command of the length in its header; returns 0 or errno.
static int tell(int fd, const struct query *q) {
    size_t length = q->hdr.in_words * 4u;
    errno = 0;
    ssize_t n = write(fd, q, length);
    CHECK(n == -1 || n == (ssize_t)length);
    return n == -1 ? errno : 0;
}

static int says(int fd, const void *buf, size_t length) {
    errno = 0;
    CHECK(write(fd, buf, length) == -1);
    return errno;
}

struct objects {
    struct ibv_context *ctx;
    struct ibv_pd *pd;
    struct ibv_cq *cq;
    struct ibv_qp *qp;
};

static struct objects make(enum ibv_qp_type type, int sq_sig_all) {
    struct objects o = {.ctx = open_device()};
    CHECK((o.pd = ibv_alloc_pd(o.ctx)));
    CHECK((o.cq = ibv_create_cq(o.ctx, 8, NULL, NULL, 0)));
    struct ibv_qp_init_attr init = {
        .send_cq = o.cq,
        .recv_cq = o.cq,
        .qp_type = type,
        .sq_sig_all = sq_sig_all,
        .cap = { .max_send_wr = 5,
                 .max_recv_wr = 6,
                 .max_send_sge = 2,
                 .max_recv_sge = 3,
                 .max_inline_data = 32 },
    };
    CHECK((o.qp = ibv_create_qp(o.pd, &init)));
    struct ibv_qp_attr a = {
        .port_num = 1,
        .qkey = 0x01234567,
        .qp_access_flags = IBV_ACCESS_REMOTE_READ,
        .path_mtu = IBV_MTU_1024,
        .dest_qp_num = 0x123456,
        .rq_psn = 0xabcdef,
        .sq_psn = 0x13579b,
        .max_dest_rd_atomic = 3,
        .max_rd_atomic = 2,
        .min_rnr_timer = 12,
        .timeout = 14,
        .retry_cnt = 6,
        .rnr_retry = 5,
        .ah_attr = { .is_global = 1,
                     .port_num = 1,
                     .grh = { .sgid_index = 1, .hop_limit = 7, .traffic_class = 4 } }
    };
    CHECK(ibv_query_gid(o.ctx, 1, 1, &a.ah_attr.grh.dgid) == 0);
    take_to_rts(o.qp, a);
    return o;
}

static void drop(struct objects *o) {
    CHECK(ibv_destroy_qp(o->qp) == 0 && ibv_destroy_cq(o->cq) == 0 && ibv_dealloc_pd(o->pd) == 0 &&
          ibv_close_device(o->ctx) == 0);
}

// The answer about a QP equals that of libibverbs.
static void compare_qp(struct objects *o) {
    struct ib_uverbs_query_qp_resp r;
    memset(&r, 0xee, sizeof r);
    struct query q = qp_query(o->qp, &r);
    CHECK(tell(o->ctx->cmd_fd, &q) == 0);
    struct ibv_qp_attr a;
    struct ibv_qp_init_attr init;
    CHECK(ibv_query_qp(o->qp, &a, IBV_QP_STATE, &init) == 0);
    CHECK(r.qp_state == IBV_QPS_RTS && r.qp_state == a.qp_state &&
          r.cur_qp_state == a.cur_qp_state && r.path_mtu == a.path_mtu);
    CHECK(r.qkey == a.qkey && r.rq_psn == a.rq_psn && r.sq_psn == a.sq_psn &&
          r.dest_qp_num == a.dest_qp_num);
    CHECK(r.qp_access_flags == (__u32)a.qp_access_flags && r.pkey_index == a.pkey_index &&
          r.port_num == a.port_num && r.timeout == a.timeout);
    CHECK(r.max_rd_atomic == a.max_rd_atomic && r.max_dest_rd_atomic == a.max_dest_rd_atomic &&
          r.min_rnr_timer == a.min_rnr_timer);
    CHECK(r.retry_cnt == a.retry_cnt && r.rnr_retry == a.rnr_retry &&
          r.sq_draining == a.sq_draining && r.sq_sig_all == init.sq_sig_all);
    CHECK(r.max_send_wr == init.cap.max_send_wr && r.max_recv_wr == init.cap.max_recv_wr &&
          r.max_send_sge == init.cap.max_send_sge);
    CHECK(r.max_recv_sge == init.cap.max_recv_sge && r.max_inline_data == init.cap.max_inline_data);
    CHECK(memcmp(r.dest.dgid, a.ah_attr.grh.dgid.raw, 16) == 0 &&
          r.dest.is_global == a.ah_attr.is_global && r.dest.sgid_index == a.ah_attr.grh.sgid_index);
    CHECK(r.dest.hop_limit == a.ah_attr.grh.hop_limit &&
          r.dest.traffic_class == a.ah_attr.grh.traffic_class &&
          r.dest.port_num == a.ah_attr.port_num);
    if (o->qp->qp_type == IBV_QPT_UD)
        CHECK(r.qkey == 0x01234567);
    else
        CHECK(r.dest_qp_num == 0x123456 && r.rq_psn == 0xabcdef && r.dest.hop_limit == 7 &&
              r.retry_cnt == 6);
}

static void compare_device(struct ibv_context *ctx) {
    // More room than the answer needs: the rest is zeroed.
    struct {
        struct ib_uverbs_query_device_resp r;
        char more[300], end;
    } room;
    memset(&room, 0xee, sizeof room);
    struct query q = device_query(&room);
    q.hdr.out_words = words(sizeof room.r + sizeof room.more);
    CHECK(tell(ctx->cmd_fd, &q) == 0);
    for (size_t i = 0; i < sizeof room.more; i++)
        CHECK(room.more[i] == 0);
    CHECK((unsigned char)room.end == 0xee);
    struct ibv_device_attr a;
    CHECK(ibv_query_device(ctx, &a) == 0);
    CHECK(room.r.node_guid == a.node_guid && room.r.vendor_id == a.vendor_id &&
          room.r.max_mr_size == a.max_mr_size);
    CHECK((int)room.r.max_qp == a.max_qp && (int)room.r.max_qp_wr == a.max_qp_wr &&
          (int)room.r.max_cq == a.max_cq && (int)room.r.max_mr == a.max_mr);
    CHECK((int)room.r.max_sge == a.max_sge && (int)room.r.max_srq == a.max_srq &&
          (int)room.r.max_ah == a.max_ah && room.r.atomic_cap == a.atomic_cap);
    CHECK(room.r.device_cap_flags == a.device_cap_flags && room.r.max_pkeys == 1 &&
          room.r.phys_port_cnt == 1 && room.r.fw_ver != 0);
}

// Lengths and addresses that no correct program passes.
static void hostile(struct objects *o) {
    int fd = o->ctx->cmd_fd;
    struct ib_uverbs_query_qp_resp r;
    struct query good = qp_query(o->qp, &r), q;
    for (size_t n = 0; n < sizeof good.hdr; n++)
        CHECK(says(fd, &good, n) == EINVAL);
    CHECK(says(fd, NULL, 24) == EFAULT && says(fd, (void *)8, 24) == EFAULT &&
          says(fd, (void *)-64, 24) == EFAULT);
    // The header's word count contradicts the length.
    for (size_t n = sizeof good.hdr; n < 3 * PAGE; n += n < 64 ? 1 : 1021) {
        static char big[3 * PAGE];
        memcpy(big, &good, sizeof good);
        if (n != good.hdr.in_words * 4u)
            CHECK(says(fd, big, n) == EINVAL);
    }
    CHECK(says(fd, &good, (size_t)1 << 62) == EINVAL && says(fd, &good, (size_t)-1) == EINVAL);
    for (q = good; q.hdr.in_words > 2;) {
        q.hdr.in_words--;
        CHECK(tell(fd, &q) == ENOSPC);
    }
    for (q = good; q.hdr.out_words > 0;) {
        q.hdr.out_words--;
        CHECK(tell(fd, &q) == ENOSPC);
    }
    // A longer request is a newer program's: it is accepted if the extra bytes are zero.
    q = good;
    q.hdr.in_words += 4;
    q.words[2] = q.words[3] = 0;
    CHECK(tell(fd, &q) == 0);
    q.words[3] = 1;
    CHECK(tell(fd, &q) == EOPNOTSUPP);

    // A page with no page mapped behind it.
    char *page = mmap(NULL, 2 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(page != MAP_FAILED && munmap(page + PAGE, PAGE) == 0);
    for (size_t there = 0; there < good.hdr.in_words * 4u; there += 4) {
        memcpy(page + PAGE - there, &good, there);
        CHECK(says(fd, page + PAGE - there, good.hdr.in_words * 4u) == EFAULT);
    }
    for (size_t there = 0; there < sizeof r; there += 8) {
        q = qp_query(o->qp, page + PAGE - there);
        CHECK(tell(fd, &q) == EFAULT);
    }
    q = qp_query(o->qp, page + PAGE - sizeof r);
    CHECK(tell(fd, &q) == 0);
    q.hdr.out_words = 0xffff;
    CHECK(tell(fd, &q) == EFAULT);
    // Read-only memory, unmapped memory, and a range that wraps around the address space.
    CHECK(mprotect(page, PAGE, PROT_READ) == 0);
    __u64 bad[] = {(uintptr_t)page, 0, 8, (__u64)-8, (__u64)1 << 63, (uintptr_t)&hostile};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        q = good;
        q.qp.response = bad[i];
        CHECK(tell(fd, &q) == EFAULT);
    }
    CHECK(munmap(page, PAGE) == 0);

    // Other commands, old and extended ones (CREATE_FLOW, EXP_QUERY_DEVICE); undefined bits.
    for (__u32 command = 0; command < 256; command++) {
        q = good;
        q.hdr.command = command;
        if (command != IB_USER_VERBS_CMD_QUERY_DEVICE && command != IB_USER_VERBS_CMD_QUERY_QP)
            CHECK(tell(fd, &q) == EOPNOTSUPP);
        q.hdr.command |= 0x80000000u;
        CHECK(tell(fd, &q) == EOPNOTSUPP);
    }
    for (int bit = 8; bit < 31; bit++) {
        q = good;
        q.hdr.command |= 1u << bit;
        CHECK(tell(fd, &q) == EINVAL);
    }
}

// Each context knows its own objects only.
static void owners(struct objects *o) {
    struct ib_uverbs_query_qp_resp r;
    struct objects other = make(IBV_QPT_RC, 0);
    struct query q = qp_query(o->qp, &r), theirs = qp_query(other.qp, &r);
    CHECK(tell(o->ctx->cmd_fd, &q) == 0 && tell(other.ctx->cmd_fd, &theirs) == 0);
    CHECK(tell(other.ctx->cmd_fd, &q) == EINVAL && tell(o->ctx->cmd_fd, &theirs) == EINVAL);
    q.qp.qp_handle = 0x00ffffff;
    CHECK(tell(o->ctx->cmd_fd, &q) == EINVAL);
    // A copy of the descriptor works too, and ends with the context.
    int copy = dup(other.ctx->cmd_fd), number = other.ctx->cmd_fd;
    CHECK(copy >= 0 && tell(copy, &theirs) == 0);
    drop(&other);
    CHECK(tell(copy, &theirs) == EBADF && tell(number, &theirs) == EBADF);
    close(copy);
    // A destroyed queue pair.
    struct ibv_qp_init_attr init = {
        .send_cq = o->cq,
        .recv_cq = o->cq,
        .qp_type = IBV_QPT_RC,
        .cap = { 1, 1, 1, 1, 0 },
    };
    struct ibv_qp *qp = ibv_create_qp(o->pd, &init);
    CHECK(qp);
    q = qp_query(qp, &r);
    CHECK(tell(o->ctx->cmd_fd, &q) == 0 && r.qp_state == IBV_QPS_RESET && r.dest.is_global == 0);
    CHECK(ibv_destroy_qp(qp) == 0 && tell(o->ctx->cmd_fd, &q) == EINVAL);
    // The child of a fork has no device.
    q = qp_query(o->qp, &r);
    pid_t child = fork();
    if (child == 0)
        _exit(tell(o->ctx->cmd_fd, &q) != EBADF);
    int status;
    CHECK(child > 0 && waitpid(child, &status, 0) == child && WIFEXITED(status) &&
          WEXITSTATUS(status) == 0);
    CHECK(tell(o->ctx->cmd_fd, &q) == 0);
}

// Opens and closes contexts on another thread while commands are answered.
static void *come_and_go(void *stop) {
    while (!__atomic_load_n((int *)stop, __ATOMIC_RELAXED)) {
        struct objects o = make(IBV_QPT_RC, 0);
        compare_qp(&o);
        drop(&o);
    }
    return NULL;
}

static void threads(struct objects *o) {
    pthread_t others[3];
    int stop = 0;
    for (int i = 0; i < 3; i++)
        CHECK(pthread_create(&others[i], NULL, come_and_go, &stop) == 0);
    for (int i = 0; i < 300; i++)
        compare_qp(o);
    __atomic_store_n(&stop, 1, __ATOMIC_RELAXED);
    for (int i = 0; i < 3; i++)
        CHECK(pthread_join(others[i], NULL) == 0);
}

// Writes that are no commands.
static void refused(struct objects *o) {
    struct ib_uverbs_query_qp_resp r;
    struct query q = qp_query(o->qp, &r);
    struct iovec piece = {&q, q.hdr.in_words * 4u};
    CHECK(writev(o->ctx->cmd_fd, &piece, 1) == -1 && errno == EBADF);
    int ends[2];
    CHECK(pipe(ends) == 0 && tell(ends[0], &q) == EBADF && write(ends[1], "x", 1) == 1);
    close(ends[0]);
    close(ends[1]);
    CHECK(tell(ends[0], &q) == EBADF && tell(-1, &q) == EBADF);
    int null = open("/dev/null", O_RDONLY);
    CHECK(null >= 0 && tell(null, &q) == EBADF);
    close(null);
}

int main(int argc, char **argv) {
    int answered = argc == 2 && strcmp(argv[1], "answered") == 0;
    if (argc != 2 || (!answered && strcmp(argv[1], "refused") != 0)) {
        fprintf(stderr, "usage: commands refused|answered\n");
        return 2;
    }
    struct objects rc = make(IBV_QPT_RC, 1), ud = make(IBV_QPT_UD, 0);
    refused(&rc);
    if (answered) {
        compare_device(rc.ctx);
        compare_qp(&rc);
        compare_qp(&ud);
        hostile(&rc);
        owners(&rc);
        threads(&rc);
    } else {
        struct ib_uverbs_query_qp_resp r;
        struct query q = qp_query(ud.qp, &r), d = device_query(&r);
        CHECK(tell(ud.ctx->cmd_fd, &q) == EBADF && tell(ud.ctx->cmd_fd, &d) == EBADF &&
              says(ud.ctx->cmd_fd, &q, 0) == EBADF);
        q.hdr.command = 0x80000000u | IB_USER_VERBS_EX_CMD_CREATE_FLOW;
        CHECK(tell(ud.ctx->cmd_fd, &q) == EBADF);
    }
    drop(&rc);
    drop(&ud);
    return 0;
}
