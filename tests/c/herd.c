// Requests in the way of HERD: each of four clients writes requests by UC WRITE, inline and
// unsignalled, into a slot of the server's memory. The server polls the slots and answers by UD
// SEND, inline. Five processes, one address. Exit code 0: every answer was right.
#include <infiniband/verbs.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "rc_pair.h"

enum { CLIENTS = 4, REQUESTS = 500, SIGNAL_EACH = 16, QKEY = 0x11 };

// A request. `seq` is written last, so a reader that sees it sees the rest.
struct slot {
    uint64_t key;
    uint64_t seq;
};

// Addresses and flags of the processes, in memory that fork shares.
struct board {
    uint64_t slots;
    uint32_t rkey;
    uint32_t server_uc[CLIENTS];
    uint32_t client_uc[CLIENTS], client_ud[CLIENTS];
    volatile int server_told, client_told[CLIENTS], connected, answered[CLIENTS];
};

struct end {
    struct ibv_context *ctx;
    struct ibv_pd *pd;
    struct ibv_cq *cq;
    union ibv_gid gid;
};

static void await(volatile int *flag) {
    for (time_t end = time(NULL) + patience_ms(60) / 1000; !*flag; sched_yield())
        CHECK(time(NULL) < end);
    __sync_synchronize();
}

static void tell(volatile int *flag) {
    __sync_synchronize();
    *flag = 1;
}

static struct end open_end(void) {
    struct end e;
    e.ctx = open_device();
    CHECK((e.pd = ibv_alloc_pd(e.ctx)) && (e.cq = ibv_create_cq(e.ctx, 1024, NULL, NULL, 0)));
    CHECK(ibv_query_gid(e.ctx, 1, 0, &e.gid) == 0);
    return e;
}

static struct ibv_qp *queue_pair(struct end *e, enum ibv_qp_type type) {
    struct ibv_qp *qp = new_qp(e->pd, e->cq, type, 128);
    take_to(qp, IBV_QPS_INIT,
            (struct ibv_qp_attr){
                .port_num = 1, .qkey = QKEY, .qp_access_flags = IBV_ACCESS_REMOTE_WRITE});
    return qp;
}

static void connect_to(struct end *e, struct ibv_qp *qp, uint32_t to) {
    struct ibv_qp_attr a = towards(e->ctx, to);
    take_to(qp, IBV_QPS_RTR, a);
    take_to(qp, IBV_QPS_RTS, a);
}

// Posts inline. Every SIGNAL_EACH-th request is signalled and its completion awaited, so that the
// queue does not fill.
static void post(struct end *e, struct ibv_qp *qp, struct ibv_send_wr *wr, void *data,
                 uint32_t length, uint64_t n, void (*received)(struct ibv_wc *))
{
    struct ibv_sge sge = {.addr = (uintptr_t)data, .length = length};
    struct ibv_send_wr *bad;
    wr->sg_list = &sge;
    wr->num_sge = 1;
    wr->send_flags = IBV_SEND_INLINE | (n % SIGNAL_EACH == 0 ? IBV_SEND_SIGNALED : 0);
    CHECK(ibv_post_send(qp, wr, &bad) == 0);
    for (int sent = n % SIGNAL_EACH != 0; !sent;) {
        struct ibv_wc wc;
        if (ibv_poll_cq(e->cq, 1, &wc) == 1) {
            CHECK(wc.status == IBV_WC_SUCCESS);
            if (wc.opcode & IBV_WC_RECV)
                received(&wc);
            else
                sent = 1;
        }
    }
}

static void unexpected(struct ibv_wc *wc) {
    (void)wc;
    CHECK(!"a receive at the server");
}

