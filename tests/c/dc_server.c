/*
 * A server and a client as servers of GPU memory are built on DC: the client has memory and DC
 * targets, asks over TCP, and never posts a request; the server has a pool of DC initiators, which
 * write into and read from the memory of whoever asks, and caches address handles by GID. Each
 * answer is checked, byte by byte. An initiator that failed is drained by a marker and brought up
 * again. Prints "ok".
 *
 *   dc_server ADDRESS PORT                        the server; ADDRESS is its device's
 *   dc_server ADDRESS PORT REQUESTS BYTES         the client
 *
 * Both find the device by binding an identifier of librdmacm to its address.
 */
#include "dc.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <rdma/rdma_cma.h>
#include <sys/socket.h>
#include <unistd.h>

enum { POOL = 3, TARGETS = 2, CACHE = 16, SPLIT = 5 };
/* What a client asks for. */
enum { WRITE = 1, CHECK, END };
/* What the server answers. */
enum { DONE = 1, REFUSED };

struct ask {
    uint32_t what, rkey, dctn, seed;
    uint64_t addr, length, key;
    union ibv_gid gid;
};

static void fill(uint8_t *to, uint64_t n, uint32_t seed)
{
    for (uint64_t i = 0; i < n; i += 8) {
        uint64_t word = (i + seed) * 0x9e3779b97f4a7c15ull;
        memcpy(to + i, &word, n - i < 8 ? n - i : 8);
    }
}

static int is_filled(const uint8_t *at, uint64_t n, uint32_t seed)
{
    for (uint64_t i = 0; i < n; i += 8) {
        uint64_t word = (i + seed) * 0x9e3779b97f4a7c15ull;
        if (memcmp(at + i, &word, n - i < 8 ? n - i : 8) != 0)
            return 0;
    }
    return 1;
}

static struct ibv_context *device_of(struct rdma_event_channel *channel, const char *address,
                                     struct rdma_cm_id **id)
{
    struct sockaddr_in at = {.sin_family = AF_INET};
    CHECK(inet_pton(AF_INET, address, &at.sin_addr) == 1);
    CHECK(rdma_create_id(channel, id, NULL, RDMA_PS_UDP) == 0);
    CHECK(rdma_bind_addr(*id, (struct sockaddr *)&at) == 0 && (*id)->verbs);
    return (*id)->verbs;
}

/* ---- the server ---- */

struct initiator {
    struct ibv_qp *qp;
    struct ibv_qp_ex *ex;
    struct mlx5dv_qp_ex *dv;
    struct base b;
};

static struct {
    union ibv_gid gid;
    struct ibv_ah *ah;
} cache[CACHE];
static int cached, recovered;

static struct ibv_ah *ah_of(struct ibv_pd *pd, const union ibv_gid *gid)
{
    for (int i = 0; i < cached; i++)
        if (memcmp(&cache[i].gid, gid, sizeof(*gid)) == 0)
            return cache[i].ah;
    CHECK(cached < CACHE && (cache[cached].ah = address(pd, *gid)));
    cache[cached].gid = *gid;
    return cache[cached++].ah;
}

/* The flags are set once, and stay. */
static void make_ready(struct initiator *i)
{
    bring_up(i->qp, 0);
    i->ex->wr_flags = IBV_SEND_SIGNALED;
}

/* After an error: a marker behind all that was posted, until it comes back; then up again. */
static void recover(struct initiator *i)
{
    struct ibv_wc wc;
    ibv_wr_start(i->ex);
    i->ex->wr_id = UINT64_MAX;
    ibv_wr_rdma_write(i->ex, 0, 0);
    ibv_wr_set_sge(i->ex, 0, 0, 0);
    mlx5dv_wr_set_dc_addr(i->dv, cache[0].ah, 0, 0);
    CHECK(ibv_wr_complete(i->ex) == 0);
    do {
        wc = next_wc(i->b.cq);
        CHECK(wc.status == IBV_WC_WR_FLUSH_ERR);
    } while (wc.wr_id != UINT64_MAX);
    CHECK(to_state(i->qp, IBV_QPS_RESET) == 0);
    make_ready(i);
    recovered++;
}

