// SPDX-License-Identifier: MIT OR Apache-2.0
/*
 * call_faults HOW: calls that fail by rules of the test, which this program knows; each returns its
 * errno in the form of its man page, and what it would have changed is as before. HOW:
 *   forms    the first call of each kind fails, those after it do not
 *   posts    posts fail and name the first request; nothing of their lists is posted
 *   threads  two threads query the device 5000 times each; one call of ten fails
 *   fork     the second ibv_fork_init of a process fails, of parent and child
 *   closed   closes all descriptors, opens FILE (the next argument) in their place, and fails
 *   twice    one call, which fails
 */
#include "rc_pair.h"

#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <sys/wait.h>
#include <unistd.h>

/* A call that returns an errno; NULL and errno; -1 and errno. Each fails once. */
#define STATUS(call, e) CHECK((call) == (e) && errno == (e) && (call) == 0)
#define POINTER(at, call, e) CHECK(!(call) && errno == (e) && ((at) = (call)))
#define MINUS(call, e) CHECK((call) == -1 && errno == (e) && (call) == 0)

static struct ibv_context *ctx;
static struct ibv_pd *pd;
static struct ibv_mr *mr;
static struct ibv_comp_channel *channel;
static struct ibv_cq *cq;
static char memory[4096];

static struct ibv_qp *make_qp(void)
{
    struct ibv_qp_init_attr_ex init = {
        .send_cq = cq,
        .recv_cq = cq,
        .qp_type = IBV_QPT_RC,
        .cap = {.max_send_wr = 8, .max_recv_wr = 8, .max_send_sge = 1, .max_recv_sge = 1},
        .comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS,
        .pd = pd,
        .send_ops_flags = IBV_QP_EX_WITH_RDMA_WRITE};
    return ibv_create_qp_ex(ctx, &init);
}

static void forms(void)
{
    struct ibv_device **list;
    int count = 7;
    POINTER(list, ibv_get_device_list(&count), ENOMEM);
    POINTER(ctx, ibv_open_device(list[0]), EACCES);
    ibv_free_device_list(list);
    POINTER(pd, ibv_alloc_pd(ctx), ENOMEM);
    /* Whether the header makes it ibv_reg_mr or ibv_reg_mr_iova2 depends on the flags. */
    volatile int access = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE;
    int flags = access;
    POINTER(mr, ibv_reg_mr(pd, memory, sizeof memory, flags), ENOMEM);
    POINTER(channel, ibv_create_comp_channel(ctx), EMFILE);
    POINTER(cq, ibv_create_cq(ctx, 64, NULL, channel, 0), ENOMEM);
    struct ibv_qp *qp;
    POINTER(qp, make_qp(), EAGAIN);

    struct ibv_qp_attr init = {.qp_state = IBV_QPS_INIT, .port_num = 1};
    int mask = IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS;
    CHECK(ibv_modify_qp(qp, &init, mask) == EIO && state_of(qp) == IBV_QPS_RESET);
    CHECK(ibv_modify_qp(qp, &init, mask) == 0 && state_of(qp) == IBV_QPS_INIT);
    init.qp_state = IBV_QPS_RESET;
    CHECK(ibv_modify_qp(qp, &init, IBV_QP_STATE) == 0);

    struct ibv_device_attr device;
    STATUS(ibv_query_device(ctx, &device), EIO);
    struct ibv_port_attr port;
    STATUS(ibv_query_port(ctx, 1, &port), EIO);
    union ibv_gid gid;
    MINUS(ibv_query_gid(ctx, 1, 0, &gid), EINVAL);
    struct ibv_gid_entry entry;
    STATUS(ibv_query_gid_ex(ctx, 1, 0, &entry, 0), ENODATA);
    CHECK(ibv_query_gid_table(ctx, &entry, 1, 0) == -EIO);
    STATUS(ibv_req_notify_cq(cq, 0), EIO);

    struct ibv_qp *other = make_qp();
    CHECK(other);
    connect_both(qp, other);
    struct ibv_sge sge = {(uintptr_t)memory, 8, mr->lkey};
    struct ibv_send_wr write = {.sg_list = &sge,
                                .num_sge = 1,
                                .opcode = IBV_WR_RDMA_WRITE,
                                .send_flags = IBV_SEND_SIGNALED,
                                .wr.rdma = {(uintptr_t)memory + 64, mr->rkey}},
                       *bad;
    CHECK(ibv_post_send(qp, &write, &bad) == 0);
    /* A call that takes an event, or a completion, leaves it where it is. */
    struct ibv_cq *armed;
    void *context;
    MINUS(ibv_get_cq_event(channel, &armed, &context), EINTR);
    CHECK(armed == cq);
    ibv_ack_cq_events(cq, 1);
    struct ibv_wc wc;
    CHECK(ibv_poll_cq(cq, 1, &wc) == -EIO);
    CHECK(next_wc(cq).status == IBV_WC_SUCCESS);

    struct ibv_cq_init_attr_ex cq_init = {.cqe = 8};
    struct ibv_cq_ex *ex = ibv_create_cq_ex(ctx, &cq_init);
    struct ibv_poll_cq_attr none = {0};
    CHECK(ex && ibv_start_poll(ex, &none) == EIO && ibv_start_poll(ex, &none) == ENOENT);

    STATUS(ibv_destroy_qp(qp), EBUSY);
    CHECK(ibv_destroy_qp(other) == 0);
    STATUS(ibv_destroy_cq(cq), EBUSY);
    STATUS(ibv_dereg_mr(mr), EBUSY);
    STATUS(ibv_dealloc_pd(pd), EBUSY);
    CHECK(ibv_close_device(ctx) == EBUSY);
    /* It is open. */
    CHECK(ibv_query_device(ctx, &device) == 0);
    CHECK(ibv_destroy_cq(ibv_cq_ex_to_cq(ex)) == 0);
    CHECK(ibv_destroy_comp_channel(channel) == 0 && ibv_close_device(ctx) == 0);
}