static void server(struct board *b) {
    struct end e = open_end();
    volatile struct slot *slots = aligned_alloc(4096, 4096);
    CHECK(slots);
    memset((void *)slots, 0, 4096);
    struct ibv_mr *mr =
        ibv_reg_mr(e.pd, (void *)slots, 4096, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
    CHECK(mr);
    struct ibv_qp *uc[CLIENTS], *ud = queue_pair(&e, IBV_QPT_UD);
    struct ibv_ah *ah[CLIENTS];
    for (int i = 0; i < CLIENTS; i++)
        b->server_uc[i] = (uc[i] = queue_pair(&e, IBV_QPT_UC))->qp_num;
    b->slots = (uintptr_t)slots;
    b->rkey = mr->rkey;
    connect_to(&e, ud, 0);
    tell(&b->server_told);
    for (int i = 0; i < CLIENTS; i++) {
        await(&b->client_told[i]);
        connect_to(&e, uc[i], b->client_uc[i]);
        struct ibv_ah_attr to = {.is_global = 1, .port_num = 1, .grh.dgid = e.gid};
        CHECK((ah[i] = ibv_create_ah(e.pd, &to)));
    }
    tell(&b->connected);
    uint64_t seen[CLIENTS] = {0}, answered = 0;
    for (int left = CLIENTS * REQUESTS; left > 0;) {
        int found = 0;
        for (int i = 0; i < CLIENTS; i++) {
            if (slots[i].seq == seen[i])
                continue;
            CHECK(slots[i].seq == seen[i] + 1);
            seen[i]++;
            uint64_t answer[2] = {seen[i], slots[i].key * 3 + seen[i]};
            struct ibv_send_wr wr = {
                .opcode = IBV_WR_SEND,
                .wr.ud = { ah[i], b->client_ud[i], QKEY },
            };
            post(&e, ud, &wr, answer, sizeof answer, answered++, unexpected);
            left--;
            found = 1;
        }
        // While no request is found the library is not called.
        if (!found)
            sched_yield();
    }
    for (int i = 0, status; i < CLIENTS; i++)
        CHECK(wait(&status) > 0 && status == 0);
}

// Answers that came while the client waited for its own WRITE.
static int early;

static void count_early(struct ibv_wc *wc) {
    (void)wc;
    early++;
}

static void client(struct board *b, int me) {
    await(&b->server_told);
    struct end e = open_end();
    struct ibv_qp *uc = queue_pair(&e, IBV_QPT_UC), *ud = queue_pair(&e, IBV_QPT_UD);
    char *answers = aligned_alloc(4096, 4096);
    CHECK(answers);
    struct ibv_mr *mr = ibv_reg_mr(e.pd, answers, 4096, IBV_ACCESS_LOCAL_WRITE);
    CHECK(mr);
    connect_to(&e, uc, b->server_uc[me]);
    connect_to(&e, ud, 0);
    b->client_uc[me] = uc->qp_num;
    b->client_ud[me] = ud->qp_num;
    tell(&b->client_told[me]);
    await(&b->connected);
    for (uint64_t n = 1; n <= REQUESTS; n++) {
        struct ibv_sge into = {.addr = (uintptr_t)answers, .length = 4096, .lkey = mr->lkey};
        struct ibv_recv_wr rwr = {.wr_id = n, .sg_list = &into, .num_sge = 1}, *bad;
        CHECK(ibv_post_recv(ud, &rwr, &bad) == 0);
        struct slot request = {.key = n * 1000003 + (uint64_t)me, .seq = n};
        struct ibv_send_wr wr = {
            .opcode = IBV_WR_RDMA_WRITE,
            .wr.rdma = { b->slots + (uint64_t)me * sizeof request, b->rkey },
        };
        early = 0;
        post(&e, uc, &wr, &request, sizeof request, n, count_early);
        struct ibv_wc wc;
        for (time_t end = time(NULL) + patience_ms(60) / 1000; !early; sched_yield()) {
            int got = ibv_poll_cq(e.cq, 1, &wc);
            CHECK(got >= 0 && time(NULL) < end);
            early = got == 1;
        }
        uint64_t answer[2];
        memcpy(answer, answers + sizeof(struct ibv_grh), sizeof answer);
        CHECK(answer[0] == n && answer[1] == request.key * 3 + n);
    }
    // When a process ends, the packets in its socket are lost, including datagrams for other
    // processes of the address, and UD never repeats a datagram. So all processes end when no
    // answer is under way.
    tell(&b->answered[me]);
    for (int i = 0; i < CLIENTS; i++)
        await(&b->answered[i]);
}

int main(void) {
    struct board *b =
        mmap(NULL, sizeof *b, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    CHECK(b != MAP_FAILED);
    for (int i = 0; i < CLIENTS; i++) {
        pid_t child = fork();
        CHECK(child >= 0);
        if (child == 0) {
            client(b, i);
            return 0;
        }
    }
    server(b);
    return 0;
}