/* One batch that moves all bytes in some requests, each of some pieces. */
static enum ibv_wc_status move(struct initiator *i, const struct ask *ask, struct ibv_mr *mr,
                               uint8_t *at)
{
    struct ibv_ah *ah = ah_of(i->b.pd, &ask->gid);
    uint64_t part = ask->length / SPLIT, done = 0;
    ibv_wr_start(i->ex);
    for (int k = 0; k < SPLIT; k++) {
        uint64_t n = k == SPLIT - 1 ? ask->length - done : part;
        i->ex->wr_id = k;
        if (ask->what == WRITE)
            ibv_wr_rdma_write(i->ex, ask->rkey, ask->addr + done);
        else
            ibv_wr_rdma_read(i->ex, ask->rkey, ask->addr + done);
        struct ibv_sge list[2] = {{(uintptr_t)at + done, n / 3, mr->lkey},
                                  {(uintptr_t)at + done + n / 3, n - n / 3, mr->lkey}};
        if (k % 2) {
            ibv_wr_set_sge_list(i->ex, 2, list);
            mlx5dv_wr_set_dc_addr(i->dv, ah, ask->dctn, ask->key);
        } else {
            mlx5dv_wr_set_dc_addr_stream(i->dv, ah, ask->dctn, ask->key, k);
            ibv_wr_set_sge_list(i->ex, 2, list);
        }
        done += n;
    }
    CHECK(ibv_wr_complete(i->ex) == 0);
    for (int k = 0; k < SPLIT; k++) {
        struct ibv_wc wc = next_wc(i->b.cq);
        CHECK(wc.qp_num == i->qp->qp_num && wc.wr_id == (uint64_t)k);
        if (wc.status != IBV_WC_SUCCESS)
            return wc.status;
    }
    return IBV_WC_SUCCESS;
}

static void serve(struct ibv_context *ctx, int port)
{
    struct initiator pool[POOL];
    struct ibv_pd *pd = ibv_alloc_pd(ctx);
    CHECK(pd);
    for (int i = 0; i < POOL; i++) {
        pool[i].b = (struct base){ctx, pd, ibv_create_cq(ctx, DEPTH, NULL, NULL, 0), NULL};
        CHECK(pool[i].b.cq && (pool[i].qp = new_dci(&pool[i].b)));
        CHECK((pool[i].ex = ibv_qp_to_qp_ex(pool[i].qp)));
        CHECK((pool[i].dv = mlx5dv_qp_ex_from_ibv_qp_ex(pool[i].ex)));
        make_ready(&pool[i]);
    }
    struct sockaddr_in at = {
        .sin_family = AF_INET, .sin_port = htons(port), .sin_addr = {htonl(INADDR_LOOPBACK)}};
    int one = 1, listener = socket(AF_INET, SOCK_STREAM, 0);
    CHECK(setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one)) == 0);
    CHECK(bind(listener, (struct sockaddr *)&at, sizeof(at)) == 0 && listen(listener, 1) == 0);
    int fd = accept(listener, NULL, NULL);
    CHECK(fd >= 0 && setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one)) == 0);

    uint8_t *memory = NULL;
    struct ibv_mr *mr = NULL;
    uint64_t most = 0;
    struct ask ask;
    for (int n = 0;; n++) {
        take(fd, &ask, sizeof(ask));
        if (ask.what == END)
            break;
        if (ask.length > most) {
            CHECK(!mr || ibv_dereg_mr(mr) == 0);
            free(memory);
            CHECK((memory = malloc(most = ask.length)));
            CHECK((mr = ibv_reg_mr(pd, memory, most, IBV_ACCESS_LOCAL_WRITE)));
        }
        if (ask.what == WRITE)
            fill(memory, ask.length, ask.seed);
        else
            memset(memory, 0, ask.length);
        struct initiator *i = &pool[n % POOL];
        enum ibv_wc_status status = move(i, &ask, mr, memory);
        uint32_t answer = DONE;
        if (status != IBV_WC_SUCCESS) {
            CHECK(status == IBV_WC_REM_ACCESS_ERR);
            recover(i);
            answer = REFUSED;
        } else if (ask.what == CHECK) {
            CHECK(is_filled(memory, ask.length, ask.seed));
        }
        give(fd, &answer, sizeof(answer));
    }
    for (int i = 0; i < cached; i++)
        CHECK(ibv_destroy_ah(cache[i].ah) == 0);
    for (int i = 0; i < POOL; i++)
        CHECK(ibv_destroy_qp(pool[i].qp) == 0 && ibv_destroy_cq(pool[i].b.cq) == 0);
    CHECK((!mr || ibv_dereg_mr(mr) == 0) && ibv_dealloc_pd(pd) == 0);
    free(memory);
    close(fd);
    close(listener);
    printf("ok, %d address handles, %d initiators brought up again\n", cached, recovered);
}

