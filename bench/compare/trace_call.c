// SPDX-License-Identifier: MIT OR Apache-2.0
/*
 * What a traced call takes, and what its three system calls take alone. A queue pair sends to
 * itself: each message is ibv_post_recv, ibv_post_send and polls that find two completions. By
 * hand, with TRACE on the file system of interest:
 *
 *   cc -O2 -Itests/c -o trace_call bench/compare/trace_call.c -libverbs
 *   gdrcore-run --address 127.0.0.1 --trace=TRACE -- ./trace_call FILE
 *
 * FILE, beside TRACE, is written and removed. Prints microseconds: the least and the median.
 */
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "rc_pair.h"

enum { ROUNDS = 20000, LINE = 190, CALLS = 3 };

static double took[ROUNDS];
static double began;

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1e6 + t.tv_nsec / 1e3;
}

static int by_time(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static void print(const char *what, int parts)
{
    qsort(took, ROUNDS, sizeof *took, by_time);
    printf("%-16s %.2f %.2f\n", what, took[0] / parts, took[ROUNDS / 2] / parts);
}

#define TIME(what, parts, code)                                                                    \
    do {                                                                                           \
        for (int i = 0; i < ROUNDS; i++) {                                                         \
            began = now();                                                                         \
            code;                                                                                  \
            took[i] = now() - began;                                                               \
        }                                                                                          \
        print(what, parts);                                                                        \
    } while (0)

static void message(struct ibv_cq *cq, struct ibv_qp *qp, struct ibv_sge *sge)
{
    struct ibv_recv_wr recv = {.sg_list = sge, .num_sge = 1}, *bad_recv;
    struct ibv_send_wr send = {.sg_list = sge, .num_sge = 1, .opcode = IBV_WR_SEND}, *bad_send;
    struct ibv_wc wc[2];
    send.send_flags = IBV_SEND_SIGNALED;
    CHECK(ibv_post_recv(qp, &recv, &bad_recv) == 0);
    CHECK(ibv_post_send(qp, &send, &bad_send) == 0);
    for (int found = 0; found < 2;)
        found += ibv_poll_cq(cq, 2, wc);
}

int main(int argc, char **argv)
{
    static char buffer[LINE];
    CHECK(argc == 2);
    struct ibv_context *context = open_device();
    struct ibv_pd *pd = ibv_alloc_pd(context);
    struct ibv_mr *mr = ibv_reg_mr(pd, buffer, sizeof buffer, IBV_ACCESS_LOCAL_WRITE);
    struct ibv_cq *cq = ibv_create_cq(context, 4, NULL, NULL, 0);
    CHECK(mr && cq);
    struct ibv_qp *qp = new_qp(pd, cq, IBV_QPT_RC, 1);
    connect_qp(qp, qp->qp_num, 14);
    struct ibv_sge sge = {(uintptr_t)buffer, 8, mr->lkey};

    TIME("traced call", CALLS, message(cq, qp, &sge));
    int fd = open(argv[1], O_WRONLY | O_CREAT | O_APPEND, 0600);
    CHECK(fd >= 0);
    struct stat st;
    struct rlimit limit;
    TIME("fstat", 1, CHECK(fstat(fd, &st) == 0));
    TIME("getrlimit", 1, CHECK(getrlimit(RLIMIT_FSIZE, &limit) == 0));
    TIME("write", 1, CHECK(write(fd, buffer, LINE) == LINE));
    return unlink(argv[1]);
}
