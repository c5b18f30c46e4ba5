// SPDX-License-Identifier: MIT OR Apache-2.0
/*
 * A right program of the C API in modes that --strict must bear: threads that post and poll, a
 * child of fork with a context of its own, a signal handler that polls, posts until one is refused,
 * a second context, an end by a signal.
 */
#include "wrong_api/wrong_api.h"

#include <pthread.h>
#include <signal.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

#define THREADS 4
#define ROUNDS 200

/* Messages between two queue pairs of this thread. */
static void *messages(void *number)
{
    char *own = memory + 4096 * (size_t)number;
    gdrc_cq of = make_cq(64);
    gdrc_qp from = make_qp(of, 16), to = make_qp(of, 16);
    connect_both(from, to);
    for (int i = 0; i < ROUNDS; i++) {
        receive(to, own + 2048 - memory, 64, 1);
        memset(own, i, 64);
        int rc = request(from, keys.lkey, GDRC_WR_SEND, own, 64, NULL, 0, GDRC_SEND_SIGNALED);
        CHECK(rc == 0);
        for (int n = 0; n < 2; n++)
            CHECK(next_wc(of).status == GDRC_WC_SUCCESS);
        CHECK(memcmp(own, own + 2048, 64) == 0);
    }
    CHECK(gdrc_qp_destroy(ctx, from) == 0 && gdrc_qp_destroy(ctx, to) == 0);
    CHECK(gdrc_cq_destroy(ctx, of) == 0);
    return NULL;
}

static void threads(void)
{
    pthread_t all[THREADS];
    for (size_t i = 0; i < THREADS; i++)
        CHECK(pthread_create(&all[i], NULL, messages, (void *)i) == 0);
    for (size_t i = 0; i < THREADS; i++)
        CHECK(pthread_join(all[i], NULL) == 0);
}

/* The child's objects are its own. It ends by exit, with nothing left. */
static void forks(void)
{
    pid_t child = fork();
    if (child == 0) {
        gdrc_context *of_parent = ctx;
        begin(16, 64);
        messages(0);
        CHECK(gdrc_close(of_parent, NULL) == -EOWNERDEAD);
        exit(end());
    }
    int status;
    CHECK(waitpid(child, &status, 0) == child && status == 0);
    messages(0);
}

static volatile sig_atomic_t polls;

static void on_alarm(int signal)
{
    (void)signal;
    gdrc_wc wc;
    gdrc_recv_wr wr = {0};
    const gdrc_recv_wr *bad;
    (void)gdrc_post_recv(ctx, b, &wr, &bad);
    if (gdrc_poll_cq(ctx, cq, 1, &wc) >= 0)
        polls++;
}

/* The handler polls a CQ that has nothing, and posts, whatever it interrupts. */
static void handler(void)
{
    struct sigaction action = {.sa_handler = on_alarm, .sa_flags = SA_RESTART};
    struct itimerval each = {{0, 5000}, {0, 5000}};
    CHECK(sigaction(SIGALRM, &action, NULL) == 0 && setitimer(ITIMER_REAL, &each, NULL) == 0);
    do
        messages(0);
    while (polls < 20);
    CHECK(setitimer(ITIMER_REAL, &(struct itimerval){0}, NULL) == 0);
}

/* Lists of three are posted until a post is refused, and go on from there behind a poll. */
static void fill(void)
{
    gdrc_sge sge = {(uintptr_t)memory, 8, keys.lkey};
    gdrc_send_wr list[3];
    for (int i = 0; i < 3; i++)
        list[i] = (gdrc_send_wr){.next = i < 2 ? &list[i + 1] : NULL,
                                 .sg_list = &sge,
                                 .num_sge = 1,
                                 .opcode = GDRC_WR_RDMA_WRITE,
                                 .send_flags = GDRC_SEND_SIGNALED,
                                 .wr.rdma = {(uintptr_t)memory + 4096, keys.rkey}};
    const gdrc_send_wr *next = list, *bad;
    int under_way = 0, refused = 0;
    for (int n = 0; n < 100; n++) {
        const gdrc_send_wr *end = NULL;
        int rc = gdrc_post_send(ctx, a, next, &bad);
        if (rc == -EAGAIN) {
            CHECK(bad >= next && bad < list + 3);
            end = bad;
            refused++;
        } else {
            CHECK(rc == 0);
        }
        under_way += (end ? end : list + 3) - next;
        next = end ? end : list;
        if (end)
            for (; under_way > 0; under_way--)
                poll_good(1);
    }
    CHECK(refused > 10);
    poll_good(under_way);
}

/* The first context chooses for the process; the same words are no others. */
static void two(void)
{
    gdrc_config other = {.struct_size = sizeof other, .strict = "abort"};
    gdrc_context *second;
    CHECK(gdrc_open("loopback", &other, &second) == -EINVAL);
    other.strict = "exit=66";
    CHECK(gdrc_open("loopback", &other, &second) == 0 && gdrc_close(second, NULL) == 0);
    other.strict = NULL;
    CHECK(gdrc_open("loopback", &other, &second) == 0);
    gdrc_pd unwatched;
    CHECK(gdrc_pd_alloc(second, &unwatched) == 0 && gdrc_close(second, NULL) == 1);
}

/* One mistake, and an end without exit: what was said before is there. */
static void killed(void)
{
    receive(b, 4096, 64, 1);
    CHECK(post(GDRC_WR_SEND, 0, 64, 0, GDRC_SEND_SIGNALED) == 0);
    memory[0] ^= 1;
    poll_good(2);
    raise(SIGTERM);
}

int main(int argc, char **argv)
{
    const char *mode = argc > 1 ? argv[1] : "";
    begin(16, 64);
    if (strcmp(mode, "threads") == 0)
        threads();
    else if (strcmp(mode, "fork") == 0)
        forks();
    else if (strcmp(mode, "handler") == 0)
        handler();
    else if (strcmp(mode, "fill") == 0)
        fill();
    else if (strcmp(mode, "two") == 0)
        two();
    else
        killed();
    return end();
}
