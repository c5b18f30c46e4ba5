/*
 * Many DC initiators and many DC targets: in each round every initiator writes a cell of every
 * target, changing the target with each request, and every byte is checked. Prints "ok".
 *
 *   dc_crowd PORT                                the targets, in a process of their own
 *   dc_crowd PORT INITIATORS TARGETS ROUNDS      the initiators
 *   dc_crowd 0 INITIATORS TARGETS ROUNDS         both in one process, on one device
 */
#include "dc.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

enum { CELL = 3000, MOST = 320 };

struct order {
    uint32_t initiators, targets;
};

/* What an initiator has to know of a target. */
struct target {
    uint32_t dctn, rkey;
    uint64_t addr, key;
    union ibv_gid gid;
};

static struct base b;
static union ibv_gid own_gid;

static void open_first(void)
{
    b = base_of(open_device());
    CHECK(ibv_query_gid(b.ctx, 1, GID_INDEX, &own_gid) == 0);
}

static uint8_t byte_of(uint32_t initiator, uint32_t target, uint32_t round, uint32_t at)
{
    return initiator * 31 + target * 17 + round * 7 + at;
}

/* ---- targets ---- */

static uint8_t *memory;
static struct ibv_qp *dct[MOST];
static struct ibv_mr *mr;

static void make_targets(struct order o, struct target *out)
{
    size_t bytes = (size_t)o.targets * o.initiators * CELL;
    CHECK((memory = calloc(1, bytes)));
    CHECK((mr = ibv_reg_mr(b.pd, memory, bytes, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE)));
    for (uint32_t t = 0; t < o.targets; t++) {
        uint64_t key = 0x100000000ull * (t + 1) + t;
        CHECK((dct[t] = new_dct(&b, key)));
        bring_up(dct[t], 1);
        out[t] = (struct target){dct[t]->qp_num, mr->rkey,
                                 (uintptr_t)memory + (size_t)t * o.initiators * CELL, key, own_gid};
    }
}

static void check_targets(struct order o, uint32_t round)
{
    const uint8_t *at = memory;
    for (uint32_t t = 0; t < o.targets; t++)
        for (uint32_t i = 0; i < o.initiators; i++, at += CELL)
            for (uint32_t k = 0; k < CELL; k++)
                CHECK(at[k] == byte_of(i, t, round, k));
}

static void end_targets(struct order o)
{
    for (uint32_t t = 0; t < o.targets; t++)
        CHECK(ibv_destroy_qp(dct[t]) == 0);
    CHECK(ibv_dereg_mr(mr) == 0);
    free(memory);
}

/* ---- initiators ---- */

static struct ibv_qp *dci[MOST];
static struct ibv_cq *cq[MOST];

static void run_round(struct order o, const struct target *to, struct ibv_ah *ah, uint32_t round,
                      uint8_t *source, struct ibv_mr *from)
{
    for (uint32_t i = 0; i < o.initiators; i++) {
        struct ibv_qp_ex *ex = ibv_qp_to_qp_ex(dci[i]);
        struct mlx5dv_qp_ex *dv = mlx5dv_qp_ex_from_ibv_qp_ex(ex);
        ex->wr_flags = IBV_SEND_SIGNALED;
        ibv_wr_start(ex);
        for (uint32_t k = 0; k < o.targets; k++) {
            /* Each begins with another target. */
            uint32_t t = (k + i + round) % o.targets;
            uint8_t *cell = source + ((size_t)i * o.targets + t) * CELL;
            for (uint32_t n = 0; n < CELL; n++)
                cell[n] = byte_of(i, t, round, n);
            ex->wr_id = k;
            ibv_wr_rdma_write(ex, to[t].rkey, to[t].addr + (size_t)i * CELL);
            mlx5dv_wr_set_dc_addr(dv, ah, to[t].dctn, to[t].key);
            ibv_wr_set_sge(ex, from->lkey, (uintptr_t)cell, CELL);
        }
        CHECK(ibv_wr_complete(ex) == 0);
    }
    /* Each completes in the order of its requests, across targets. */
    for (uint32_t i = 0; i < o.initiators; i++)
        for (uint32_t k = 0; k < o.targets; k++) {
            struct ibv_wc wc = next_wc(cq[i]);
            if (wc.status != IBV_WC_SUCCESS)
                fprintf(stderr, "initiator %u, request %u: %s\n", i, k,
                        ibv_wc_status_str(wc.status));
            CHECK(wc.status == IBV_WC_SUCCESS && wc.wr_id == k && wc.qp_num == dci[i]->qp_num);
        }
}