static void *build(void *qp)
{
    struct ibv_qp_ex *q = ibv_qp_to_qp_ex(qp);
    ibv_wr_start(q);
    q->wr_id = 7;
    q->wr_flags = IBV_SEND_SIGNALED;
    ibv_wr_rdma_write(q, mr->rkey, (uintptr_t)memory + 64);
    ibv_wr_set_sge(q, mr->lkey, (uintptr_t)memory, 8);
    return (void *)(long)ibv_wr_complete(q);
}

static void posts(void)
{
    ctx = open_device();
    CHECK((pd = ibv_alloc_pd(ctx)));
    CHECK((mr = ibv_reg_mr(pd, memory, sizeof memory,
                           IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE)));
    CHECK((cq = ibv_create_cq(ctx, 64, NULL, NULL, 0)));
    struct ibv_qp *a = make_qp(), *b = make_qp();
    CHECK(a && b);
    connect_both(a, b);
    struct ibv_sge sge = {(uintptr_t)memory, 8, mr->lkey};
    struct ibv_send_wr second = {.wr_id = 2,
                                 .sg_list = &sge,
                                 .num_sge = 1,
                                 .opcode = IBV_WR_RDMA_WRITE,
                                 .send_flags = IBV_SEND_SIGNALED,
                                 .wr.rdma = {(uintptr_t)memory + 64, mr->rkey}},
                       first = second, *bad = NULL;
    first.wr_id = 1;
    first.next = &second;
    CHECK(ibv_post_send(a, &first, &bad) == ENOMEM && errno == ENOMEM && bad == &first);
    CHECK(ibv_post_send(a, &second, &bad) == 0);
    CHECK(next_wc(cq).wr_id == 2);
    struct ibv_recv_wr recv = {.wr_id = 3, .sg_list = &sge, .num_sge = 1}, *bad_recv = NULL;
    CHECK(ibv_post_recv(b, &recv, &bad_recv) == EINVAL && bad_recv == &recv);
    /* The queue pair is free for another thread, and nothing of the first batch is left. */
    CHECK((long)build(a) == ENOMEM);
    pthread_t thread;
    void *built;
    CHECK(pthread_create(&thread, NULL, build, a) == 0 && pthread_join(thread, &built) == 0);
    CHECK(built == NULL);
    CHECK(next_wc(cq).wr_id == 7);
    struct ibv_wc wc;
    for (int i = 0; i < 1000; i++)
        CHECK(ibv_poll_cq(cq, 1, &wc) == 0);
}

static void *queries(void *failed)
{
    struct ibv_device_attr attr;
    for (int i = 0; i < 5000; i++)
        *(int *)failed += ibv_query_device(ctx, &attr) != 0;
    return NULL;
}

int main(int argc, char **argv)
{
    const char *how = argc > 1 ? argv[1] : "forms";
    if (!strcmp(how, "forms")) {
        forms();
    } else if (!strcmp(how, "posts")) {
        posts();
    } else if (!strcmp(how, "threads")) {
        ctx = open_device();
        int failed[2] = {0, 0};
        pthread_t other;
        CHECK(pthread_create(&other, NULL, queries, &failed[1]) == 0);
        queries(&failed[0]);
        CHECK(pthread_join(other, NULL) == 0);
        CHECK(failed[0] + failed[1] == 1000);
    } else if (!strcmp(how, "fork")) {
        CHECK(ibv_fork_init() == 0);
        pid_t child = fork();
        if (child == 0)
            _exit(ibv_fork_init() != 0 || ibv_fork_init() != ENOMEM);
        int status;
        CHECK(waitpid(child, &status, 0) == child && status == 0);
        CHECK(ibv_fork_init() == ENOMEM && ibv_fork_init() == 0);
    } else if (!strcmp(how, "closed")) {
        /* As a daemon does. */
        for (int fd = 3; fd < 256; fd++)
            close(fd);
        int fd;
        while ((fd = open(argv[2], O_WRONLY | O_CREAT | O_APPEND, 0600)) >= 0 && fd < 200)
            ;
        CHECK(ibv_fork_init() == ENOMEM);
    } else {
        CHECK(ibv_fork_init() == ENOMEM);
    }
    printf("ok\n");
    return 0;
}
