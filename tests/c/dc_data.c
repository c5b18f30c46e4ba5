/*
 * DC within one device, by mlx5dv: each operation, two targets in one batch, numbers in
 * completions, errors, and an initiator that is brought up again after an error as servers of GPU
 * memory do it. Prints "ok".
 */
#include "dc.h"

enum { BYTES = 1 << 16, KEY_A = 0x1111, SECOND = BYTES / 2 };
#define KEY_B 0x2222333344445555ull

static struct base b;
static struct ibv_cq *recv_cq;
static struct ibv_mr *from, *to;
static uint8_t source[BYTES], sink[BYTES] __attribute__((aligned(8)));
static struct ibv_qp *dci, *dct_a, *dct_b;
static struct ibv_qp_ex *ex;
static struct mlx5dv_qp_ex *dv;
static struct ibv_ah *ah;

static void set_a(void)
{
    mlx5dv_wr_set_dc_addr(dv, ah, dct_a->qp_num, KEY_A);
}

static void piece(uint32_t at, uint32_t length)
{
    ibv_wr_set_sge(ex, from->lkey, (uintptr_t)source + at, length);
}

static void receive(uint64_t id, uint32_t at, uint32_t length)
{
    struct ibv_sge sge = {(uintptr_t)sink + at, length, to->lkey};
    struct ibv_recv_wr wr = {.wr_id = id, .sg_list = &sge, .num_sge = 1}, *bad;
    CHECK(ibv_post_srq_recv(b.srq, &wr, &bad) == 0);
}

static void sent(uint64_t id, enum ibv_wc_opcode opcode)
{
    struct ibv_wc wc = next_wc(b.cq);
    if (wc.status != IBV_WC_SUCCESS || wc.wr_id != id)
        fprintf(stderr, "request %llu: %s, of %llu\n", (unsigned long long)id,
                ibv_wc_status_str(wc.status), (unsigned long long)wc.wr_id);
    CHECK(wc.status == IBV_WC_SUCCESS && wc.wr_id == id && wc.opcode == opcode);
    CHECK(wc.qp_num == dci->qp_num);
}

static struct ibv_wc received(struct ibv_qp *dct, enum ibv_wc_opcode opcode, uint32_t length)
{
    struct ibv_wc wc = next_wc(recv_cq);
    CHECK(wc.status == IBV_WC_SUCCESS && wc.opcode == opcode && wc.byte_len == length);
    /* The program finds the target by its number, and the initiator by its own. */
    CHECK(wc.qp_num == dct->qp_num && wc.src_qp == dci->qp_num && !(wc.wc_flags & IBV_WC_GRH));
    return wc;
}

static void fill(uint8_t seed)
{
    for (int i = 0; i < BYTES; i++)
        source[i] = seed + i * 7 + (i >> 8);
    memset(sink, 0, BYTES);
}