static int tcp(int port, int serve)
{
    struct sockaddr_in at = {
        .sin_family = AF_INET, .sin_port = htons(port), .sin_addr = {htonl(INADDR_LOOPBACK)}};
    int one = 1, fd = socket(AF_INET, SOCK_STREAM, 0);
    if (!serve) {
        CHECK(connect(fd, (struct sockaddr *)&at, sizeof(at)) == 0);
        return fd;
    }
    CHECK(setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one)) == 0);
    CHECK(bind(fd, (struct sockaddr *)&at, sizeof(at)) == 0 && listen(fd, 1) == 0);
    int peer = accept(fd, NULL, NULL);
    CHECK(peer >= 0);
    close(fd);
    return peer;
}

/* The targets' process: a round number asks for a check, and is the answer. */
static void serve(int fd)
{
    struct order o;
    struct target list[MOST];
    uint32_t round;
    take(fd, &o, sizeof(o));
    CHECK(o.initiators <= MOST && o.targets <= MOST);
    make_targets(o, list);
    give(fd, list, sizeof(list));
    for (take(fd, &round, sizeof(round)); round != UINT32_MAX; take(fd, &round, sizeof(round))) {
        check_targets(o, round);
        give(fd, &round, sizeof(round));
    }
    end_targets(o);
}

static void initiate(int fd, struct order o, uint32_t rounds)
{
    struct target list[MOST];
    CHECK(o.initiators <= MOST && o.targets <= MOST);
    if (fd >= 0) {
        give(fd, &o, sizeof(o));
        take(fd, list, sizeof(list));
    } else {
        make_targets(o, list);
    }
    size_t bytes = (size_t)o.initiators * o.targets * CELL;
    uint8_t *source = malloc(bytes);
    struct ibv_mr *from = source ? ibv_reg_mr(b.pd, source, bytes, 0) : NULL;
    struct ibv_ah *ah = address(b.pd, list[0].gid);
    CHECK(from && ah);
    for (uint32_t i = 0; i < o.initiators; i++) {
        struct base with = b;
        CHECK((with.cq = cq[i] = ibv_create_cq(b.ctx, MOST, NULL, NULL, 0)));
        CHECK((dci[i] = new_dci(&with)));
        bring_up(dci[i], 0);
    }
    for (uint32_t round = 0; round < rounds; round++) {
        run_round(o, list, ah, round, source, from);
        uint32_t answer = round;
        if (fd >= 0) {
            give(fd, &round, sizeof(round));
            take(fd, &answer, sizeof(answer));
        } else {
            check_targets(o, round);
        }
        CHECK(answer == round);
    }
    uint32_t end = UINT32_MAX;
    if (fd >= 0)
        give(fd, &end, sizeof(end));
    for (uint32_t i = 0; i < o.initiators; i++)
        CHECK(ibv_destroy_qp(dci[i]) == 0 && ibv_destroy_cq(cq[i]) == 0);
    CHECK(ibv_destroy_ah(ah) == 0 && ibv_dereg_mr(from) == 0);
    free(source);
    if (fd < 0)
        end_targets(o);
}

int main(int argc, char **argv)
{
    CHECK(argc == 2 || argc == 5);
    int port = atoi(argv[1]);
    open_first();
    int fd = port ? tcp(port, argc == 2) : -1;
    if (argc == 2)
        serve(fd);
    else
        initiate(fd, (struct order){atoi(argv[2]), atoi(argv[3])}, atoi(argv[4]));
    CHECK(ibv_destroy_srq(b.srq) == 0 && ibv_destroy_cq(b.cq) == 0 && ibv_dealloc_pd(b.pd) == 0);
    CHECK(ibv_close_device(b.ctx) == 0);
    puts("ok");
    return 0;
}
