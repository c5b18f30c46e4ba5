/*
 * SPDX-License-Identifier: MIT OR Apache-2.0
 *
 * Two processes of libibverbs on a busy machine, for scripts/busy.sh. Both spin.
 *
 * busy copy IN OUT: copies a file by SENDs of 1 KiB; the receiver posts 64 receives at a time and
 *     then grants as many by a SEND. Prints the seconds.
 * busy plain IN OUT: the same grants over a socket pair, by processes that sleep in read(2).
 * busy late BYTES COUNT BATCH: COUNT SENDs of BYTES each; the receiver computes for up to a
 *     millisecond after each batch, and posts its receives again then. Prints the seconds.
 */
#include <fcntl.h>
#include <stdint.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "rc_pair.h"

#define GRANT 64
#define PIECE 1024
#define DEPTH 256

static struct ibv_cq *cq;
static struct ibv_qp *qp;
static struct ibv_mr *mr;
static char *buffer;

static double seconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

/* Makes a queue pair and connects it with the other process's. */
static void open_qp(int peer, size_t bytes)
{
    struct {
        union ibv_gid gid;
        uint32_t qpn;
    } own, other;
    struct ibv_context *ctx = open_device();
    struct ibv_pd *pd = ibv_alloc_pd(ctx);
    CHECK(pd && (cq = ibv_create_cq(ctx, 4 * DEPTH, NULL, NULL, 0)));
    struct ibv_qp_init_attr init = {
        .send_cq = cq,
        .recv_cq = cq,
        .qp_type = IBV_QPT_RC,
        .sq_sig_all = 1,
        .cap = {.max_send_wr = DEPTH, .max_recv_wr = DEPTH, .max_send_sge = 1, .max_recv_sge = 1}};
    CHECK((qp = ibv_create_qp(pd, &init)));
    CHECK((buffer = aligned_alloc(4096, (bytes + 4095) & ~(size_t)4095)));
    memset(buffer, 1, bytes);
    CHECK((mr = ibv_reg_mr(pd, buffer, bytes, IBV_ACCESS_LOCAL_WRITE)));
    CHECK(ibv_query_gid(ctx, 1, 0, &own.gid) == 0);
    own.qpn = qp->qp_num;
    CHECK(write(peer, &own, sizeof own) == sizeof own);
    CHECK(read(peer, &other, sizeof other) == sizeof other);
    connect_qp_to(qp, &other.gid, other.qpn, 18);
    /* 0.64 ms, as perftest and rdma_cm's programs have it. */
    struct ibv_qp_attr a = {.qp_state = IBV_QPS_RTS, .min_rnr_timer = 12};
    CHECK(ibv_modify_qp(qp, &a, IBV_QP_STATE | IBV_QP_MIN_RNR_TIMER) == 0);
}

/* Both processes are as far as this. */
static void meet(int peer)
{
    char c = 0;
    CHECK(write(peer, &c, 1) == 1 && read(peer, &c, 1) == 1);
}

static void post_recv(size_t at, size_t bytes)
{
    struct ibv_sge sge = {(uintptr_t)buffer + at, (uint32_t)bytes, mr->lkey};
    struct ibv_recv_wr wr = {.wr_id = at, .sg_list = &sge, .num_sge = 1}, *bad;
    CHECK(ibv_post_recv(qp, &wr, &bad) == 0);
}

static void post_send(size_t at, size_t bytes)
{
    struct ibv_sge sge = {(uintptr_t)buffer + at, (uint32_t)bytes, mr->lkey};
    struct ibv_send_wr wr = {
        .wr_id = at, .sg_list = &sge, .num_sge = bytes != 0, .opcode = IBV_WR_SEND}, *bad;
    CHECK(ibv_post_send(qp, &wr, &bad) == 0);
}

/* The next completion. */
static struct ibv_wc take(void)
{
    struct ibv_wc wc;
    int n;
    while ((n = ibv_poll_cq(cq, 1, &wc)) == 0)
        ;
    CHECK(n == 1 && wc.status == IBV_WC_SUCCESS);
    return wc;
}

/* Takes completions until `n` receives are among them; `sent` counts the others. */
static void take_receives(int n, long *sent)
{
    while (n > 0) {
        if (take().opcode & IBV_WC_RECV)
            n--;
        else
            ++*sent;
    }
}

