/*
 * The calls of mlx5dv on the drop-in: what a device says of itself, what is created, what is
 * refused, and when a target has a number. No data. Prints "ok". An argument "own" means that the
 * device has its own identity.
 */
#include "dc.h"

#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define REFUSED(x, why) CHECK((errno = 0, (x) == NULL) && errno == (why))

static struct base b;

static void of_the_device(struct ibv_device *device, int own)
{
    CHECK(mlx5dv_is_supported(device) == !own);
    struct mlx5dv_context_attr devx = {.flags = MLX5DV_CONTEXT_FLAGS_DEVX}, none = {.flags = 0};
    REFUSED(mlx5dv_open_device(device, &devx), EOPNOTSUPP);
    struct ibv_context *ctx = mlx5dv_open_device(device, &none);
    CHECK(ctx);
    struct ibv_device_attr caps;
    CHECK(ibv_query_device(ctx, &caps) == 0);
    CHECK(caps.vendor_id == (own ? 0x24744 : 0x2c9) && caps.vendor_part_id == (own ? 1 : 4119));

    /* Only what was asked for and is known is answered; the rest of the struct is left. */
    struct mlx5dv_context dv;
    memset(&dv, 0x5a, sizeof(dv));
    dv.comp_mask = MLX5DV_CONTEXT_MASK_DC_ODP_CAPS | MLX5DV_CONTEXT_MASK_DCI_STREAMS |
                   MLX5DV_CONTEXT_MASK_HCA_CORE_CLOCK | MLX5DV_CONTEXT_MASK_CRYPTO_OFFLOAD;
    CHECK(mlx5dv_query_device(ctx, &dv) == 0 && dv.version == 0 && dv.flags == 0);
    CHECK(dv.comp_mask == (MLX5DV_CONTEXT_MASK_DC_ODP_CAPS | MLX5DV_CONTEXT_MASK_DCI_STREAMS));
    CHECK(dv.dc_odp_caps & IBV_ODP_SUPPORT_WRITE && dv.dci_streams_caps.max_log_num_concurent == 0);
    CHECK(dv.num_lag_ports == 0x5a && dv.crypto_caps.flags == 0x5a5a5a5a);

    struct mlx5dv_clock_info clock;
    uint32_t in[4] = {0}, out[4];
    CHECK(mlx5dv_get_clock_info(ctx, &clock) == EOPNOTSUPP);
    errno = 0;
    CHECK(mlx5dv_devx_general_cmd(ctx, in, sizeof(in), out, sizeof(out)) == EOPNOTSUPP);
    CHECK(errno == EOPNOTSUPP);
    struct mlx5dv_mkey_init_attr mkey = {.max_entries = 1};
    REFUSED(mlx5dv_create_mkey(&mkey), EOPNOTSUPP);
    b = base_of(ctx);
    uint32_t number = 0;
    /* perftest asks, and ends if it fails. */
    CHECK(ibv_get_srq_num(b.srq, &number) == 0);
}

static uint64_t clock_of(struct ibv_context *ctx)
{
    struct ibv_values_ex values = {.comp_mask = IBV_VALUES_MASK_RAW_CLOCK};
    CHECK(ibv_query_rt_values_ex(ctx, &values) == 0);
    CHECK(values.comp_mask == IBV_VALUES_MASK_RAW_CLOCK);
    return values.raw_clock.tv_sec * 1000000000ull + values.raw_clock.tv_nsec;
}

static void of_queues(void)
{
    struct ibv_cq_init_attr_ex init = {
        .cqe = 8, .wc_flags = IBV_WC_EX_WITH_BYTE_LEN | IBV_WC_EX_WITH_COMPLETION_TIMESTAMP};
    struct mlx5dv_cq_init_attr more = {
        .comp_mask = MLX5DV_CQ_INIT_ATTR_MASK_CQE_SIZE, .cqe_size = 128};
    struct ibv_cq_ex *cq = mlx5dv_create_cq(b.ctx, &init, &more);
    CHECK(cq && ibv_destroy_cq(ibv_cq_ex_to_cq(cq)) == 0);
    more.cqe_size = 100;
    REFUSED(mlx5dv_create_cq(b.ctx, &init, &more), EINVAL);
    more.comp_mask = MLX5DV_CQ_INIT_ATTR_MASK_COMPRESSED_CQE;
    REFUSED(mlx5dv_create_cq(b.ctx, &init, &more), EOPNOTSUPP);
    more.comp_mask = 1 << 20;
    REFUSED(mlx5dv_create_cq(b.ctx, &init, &more), EINVAL);

    /* The clock of timestamps goes on. */
    CHECK((cq = ibv_create_cq_ex(b.ctx, &init)));
    uint64_t at = clock_of(b.ctx), later;
    while ((later = clock_of(b.ctx)) == at)
        ;
    CHECK(at > 0 && later > at);
    struct ibv_poll_cq_attr poll = {0};
    CHECK(ibv_start_poll(cq, &poll) == ENOENT);
    CHECK(ibv_destroy_cq(ibv_cq_ex_to_cq(cq)) == 0);
}