static void of_operations(void)
{
    /* SEND, the target set before and after the pieces; nothing in front of the data. */
    fill(1);
    receive(1, 0, 5000);
    receive(2, SECOND, 5000);
    ex->wr_flags = IBV_SEND_SIGNALED;
    ibv_wr_start(ex);
    ex->wr_id = 10;
    ibv_wr_send(ex);
    set_a();
    piece(0, 5000);
    ex->wr_id = 11;
    ibv_wr_send_imm(ex, 0x01020304);
    piece(SECOND, 4000);
    mlx5dv_wr_set_dc_addr_stream(dv, ah, dct_b->qp_num, KEY_B, 0xffff);
    CHECK(ibv_wr_complete(ex) == 0);
    sent(10, IBV_WC_SEND);
    sent(11, IBV_WC_SEND);
    CHECK(received(dct_a, IBV_WC_RECV, 5000).wr_id == 1);
    struct ibv_wc wc = received(dct_b, IBV_WC_RECV, 4000);
    CHECK(wc.wr_id == 2 && wc.wc_flags & IBV_WC_WITH_IMM && wc.imm_data == 0x01020304);
    CHECK(memcmp(sink, source, 5000) == 0 && memcmp(sink + SECOND, source + SECOND, 4000) == 0);

    /* WRITEs in one batch to both targets in turn; the flags stay as the program left them. */
    fill(2);
    receive(3, 0, 0);
    ibv_wr_start(ex);
    for (int i = 0; i < 16; i++) {
        ex->wr_id = 20 + i;
        if (i == 15)
            ibv_wr_rdma_write_imm(ex, to->rkey, (uintptr_t)sink + i * 4096, 7);
        else
            ibv_wr_rdma_write(ex, to->rkey, (uintptr_t)sink + i * 4096);
        struct ibv_sge list[2] = {{(uintptr_t)source + i * 4096, 96, from->lkey},
                                  {(uintptr_t)source + i * 4096 + 96, 4000, from->lkey}};
        if (i % 2)
            mlx5dv_wr_set_dc_addr(dv, ah, dct_b->qp_num, KEY_B);
        else
            set_a();
        ibv_wr_set_sge_list(ex, 2, list);
    }
    CHECK(ibv_wr_complete(ex) == 0 && ex->wr_flags == IBV_SEND_SIGNALED);
    for (int i = 0; i < 16; i++)
        sent(20 + i, IBV_WC_RDMA_WRITE);
    CHECK(received(dct_b, IBV_WC_RECV_RDMA_WITH_IMM, 4096).imm_data == 7);
    CHECK(memcmp(sink, source, BYTES) == 0);

    /* Inline data, READ, atomics. */
    uint64_t word = 5;
    memcpy(sink, &word, 8);
    memset(source, 0, 64);
    ibv_wr_start(ex);
    ex->wr_id = 40;
    ibv_wr_atomic_fetch_add(ex, to->rkey, (uintptr_t)sink, 3);
    set_a();
    piece(0, 8);
    ex->wr_id = 41;
    ibv_wr_atomic_cmp_swp(ex, to->rkey, (uintptr_t)sink, 8, 9);
    set_a();
    piece(8, 8);
    ex->wr_id = 42;
    ex->wr_flags = IBV_SEND_SIGNALED | IBV_SEND_FENCE;
    ibv_wr_rdma_read(ex, to->rkey, (uintptr_t)sink);
    set_a();
    piece(16, 8);
    ex->wr_id = 43;
    ibv_wr_rdma_write(ex, to->rkey, (uintptr_t)sink + 64);
    set_a();
    ibv_wr_set_inline_data(ex, "inline data", 11);
    CHECK(ibv_wr_complete(ex) == 0);
    sent(40, IBV_WC_FETCH_ADD);
    sent(41, IBV_WC_COMP_SWAP);
    sent(42, IBV_WC_RDMA_READ);
    sent(43, IBV_WC_RDMA_WRITE);
    uint64_t seen[3];
    memcpy(seen, source, sizeof(seen));
    CHECK(seen[0] == 5 && seen[1] == 8 && seen[2] == 9);
    CHECK(memcmp(sink + 64, "inline data", 11) == 0);
    ex->wr_flags = IBV_SEND_SIGNALED;
}

/* One WRITE of `length` bytes to target a with a key. */
static void write_to(uint64_t id, uint64_t key, uint32_t dctn, uint32_t lkey, uint32_t length)
{
    ibv_wr_start(ex);
    ex->wr_id = id;
    ibv_wr_rdma_write(ex, to->rkey, (uintptr_t)sink);
    ibv_wr_set_sge(ex, lkey, (uintptr_t)source, length);
    mlx5dv_wr_set_dc_addr(dv, ah, dctn, key);
    CHECK(ibv_wr_complete(ex) == 0);
}

