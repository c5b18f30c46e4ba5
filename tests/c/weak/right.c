// SPDX-License-Identifier: MIT OR Apache-2.0
/* Does by the rules what the wrong programs beside it do: goes by completions, polls until there
 * are none, fences. It sleeps on events, and counts no completion twice. With a word it says only
 * which keys and numbers it has: of a device, of one that it opens behind that, and of its
 * children's. */
#include "../wrong/wrong.h"

#include <sys/wait.h>
#include <unistd.h>

#define LEN 6000
#define MESSAGES 8

static struct ibv_comp_channel *channel;
static struct ibv_cq *own;

/* So many completions of the CQ with a channel, asleep in between. */
static void take(int wanted)
{
    struct ibv_wc wc[16];
    while (wanted > 0) {
        int n;
        while ((n = ibv_poll_cq(own, 16, wc)) > 0) {
            for (int i = 0; i < n; i++)
                CHECK(wc[i].status == IBV_WC_SUCCESS);
            wanted -= n;
        }
        CHECK(n == 0 && wanted >= 0);
        if (wanted == 0)
            return;
        CHECK(ibv_req_notify_cq(own, 0) == 0);
        n = ibv_poll_cq(own, 16, wc);
        for (int i = 0; i < n; i++)
            CHECK(wc[i].status == IBV_WC_SUCCESS);
        wanted -= n;
        /* Fewer than there was room for: the rest has an event. */
        if (wanted > 0 && n < 16) {
            struct ibv_cq *of;
            void *context;
            CHECK(ibv_get_cq_event(channel, &of, &context) == 0);
            ibv_ack_cq_events(of, 1);
        }
    }
}

/* A round that has found no completion may look for one again. */
static void take_in_one_round(void)
{
    struct ibv_cq_init_attr_ex wanted = {.cqe = 64, .wc_flags = IBV_WC_EX_WITH_BYTE_LEN};
    struct ibv_cq_ex *ex = ibv_create_cq_ex(ctx, &wanted);
    CHECK(ex);
    struct ibv_qp *c = make_qp(ibv_cq_ex_to_cq(ex), 16), *d = make_qp(cq, 16);
    connect_both(c, d);
    for (int i = 0; i < MESSAGES; i++)
        CHECK(request(c, mr, IBV_WR_RDMA_WRITE, memory, 64, 8192, IBV_SEND_SIGNALED) == 0);
    struct ibv_poll_cq_attr none = {0};
    int rc;
    while ((rc = ibv_start_poll(ex, &none)) == ENOENT)
        continue;
    for (int n = 1; rc == 0 && n < MESSAGES; n++)
        while ((rc = ibv_next_poll(ex)) == ENOENT)
            continue;
    CHECK(rc == 0 && ex->status == IBV_WC_SUCCESS);
    ibv_end_poll(ex);
    CHECK(ibv_destroy_qp(c) == 0 && ibv_destroy_qp(d) == 0);
    CHECK(ibv_destroy_cq(ibv_cq_ex_to_cq(ex)) == 0);
}

/* The keys and numbers of a device that is opened, and closed again. */
static void say(const char *whose)
{
    begin(16, 64);
    printf("%s: %#x %#x %#x %#x\n", whose, mr->handle, mr->rkey, a->qp_num, b->qp_num);
    end();
    fflush(stdout);
}

int main(int argc, char **argv)
{
    if (argc > 1) {
        say(argv[1]);
        say("again");
        for (int i = 0; i < 2; i++) {
            pid_t child = fork();
            CHECK(child >= 0);
            if (child == 0) {
                say(i == 0 ? "first" : "second");
                return 0;
            }
            int status;
            CHECK(waitpid(child, &status, 0) == child && status == 0);
        }
        return 0;
    }
    begin(16, 64);
    CHECK((channel = ibv_create_comp_channel(ctx)));
    CHECK((own = ibv_create_cq(ctx, 64, NULL, channel, 0)));
    struct ibv_qp *c = make_qp(own, 16), *d = make_qp(cq, 16);
    connect_both(c, d);
    for (int round = 1; round <= 20; round++) {
        memset(memory, round, LEN);
        receive(d, 15000, 64, 1);
        CHECK(request(c, mr, IBV_WR_RDMA_WRITE, memory, LEN, 8192, IBV_SEND_SIGNALED) == 0);
        CHECK(request(c, mr, IBV_WR_SEND, memory, 64, 0, IBV_SEND_SIGNALED) == 0);
        poll_good(1);
        CHECK(memcmp(memory, memory + 8192, LEN) == 0 && memory[15000] == round);
        take(2);
        for (int i = 0; i < MESSAGES; i++)
            CHECK(request(c, mr, IBV_WR_RDMA_WRITE, memory, 64, 8192 + 64 * i,
                          IBV_SEND_SIGNALED) == 0);
        take(MESSAGES);
        memset(memory + 8192, 0, 64);
        CHECK(request(c, mr, IBV_WR_RDMA_READ, memory + 7000, 64, 8192, IBV_SEND_SIGNALED) == 0);
        CHECK(request(c, mr, IBV_WR_RDMA_WRITE, memory, 64, 8192,
                      IBV_SEND_SIGNALED | IBV_SEND_FENCE) == 0);
        take(2);
        CHECK(memory[7000] == 0 && memory[8192] == round);
    }
    CHECK(ibv_destroy_qp(c) == 0 && ibv_destroy_qp(d) == 0 && ibv_destroy_cq(own) == 0);
    CHECK(ibv_destroy_comp_channel(channel) == 0);
    take_in_one_round();
    return end();
}