static void of_refusals(void)
{
    struct ibv_qp_init_attr plain = {
        .qp_type = IBV_QPT_DRIVER,
        .send_cq = b.cq,
        .recv_cq = b.cq,
        .cap = {.max_send_wr = 1, .max_recv_wr = 1, .max_send_sge = 1, .max_recv_sge = 1},
    };
    REFUSED(ibv_create_qp(b.pd, &plain), EOPNOTSUPP);
    struct ibv_qp_init_attr_ex init = {
        .qp_type = IBV_QPT_DRIVER,
        .comp_mask = IBV_QP_INIT_ATTR_PD,
        .pd = b.pd,
        .send_cq = b.cq,
        .recv_cq = b.cq,
        .srq = b.srq,
        .cap = {.max_send_wr = 1, .max_send_sge = 1},
    };
    struct mlx5dv_qp_init_attr dct = {
        .comp_mask = MLX5DV_QP_INIT_ATTR_MASK_DC,
        .dc_init_attr = {.dc_type = MLX5DV_DCTYPE_DCT, .dct_access_key = 1},
    };
    REFUSED(ibv_create_qp_ex(b.ctx, &init), EOPNOTSUPP);
    REFUSED(mlx5dv_create_qp(b.ctx, &init, NULL), EINVAL);
    struct mlx5dv_qp_init_attr dci = {
        .comp_mask = MLX5DV_QP_INIT_ATTR_MASK_DC,
        .dc_init_attr = {.dc_type = MLX5DV_DCTYPE_DCI},
    };
#define BOTH_WITH(attr, change, back, why)               \
    do {                                                 \
        change;                                          \
        REFUSED(mlx5dv_create_qp(b.ctx, &init, attr), why); \
        back;                                            \
    } while (0)
    /* A target has a domain and an SRQ, and sends nothing. */
    BOTH_WITH(&dct, init.srq = NULL, init.srq = b.srq, EINVAL);
    BOTH_WITH(&dct, init.comp_mask = 0, init.comp_mask = IBV_QP_INIT_ATTR_PD, EINVAL);
    BOTH_WITH(&dct, init.comp_mask |= IBV_QP_INIT_ATTR_SEND_OPS_FLAGS,
              init.comp_mask = IBV_QP_INIT_ATTR_PD, EINVAL);
    BOTH_WITH(&dct, init.recv_cq = NULL, init.recv_cq = b.cq, EINVAL);
    BOTH_WITH(&dct, init.qp_type = IBV_QPT_RC, init.qp_type = IBV_QPT_DRIVER, EINVAL);
    BOTH_WITH(&dci, init.send_cq = NULL, init.send_cq = b.cq, EINVAL);
    BOTH_WITH(&dci, dci.dc_init_attr.dc_type = 3, dci.dc_init_attr.dc_type = MLX5DV_DCTYPE_DCI,
              EINVAL);
    BOTH_WITH(&dci, dci.comp_mask |= 1 << 20, dci.comp_mask = MLX5DV_QP_INIT_ATTR_MASK_DC, EINVAL);
    dci.comp_mask |= MLX5DV_QP_INIT_ATTR_MASK_QP_CREATE_FLAGS;
    BOTH_WITH(&dci,
              dci.create_flags = MLX5DV_QP_CREATE_DISABLE_SCATTER_TO_CQE |
                                 MLX5DV_QP_CREATE_ALLOW_SCATTER_TO_CQE,
              dci.create_flags = 0, EINVAL);
    BOTH_WITH(&dci, dci.create_flags = MLX5DV_QP_CREATE_SIG_PIPELINING, dci.create_flags = 0,
              EOPNOTSUPP);
    dci.comp_mask |= MLX5DV_QP_INIT_ATTR_MASK_SEND_OPS_FLAGS;
    BOTH_WITH(&dci, dci.send_ops_flags = MLX5DV_QP_EX_WITH_MEMCPY, dci.send_ops_flags = 0,
              EOPNOTSUPP);
    dci.comp_mask |= MLX5DV_QP_INIT_ATTR_MASK_DCI_STREAMS;
    BOTH_WITH(&dci, dci.dc_init_attr.dci_streams.log_num_concurent = 1,
              dci.dc_init_attr.dci_streams.log_num_concurent = 0, EINVAL);
    struct ibv_qp *qp = mlx5dv_create_qp(b.ctx, &init, &dci);
    CHECK(qp && ibv_destroy_qp(qp) == 0);

    /* Other types pass, with and without attributes of mlx5dv. */
    init.qp_type = IBV_QPT_RC;
    init.srq = NULL;
    init.cap.max_recv_wr = init.cap.max_recv_sge = 1;
    dci.comp_mask = 0;
    CHECK((qp = mlx5dv_create_qp(b.ctx, &init, NULL)) && ibv_destroy_qp(qp) == 0);
    CHECK((qp = mlx5dv_create_qp(b.ctx, &init, &dci)) && ibv_destroy_qp(qp) == 0);
}