/* ---- the client ---- */

static uint32_t answer_to(int fd, const struct ask *ask)
{
    uint32_t answer;
    give(fd, ask, sizeof(*ask));
    take(fd, &answer, sizeof(answer));
    return answer;
}

static void be_client(struct ibv_context *ctx, int port, int requests, uint64_t bytes)
{
    struct base b = base_of(ctx);
    struct ibv_qp *dct[TARGETS];
    for (int i = 0; i < TARGETS; i++) {
        CHECK((dct[i] = new_dct(&b, 0xffeeddcc + i)));
        bring_up(dct[i], 1);
    }
    uint8_t *memory = malloc(bytes);
    struct ibv_mr *mr = memory ? ibv_reg_mr(b.pd, memory, bytes,
                                            IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE |
                                                IBV_ACCESS_REMOTE_READ)
                               : NULL;
    CHECK(mr);
    struct ask ask = {.rkey = mr->rkey, .addr = (uintptr_t)memory, .length = bytes};
    CHECK(ibv_query_gid(ctx, 1, GID_INDEX, &ask.gid) == 0);
    struct sockaddr_in at = {
        .sin_family = AF_INET, .sin_port = htons(port), .sin_addr = {htonl(INADDR_LOOPBACK)}};
    int one = 1, fd = socket(AF_INET, SOCK_STREAM, 0);
    CHECK(connect(fd, (struct sockaddr *)&at, sizeof(at)) == 0);
    CHECK(setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one)) == 0);
    int refused = 0;
    for (int n = 0; n < requests; n++) {
        memset(memory, 0, bytes);
        ask.what = WRITE;
        ask.seed = n;
        ask.dctn = dct[n % TARGETS]->qp_num;
        ask.key = 0xffeeddcc + n % TARGETS;
        if (n % 8 == 7) {
            /* Nothing is written by who does not know the key. */
            struct ask wrong = ask;
            wrong.key ^= 1ull << (n % 64);
            CHECK(answer_to(fd, &wrong) == REFUSED && memory[0] == 0 && memory[bytes - 1] == 0);
            refused++;
        }
        CHECK(answer_to(fd, &ask) == DONE && is_filled(memory, bytes, n));
        if (n % 4 == 3) {
            ask.what = CHECK;
            CHECK(answer_to(fd, &ask) == DONE);
        }
    }
    struct ibv_wc wc;
    CHECK(ibv_poll_cq(b.cq, 1, &wc) == 0);
    ask.what = END;
    give(fd, &ask, sizeof(ask));
    for (int i = 0; i < TARGETS; i++)
        CHECK(ibv_destroy_qp(dct[i]) == 0);
    CHECK(ibv_dereg_mr(mr) == 0 && ibv_destroy_srq(b.srq) == 0 && ibv_destroy_cq(b.cq) == 0);
    CHECK(ibv_dealloc_pd(b.pd) == 0);
    close(fd);
    free(memory);
    printf("ok, %d requests of %llu bytes, %d refused\n", requests, (unsigned long long)bytes,
           refused);
}

int main(int argc, char **argv)
{
    CHECK(argc == 3 || argc == 5);
    struct rdma_event_channel *channel = rdma_create_event_channel();
    struct rdma_cm_id *id;
    CHECK(channel);
    struct ibv_context *ctx = device_of(channel, argv[1], &id);
    if (argc == 3)
        serve(ctx, atoi(argv[2]));
    else
        be_client(ctx, atoi(argv[2]), atoi(argv[3]), strtoull(argv[4], NULL, 10));
    CHECK(rdma_destroy_id(id) == 0);
    rdma_destroy_event_channel(channel);
    return 0;
}
