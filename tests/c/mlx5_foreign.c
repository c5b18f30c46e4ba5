/*
 * NVIDIA's own libmlx5 over the drop-in: it finds a device that is none of its own, and refuses.
 * The program is linked to both. Prints "ok".
 */
#include "dc.h"

#define REFUSED(x) CHECK((errno = 0, (x) == NULL) && errno == EOPNOTSUPP)
#define UNSUPPORTED(x) CHECK((x) == EOPNOTSUPP)

int main(void)
{
    struct ibv_device **list = ibv_get_device_list(NULL);
    CHECK(list && list[0] && !mlx5dv_is_supported(list[0]));
    struct mlx5dv_context_attr attr = {.flags = 0};
    REFUSED(mlx5dv_open_device(list[0], &attr));
    struct ibv_context *ctx = ibv_open_device(list[0]);
    CHECK(ctx);
    struct base b = base_of(ctx);
    struct mlx5dv_context dv = {.comp_mask = 0};
    UNSUPPORTED(mlx5dv_query_device(ctx, &dv));
    REFUSED(new_dct(&b, 1));
    REFUSED(new_dci(&b));
    struct ibv_cq_init_attr_ex cq = {.cqe = 1};
    struct mlx5dv_cq_init_attr more = {.comp_mask = 0};
    REFUSED(mlx5dv_create_cq(ctx, &cq, &more));
    struct mlx5dv_cq cq_out;
    struct mlx5dv_obj obj = {.cq = {.in = b.cq, .out = &cq_out}};
    UNSUPPORTED(mlx5dv_init_obj(&obj, MLX5DV_OBJ_CQ));
    struct mlx5dv_clock_info clock;
    UNSUPPORTED(mlx5dv_get_clock_info(ctx, &clock));
    uint32_t in[4] = {0}, out[4], qpn;
    UNSUPPORTED(mlx5dv_devx_general_cmd(ctx, in, sizeof(in), out, sizeof(out)));
    UNSUPPORTED(mlx5dv_reserved_qpn_alloc(ctx, &qpn));
    struct mlx5dv_mkey_init_attr mkey = {.pd = b.pd, .max_entries = 1};
    REFUSED(mlx5dv_create_mkey(&mkey));
    REFUSED(mlx5dv_devx_obj_create(ctx, in, sizeof(in), out, sizeof(out)));
    REFUSED(mlx5dv_devx_umem_reg(ctx, out, sizeof(out), 0));
    CHECK(ibv_destroy_srq(b.srq) == 0 && ibv_destroy_cq(b.cq) == 0 && ibv_dealloc_pd(b.pd) == 0);
    CHECK(ibv_close_device(ctx) == 0);
    ibv_free_device_list(list);
    puts("ok");
    return 0;
}