static void of_targets(void)
{
    struct ibv_qp *dct = new_dct(&b, 7);
    CHECK(dct && dct->qp_type == IBV_QPT_DRIVER && dct->qp_num == 0);
    CHECK(ibv_qp_to_qp_ex(dct) == NULL);
    CHECK(mlx5dv_qp_ex_from_ibv_qp_ex(ibv_qp_to_qp_ex(dct)) == NULL);
    /* Its access flags are required, and its number comes with RTR. */
    CHECK(to_init(dct, 0) == EINVAL && to_init(dct, 1) == 0 && dct->qp_num == 0);
    CHECK(to_rtr(dct, 0) == EINVAL && to_rtr(dct, 1) == 0);
    uint32_t number = dct->qp_num;
    CHECK(number != 0 && to_rts(dct) == EINVAL && dct->state == IBV_QPS_RTR);
    struct ibv_qp_attr attr;
    struct ibv_qp_init_attr init;
    CHECK(ibv_query_qp(dct, &attr, IBV_QP_STATE, &init) == 0);
    CHECK(attr.qp_state == IBV_QPS_RTR && init.qp_type == IBV_QPT_DRIVER && init.srq == b.srq);
    CHECK(attr.path_mtu == IBV_MTU_1024 && attr.min_rnr_timer == 1);
    CHECK(to_state(dct, IBV_QPS_RESET) == 0 && dct->qp_num == 0);
    bring_up(dct, 1);
    CHECK(dct->qp_num == number);
    CHECK(to_state(dct, IBV_QPS_ERR) == 0 && ibv_destroy_qp(dct) == 0);
}

