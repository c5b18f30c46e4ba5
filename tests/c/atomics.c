// The result of an atomic fills the first 8 bytes of the request's list, however long that is; a
// shorter list is refused. Prints "ok".
#include "rc_pair.h"

static uint64_t memory[128];
static uint8_t results[4096];

int main(void) {
    struct ibv_context *ctx = open_device();
    struct ibv_pd *pd = ibv_alloc_pd(ctx);
    struct ibv_cq *cq = ibv_create_cq(ctx, 16, NULL, NULL, 0);
    struct ibv_qp_init_attr init = {
        .send_cq = cq,
        .recv_cq = cq,
        .qp_type = IBV_QPT_RC,
        .cap = {.max_send_wr = 4, .max_recv_wr = 4, .max_send_sge = 3, .max_recv_sge = 1},
    };
    CHECK(pd && cq);
    struct ibv_qp *a = ibv_create_qp(pd, &init), *b = ibv_create_qp(pd, &init);
    struct ibv_mr *far = ibv_reg_mr(pd, memory, sizeof memory, REMOTE);
    struct ibv_mr *near = ibv_reg_mr(pd, results, sizeof results, IBV_ACCESS_LOCAL_WRITE);
    CHECK(a && b && far && near);
    connect_both(a, b);
    const struct {
        int pieces;
        uint32_t length[3];
    } lists[] = {{1, {8}}, {1, {100}}, {1, {4096}}, {2, {3, 90}}, {3, {7, 0, 1}}, {2, {8, 8}}};
    for (unsigned i = 0; i < 2 * sizeof lists / sizeof *lists; i++) {
        int n = lists[i / 2].pieces;
        struct ibv_sge sges[3];
        uint64_t at = (uintptr_t)results;
        for (int k = 0; k < n; k++) {
            sges[k] = (struct ibv_sge){at, lists[i / 2].length[k], near->lkey};
            at += sges[k].length;
        }
        memory[5] = 0x1122334455667788 + i;
        memset(results, 0xee, sizeof results);
        struct ibv_send_wr wr = {
            .sg_list = sges,
            .num_sge = n,
            .opcode = i % 2 ? IBV_WR_ATOMIC_FETCH_AND_ADD : IBV_WR_ATOMIC_CMP_AND_SWP,
            .wr.atomic = {.remote_addr = (uintptr_t)&memory[5], .rkey = far->rkey}};
        struct ibv_wc wc = done(a, wr);
        CHECK(wc.status == IBV_WC_SUCCESS && wc.byte_len == 8);
        CHECK(memcmp(results, &memory[5], 8) == 0);
        for (unsigned k = 8; k < sizeof results; k++)
            CHECK(results[k] == 0xee);
        struct ibv_send_wr *bad;
        sges[0].length = 7;
        wr.num_sge = 1;
        CHECK(ibv_post_send(a, &wr, &bad) == EINVAL && bad == &wr);
    }
    puts("ok");
    return 0;
}