static void copy_out(int peer, const char *path)
{
    int file = open(path, O_RDONLY), got;
    long posted = 0, sent = 0;
    CHECK(file >= 0);
    open_qp(peer, (GRANT + 1) * PIECE);
    for (int i = 0; i < 2; i++)
        post_recv(GRANT * PIECE, 0);
    meet(peer);
    do {
        take_receives(1, &sent);
        post_recv(GRANT * PIECE, 0);
        for (int i = 0; i < GRANT; i++) {
            /* A piece's buffer is free once its last SEND is complete. */
            while (sent < posted - GRANT + 1) {
                CHECK(!(take().opcode & IBV_WC_RECV));
                sent++;
            }
            got = (int)read(file, buffer + i * PIECE, PIECE);
            CHECK(got >= 0);
            post_send((size_t)i * PIECE, (size_t)got);
            posted++;
            if (got == 0)
                break;
        }
    } while (got > 0);
    while (sent < posted)
        take_receives(0, &sent), sent += !(take().opcode & IBV_WC_RECV);
    meet(peer);
}

static void copy_in(int peer, const char *path)
{
    int file = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0600), ends = 0;
    long grants = 1;
    CHECK(file >= 0);
    open_qp(peer, (GRANT + 1) * PIECE);
    for (int i = 0; i < GRANT; i++)
        post_recv((size_t)i * PIECE, PIECE);
    meet(peer);
    double begin = seconds();
    post_send(GRANT * PIECE, 0);
    for (int n = 0; !ends;) {
        struct ibv_wc wc = take();
        if (!(wc.opcode & IBV_WC_RECV)) {
            grants--;
            continue;
        }
        CHECK(write(file, buffer + wc.wr_id, wc.byte_len) == (ssize_t)wc.byte_len);
        ends = wc.byte_len == 0;
        if (++n == GRANT && !ends) {
            n = 0;
            for (int i = 0; i < GRANT; i++)
                post_recv((size_t)i * PIECE, PIECE);
            post_send(GRANT * PIECE, 0);
            grants++;
        }
    }
    printf("%.2f\n", seconds() - begin);
    meet(peer);
}

/* Reads so many bytes, or fewer at the end. */
static long read_all(int from, char *to, long bytes)
{
    long got = 0, n;
    while (got < bytes && (n = read(from, to + got, (size_t)(bytes - got))) > 0)
        got += n;
    return got;
}

static void plain_out(int peer, const char *path)
{
    static char piece[PIECE];
    int file = open(path, O_RDONLY), got = 1;
    char grant;
    CHECK(file >= 0);
    meet(peer);
    while (got > 0 && read(peer, &grant, 1) == 1)
        for (int i = 0; i < GRANT && (got = (int)read(file, piece, PIECE)) > 0; i++)
            CHECK(write(peer, piece, (size_t)got) == got);
    close(peer);
}

static void plain_in(int peer, const char *path)
{
    static char piece[PIECE];
    int file = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0600);
    long got = PIECE;
    CHECK(file >= 0);
    meet(peer);
    double begin = seconds();
    while (got == PIECE) {
        CHECK(write(peer, "", 1) == 1);
        for (int i = 0; i < GRANT && got == PIECE; i++) {
            got = read_all(peer, piece, PIECE);
            CHECK(write(file, piece, (size_t)got) == got);
        }
    }
    printf("%.2f\n", seconds() - begin);
}

static void late(int peer, int receives, size_t bytes, int count, int batch)
{
    long sent = 0;
    CHECK(count % batch == 0);
    srand(1);
    open_qp(peer, bytes);
    for (int i = 0; receives && i < batch; i++)
        post_recv(0, bytes);
    meet(peer);
    double begin = seconds();
    if (!receives) {
        for (int i = 0; i < count; i++) {
            while (i - sent >= DEPTH)
                take(), sent++;
            post_send(0, bytes);
        }
        while (sent < count)
            take(), sent++;
        printf("%.2f\n", seconds() - begin);
    }
    for (int i = 0; receives && i < count; i += batch) {
        take_receives(batch, &sent);
        double until = seconds() + 0.001 * rand() / RAND_MAX;
        while (seconds() < until)
            ;
        for (int k = 0; k < batch; k++)
            post_recv(0, bytes);
    }
    meet(peer);
}

int main(int argc, char **argv)
{
    int s[2], status;
    CHECK(argc >= 4 && socketpair(AF_UNIX, SOCK_STREAM, 0, s) == 0);
    pid_t child = fork();
    CHECK(child >= 0);
    int peer = s[child == 0];
    close(s[child != 0]);
    if (strcmp(argv[1], "copy") == 0)
        child ? copy_in(peer, argv[3]) : copy_out(peer, argv[2]);
    else if (strcmp(argv[1], "plain") == 0)
        child ? plain_in(peer, argv[3]) : plain_out(peer, argv[2]);
    else
        late(peer, child != 0, (size_t)atol(argv[2]), atoi(argv[3]), atoi(argv[4]));
    fflush(stdout);
    if (child)
        CHECK(waitpid(child, &status, 0) == child && status == 0);
    return 0;
}