static void of_initiators(void)
{
    struct ibv_qp *dci = new_dci(&b);
    CHECK(dci && dci->qp_num != 0 && dci->srq == NULL);
    CHECK(to_init(dci, 0) == 0);
    /* pyverbs names the path MTU alone. */
    struct ibv_qp_attr attr = {.qp_state = IBV_QPS_RTR, .path_mtu = IBV_MTU_1024};
    CHECK(ibv_modify_qp(dci, &attr, IBV_QP_STATE | IBV_QP_PATH_MTU) == 0 && to_rts(dci) == 0);
    struct ibv_qp_init_attr init;
    CHECK(ibv_query_qp(dci, &attr, IBV_QP_STATE, &init) == 0);
    CHECK(attr.qp_state == IBV_QPS_RTS && init.qp_type == IBV_QPT_DRIVER && !init.srq);
    CHECK(attr.timeout == TIMEOUT && attr.retry_cnt == 7 && init.cap.max_inline_data >= INLINE);

    struct ibv_qp_ex *ex = ibv_qp_to_qp_ex(dci);
    struct mlx5dv_qp_ex *dv = mlx5dv_qp_ex_from_ibv_qp_ex(ex);
    CHECK(ex && dv);
    union ibv_gid gid;
    CHECK(ibv_query_gid(b.ctx, 1, GID_INDEX, &gid) == 0);
    struct ibv_ah *ah = address(b.pd, gid);
    CHECK(ah);
    struct ibv_send_wr wr = {.opcode = IBV_WR_SEND}, *bad = NULL;
    CHECK(ibv_post_send(dci, &wr, &bad) == EOPNOTSUPP && bad == &wr);
#define COMPLETES(rc, calls)               \
    do {                                   \
        ibv_wr_start(ex);                  \
        calls;                             \
        CHECK(ibv_wr_complete(ex) == (rc)); \
    } while (0)
    COMPLETES(0, );
    COMPLETES(EINVAL, ibv_wr_send(ex));
    COMPLETES(EINVAL, mlx5dv_wr_set_dc_addr(dv, ah, 1, 1));
    COMPLETES(EINVAL, ibv_wr_send(ex); mlx5dv_wr_set_dc_addr(dv, NULL, 1, 1));
    COMPLETES(EINVAL, ibv_wr_send(ex); mlx5dv_wr_set_dc_addr(dv, ah, 1, 1); ibv_wr_send(ex));
    COMPLETES(EOPNOTSUPP, mlx5dv_wr_memcpy(dv, 1, 1, 1, 1, 1));
    COMPLETES(EOPNOTSUPP, mlx5dv_wr_raw_wqe(dv, NULL));
    COMPLETES(EOPNOTSUPP, mlx5dv_wr_mkey_configure(dv, NULL, 0, NULL));
    COMPLETES(EOPNOTSUPP, mlx5dv_wr_set_mkey_access_flags(dv, 0));
    COMPLETES(EOPNOTSUPP, mlx5dv_wr_mr_list(dv, NULL, 0, 0, NULL));
    COMPLETES(EOPNOTSUPP, mlx5dv_wr_mr_interleaved(dv, NULL, 0, 0, 0, NULL));
    COMPLETES(EOPNOTSUPP, mlx5dv_wr_set_mkey_layout_list(dv, 0, NULL));
    COMPLETES(EOPNOTSUPP, mlx5dv_wr_set_mkey_layout_interleaved(dv, 0, 0, NULL));
    COMPLETES(EOPNOTSUPP, mlx5dv_wr_set_mkey_sig_block(dv, NULL));
    COMPLETES(EOPNOTSUPP, mlx5dv_wr_set_mkey_crypto(dv, NULL));
    CHECK(mlx5dv_qp_cancel_posted_send_wrs(dv, 0) == -EOPNOTSUPP);

    /* RC has no targets. */
    struct ibv_qp_init_attr_ex rc_init = {
        .qp_type = IBV_QPT_RC,
        .comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS,
        .pd = b.pd,
        .send_cq = b.cq,
        .recv_cq = b.cq,
        .cap = {.max_send_wr = 1, .max_recv_wr = 1, .max_send_sge = 1, .max_recv_sge = 1},
        .send_ops_flags = IBV_QP_EX_WITH_SEND,
    };
    struct ibv_qp *rc = mlx5dv_create_qp(b.ctx, &rc_init, NULL);
    CHECK(rc && (ex = ibv_qp_to_qp_ex(rc)) && (dv = mlx5dv_qp_ex_from_ibv_qp_ex(ex)));
    COMPLETES(EOPNOTSUPP, ibv_wr_send(ex); mlx5dv_wr_set_dc_addr(dv, ah, 1, 1));
    COMPLETES(EOPNOTSUPP, ibv_wr_send(ex); mlx5dv_wr_set_dc_addr_stream(dv, ah, 1, 1, 0));
    CHECK(ibv_destroy_qp(rc) == 0 && ibv_destroy_qp(dci) == 0 && ibv_destroy_ah(ah) == 0);
}

/* The child of a fork has no use of its parent's context, as with verbs. */
static void of_children(void)
{
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        struct mlx5dv_context dv = {.comp_mask = 0};
        _exit(new_dci(&b) == NULL && new_dct(&b, 1) == NULL && mlx5dv_query_device(b.ctx, &dv) == 0
                  ? 0
                  : 1);
    }
    int status;
    CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

int main(int argc, char **argv)
{
    struct ibv_device **list = ibv_get_device_list(NULL);
    CHECK(list && list[0]);
    of_the_device(list[0], argc > 1 && strcmp(argv[1], "own") == 0);
    of_queues();
    of_refusals();
    of_targets();
    of_initiators();
    of_children();
    CHECK(ibv_destroy_srq(b.srq) == 0 && ibv_destroy_cq(b.cq) == 0 && ibv_dealloc_pd(b.pd) == 0);
    CHECK(ibv_close_device(b.ctx) == 0);
    ibv_free_device_list(list);
    puts("ok");
    return 0;
}
