/*
 * SPDX-License-Identifier: MIT OR Apache-2.0
 *
 * A ping-pong of two processes by libibverbs alone, each with the device of an address, whose bytes
 * are checked. two_hosts ADDRESS ADDRESS [MESSAGES]. Prints "every byte arrived". Knows no name, no
 * port and no file, so that it runs wherever a device can be opened.
 */
#include "rc_pair.h"

#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

enum { LEN = 3000 };
static uint8_t sent[LEN], received[LEN];

struct end {
    union ibv_gid gid;
    uint32_t qpn;
};

static uint8_t byte_at(int host, int round, int i)
{
    return host * 77 + round * 13 + i * 7 + i / 256;
}

static void receive_into(struct ibv_qp *qp, struct ibv_mr *mr)
{
    struct ibv_sge sge = {(uintptr_t)received, LEN, mr->lkey};
    struct ibv_recv_wr wr = {.sg_list = &sge, .num_sge = 1}, *bad;
    memset(received, 0, LEN);
    CHECK(ibv_post_recv(qp, &wr, &bad) == 0);
}

static void send_from(struct ibv_qp *qp, struct ibv_mr *mr, int host, int round)
{
    struct ibv_sge sge = {(uintptr_t)sent, LEN, mr->lkey};
    for (int i = 0; i < LEN; i++)
        sent[i] = byte_at(host, round, i);
    struct ibv_wc wc =
        done(qp, (struct ibv_send_wr){.sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND});
    CHECK(wc.status == IBV_WC_SUCCESS);
}

static int run(int host, int rounds, const char *address, int peer)
{
    /* If the other process fails, this one waits for it no longer than so. */
    alarm(patience_ms(60) / 1000);
    CHECK(setenv("GDRC_ADDRESS", address, 1) == 0);
    struct ibv_context *ctx = open_device();
    struct ibv_pd *pd = ibv_alloc_pd(ctx);
    struct ibv_cq *sends = ibv_create_cq(ctx, 4, NULL, NULL, 0);
    struct ibv_cq *receives = ibv_create_cq(ctx, 4, NULL, NULL, 0);
    struct ibv_qp_init_attr init = {
        .send_cq = sends,
        .recv_cq = receives,
        .qp_type = IBV_QPT_RC,
        .cap = {.max_send_wr = 2, .max_recv_wr = 2, .max_send_sge = 1, .max_recv_sge = 1},
    };
    CHECK(pd && sends && receives);
    struct ibv_qp *qp = ibv_create_qp(pd, &init);
    struct ibv_mr *from = ibv_reg_mr(pd, sent, LEN, IBV_ACCESS_LOCAL_WRITE);
    struct ibv_mr *into = ibv_reg_mr(pd, received, LEN, IBV_ACCESS_LOCAL_WRITE);
    CHECK(qp && from && into);
    struct end own = {.qpn = qp->qp_num}, other;
    CHECK(ibv_query_gid(ctx, 1, 0, &own.gid) == 0);
    CHECK(write(peer, &own, sizeof own) == sizeof own);
    CHECK(read(peer, &other, sizeof other) == sizeof other);
    connect_qp_to(qp, &other.gid, other.qpn, 18);
    receive_into(qp, into);
    char ready = 1;
    CHECK(write(peer, &ready, 1) == 1 && read(peer, &ready, 1) == 1);
    for (int round = 0; round < rounds; round++) {
        if (host == 0)
            send_from(qp, from, host, round);
        CHECK(next_wc(receives).status == IBV_WC_SUCCESS);
        for (int i = 0; i < LEN; i++)
            CHECK(received[i] == byte_at(!host, round, i));
        if (round + 1 < rounds)
            receive_into(qp, into);
        if (host == 1)
            send_from(qp, from, host, round);
    }
    CHECK(write(peer, &ready, 1) == 1 && read(peer, &ready, 1) == 1);
    CHECK(ibv_destroy_qp(qp) == 0 && ibv_dereg_mr(from) == 0 && ibv_dereg_mr(into) == 0);
    CHECK(ibv_destroy_cq(sends) == 0 && ibv_destroy_cq(receives) == 0);
    CHECK(ibv_dealloc_pd(pd) == 0 && ibv_close_device(ctx) == 0);
    return 0;
}

int main(int argc, char **argv)
{
    int ends[2], status, rounds = argc > 3 ? atoi(argv[3]) : 100;
    CHECK(argc > 2 && rounds > 0);
    CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, ends) == 0);
    pid_t pid = fork();
    CHECK(pid >= 0);
    close(ends[pid != 0]);
    if (pid == 0)
        return run(1, rounds, argv[2], ends[1]);
    run(0, rounds, argv[1], ends[0]);
    CHECK(waitpid(pid, &status, 0) == pid && status == 0);
    printf("every byte arrived\n");
    return 0;
}
