// SPDX-License-Identifier: MIT OR Apache-2.0
/*
 * What is right though it resembles mistakes of tests/c/wrong: a long list whose last request alone
 * is signaled; a CQ that is armed by one thread and polled by another, armed for solicited events,
 * or gone when another CQ has its address; an event that another thread acknowledges during the
 * destruction; a READ into bytes that a WRITE of the same queue pair sends.
 */
#include "wrong/wrong.h"

#include <fcntl.h>
#include <pthread.h>
#include <unistd.h>

#define LONG 1100

static struct ibv_comp_channel *channel;
static struct ibv_cq *own;
static struct ibv_qp *c;

/* Lists that are longer than those that --strict looks at, of more requests than slots. */
static void post_long_lists(void)
{
    static struct ibv_send_wr all[LONG];
    struct ibv_sge sge = {(uintptr_t)memory, 8, mr->lkey};
    for (int i = 0; i < LONG; i++)
        all[i] = (struct ibv_send_wr){.next = i + 1 < LONG ? &all[i + 1] : NULL,
                                      .wr_id = i,
                                      .sg_list = &sge,
                                      .num_sge = 1,
                                      .opcode = IBV_WR_RDMA_WRITE,
                                      .send_flags = i + 1 < LONG ? 0 : IBV_SEND_SIGNALED,
                                      .wr.rdma = {(uintptr_t)memory + 4096, mr->rkey}};
    for (int i = 0; i < 3; i++) {
        struct ibv_send_wr *bad;
        CHECK(ibv_post_send(a, all, &bad) == 0);
        poll_good(1);
    }
}

static void make_own(void)
{
    CHECK((own = ibv_create_cq(ctx, 16, NULL, channel, 0)));
    c = make_qp(own, 16);
    struct ibv_qp_attr reset = {.qp_state = IBV_QPS_RESET};
    CHECK(ibv_modify_qp(b, &reset, IBV_QP_STATE) == 0);
    connect_both(c, b);
}

static void end_own(void)
{
    CHECK(ibv_destroy_qp(c) == 0 && ibv_destroy_cq(own) == 0);
}

static void write_signaled(void)
{
    CHECK(request(c, mr, IBV_WR_RDMA_WRITE, memory, 8, 4096, IBV_SEND_SIGNALED) == 0);
}

/* Takes an event if there is one. */
static int has_event(void)
{
    struct ibv_cq *of;
    void *context;
    if (ibv_get_cq_event(channel, &of, &context) != 0)
        return 0;
    ibv_ack_cq_events(of, 1);
    return 1;
}

static void *poll_once(void *none)
{
    CHECK(next_wc(own).status == IBV_WC_SUCCESS);
    return none;
}

static void in_thread(void *(*f)(void *))
{
    pthread_t thread;
    CHECK(pthread_create(&thread, NULL, f, NULL) == 0 && pthread_join(thread, NULL) == 0);
}

static void *acknowledge_soon(void *none)
{
    usleep(50000);
    ibv_ack_cq_events(own, 1);
    return none;
}

static void arm(void)
{
    /* Armed with nothing outstanding, and then behind a post. */
    make_own();
    CHECK(ibv_req_notify_cq(own, 0) == 0);
    has_event();
    write_signaled();
    in_thread(poll_once);
    has_event();
    write_signaled();
    CHECK(ibv_req_notify_cq(own, 0) == 0);
    has_event();
    in_thread(poll_once);
    write_signaled();
    CHECK(ibv_req_notify_cq(own, 1) == 0);
    has_event();
    poll_once(NULL);
    /* Armed, but its queue pair is destroyed, and then itself; another one has its memory. */
    write_signaled();
    CHECK(ibv_req_notify_cq(own, 0) == 0);
    CHECK(ibv_destroy_qp(c) == 0);
    has_event();
    CHECK(ibv_destroy_cq(own) == 0);
    make_own();
    has_event();
    end_own();
}

static void acknowledge(void)
{
    struct ibv_cq *of;
    void *context;
    pthread_t thread;
    make_own();
    CHECK(fcntl(channel->fd, F_SETFL, 0) == 0);
    CHECK(ibv_req_notify_cq(own, 0) == 0);
    write_signaled();
    CHECK(ibv_get_cq_event(channel, &of, &context) == 0 && of == own);
    CHECK(pthread_create(&thread, NULL, acknowledge_soon, NULL) == 0);
    end_own();
    CHECK(pthread_join(thread, NULL) == 0);
}

int main(void)
{
    begin(2048, 64);
    post_long_lists();
    CHECK(post(IBV_WR_RDMA_WRITE, 0, 64, 4096, IBV_SEND_SIGNALED) == 0);
    CHECK(post(IBV_WR_RDMA_READ, 0, 64, 8192, IBV_SEND_SIGNALED) == 0);
    poll_good(2);
    CHECK((channel = ibv_create_comp_channel(ctx)));
    CHECK(fcntl(channel->fd, F_SETFL, O_NONBLOCK) == 0);
    arm();
    acknowledge();
    CHECK(ibv_destroy_comp_channel(channel) == 0);
    return end();
}