static void of_errors(void)
{
    fill(3);
    /* A wrong key ends the initiator, and what is behind it is flushed. */
    write_to(50, KEY_A + 1, dct_a->qp_num, from->lkey, 100);
    write_to(51, KEY_A, dct_a->qp_num, from->lkey, 100);
    struct ibv_wc wc = next_wc(b.cq);
    CHECK(wc.wr_id == 50 && wc.status == IBV_WC_REM_ACCESS_ERR && wc.qp_num == dci->qp_num);
    wc = next_wc(b.cq);
    CHECK(wc.wr_id == 51 && wc.status == IBV_WC_WR_FLUSH_ERR);
    CHECK(sink[0] == 0);
    struct ibv_qp_attr attr;
    struct ibv_qp_init_attr init;
    CHECK(ibv_query_qp(dci, &attr, IBV_QP_STATE, &init) == 0 && attr.qp_state == IBV_QPS_ERR);

    /* A marker in ERR comes back flushed, whatever it names. */
    write_to(52, KEY_A, 0, 0, 0);
    wc = next_wc(b.cq);
    CHECK(wc.wr_id == 52 && wc.status == IBV_WC_WR_FLUSH_ERR);

    /* RESET takes the completions away that nobody has polled. */
    for (int i = 0; i < 8; i++)
        write_to(60 + i, 0, 0, 0, 0);
    CHECK(to_state(dci, IBV_QPS_RESET) == 0);
    CHECK(ibv_poll_cq(b.cq, 1, &wc) == 0);
    bring_up(dci, 0);
    write_to(70, KEY_A, dct_a->qp_num, from->lkey, BYTES);
    sent(70, IBV_WC_RDMA_WRITE);
    CHECK(memcmp(sink, source, BYTES) == 0);

    /* RESET without ERR, while an association is open. */
    CHECK(to_state(dci, IBV_QPS_RESET) == 0);
    bring_up(dci, 0);
    fill(4);
    write_to(71, KEY_B, dct_b->qp_num, from->lkey, BYTES);
    sent(71, IBV_WC_RDMA_WRITE);
    CHECK(memcmp(sink, source, BYTES) == 0);
}

/* A second initiator goes on when the first fails. */
static void of_others(void)
{
    struct ibv_qp *second = new_dci(&b), *first = dci;
    CHECK(second);
    bring_up(second, 0);
    write_to(80, KEY_A + 1, dct_a->qp_num, from->lkey, 1);
    struct ibv_wc wc = next_wc(b.cq);
    CHECK(wc.wr_id == 80 && wc.status == IBV_WC_REM_ACCESS_ERR);
    dci = second;
    ex = ibv_qp_to_qp_ex(second);
    dv = mlx5dv_qp_ex_from_ibv_qp_ex(ex);
    ex->wr_flags = IBV_SEND_SIGNALED;
    fill(5);
    write_to(81, KEY_A, dct_a->qp_num, from->lkey, BYTES);
    sent(81, IBV_WC_RDMA_WRITE);
    CHECK(memcmp(sink, source, BYTES) == 0);
    CHECK(ibv_destroy_qp(first) == 0);
}

int main(void)
{
    struct ibv_context *ctx = open_device();
    b = base_of(ctx);
    CHECK((recv_cq = ibv_create_cq(ctx, DEPTH, NULL, NULL, 0)));
    from = ibv_reg_mr(b.pd, source, BYTES, IBV_ACCESS_LOCAL_WRITE);
    to = ibv_reg_mr(b.pd, sink, BYTES,
                    IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ |
                        IBV_ACCESS_REMOTE_ATOMIC);
    struct base targets = b;
    targets.cq = recv_cq;
    union ibv_gid gid;
    CHECK(from && to && ibv_query_gid(ctx, 1, GID_INDEX, &gid) == 0 && (ah = address(b.pd, gid)));
    CHECK((dct_a = new_dct(&targets, KEY_A)) && (dct_b = new_dct(&targets, KEY_B)));
    CHECK((dci = new_dci(&b)));
    bring_up(dct_a, 1);
    bring_up(dct_b, 1);
    bring_up(dci, 0);
    CHECK((ex = ibv_qp_to_qp_ex(dci)) && (dv = mlx5dv_qp_ex_from_ibv_qp_ex(ex)));
    of_operations();
    of_errors();
    of_others();
    CHECK(ibv_destroy_qp(dci) == 0 && ibv_destroy_qp(dct_a) == 0 && ibv_destroy_qp(dct_b) == 0);
    CHECK(ibv_destroy_ah(ah) == 0 && ibv_dereg_mr(from) == 0 && ibv_dereg_mr(to) == 0);
    CHECK(ibv_destroy_srq(b.srq) == 0 && ibv_destroy_cq(b.cq) == 0 && ibv_destroy_cq(recv_cq) == 0);
    CHECK(ibv_dealloc_pd(b.pd) == 0 && ibv_close_device(ctx) == 0);
    puts("ok");
    return 0;
}
