// A program whose header has longer structs than the library, and one whose header has shorter
// ones: all that the library does not have is zero, and nothing behind the struct is written. Rates
// come back as they were set. Prints "ok".
#include <string.h>

#include "rc_pair.h"

#define MORE 64
#define POISON 0xa5

// A struct, what a later header adds, and what follows it in memory.
#define LONGER(type)              \
    union {                       \
        type known;               \
        unsigned char bytes[1024]; \
    }

static int is(const unsigned char *bytes, size_t from, size_t to, int value) {
    for (size_t i = from; i < to; i++)
        if (bytes[i] != value)
            return 0;
    return 1;
}

#define FRESH(x) memset((x).bytes, POISON, sizeof (x).bytes)
// Longer by MORE: filled to the end of the known fields, zero behind them, untouched behind that.
#define IS_FILLED(x) (is((x).bytes, sizeof (x).known, sizeof (x).known + MORE, 0) && \
                      is((x).bytes, sizeof (x).known + MORE, sizeof (x).bytes, POISON))

int main(void) {
    struct ibv_context *ctx = open_device();
    struct verbs_context *ops = verbs_get_ctx(ctx);
    CHECK(ops);

    LONGER(struct ibv_device_attr_ex) device;
    FRESH(device);
    CHECK(ops->query_device_ex(ctx, NULL, &device.known, sizeof device.known + MORE) == 0);
    CHECK(IS_FILLED(device) && device.known.orig_attr.max_qp > 0);
    FRESH(device);
    CHECK(ops->query_device_ex(ctx, NULL, &device.known, sizeof device.known.orig_attr) == 0);
    CHECK(is(device.bytes, sizeof device.known.orig_attr, sizeof device.bytes, POISON));

    LONGER(struct ibv_port_attr) port;
    FRESH(port);
    CHECK(ops->query_port(ctx, 1, &port.known, sizeof port.known + MORE) == 0);
    CHECK(IS_FILLED(port) && port.known.active_mtu != 0);
    FRESH(port);
    CHECK(ops->query_port(ctx, 1, &port.known, 8) == 0);
    CHECK(is(port.bytes, 8, sizeof port.bytes, POISON));

    LONGER(struct ibv_gid_entry) gid;
    FRESH(gid);
    CHECK(_ibv_query_gid_ex(ctx, 1, 0, &gid.known, 0, sizeof gid.known + MORE) == 0);
    CHECK(IS_FILLED(gid) && gid.known.port_num == 1);
    FRESH(gid);
    size_t each = sizeof gid.known + MORE;
    ssize_t n = _ibv_query_gid_table(ctx, &gid.known, 4, 0, each);
    CHECK(n > 0 && (size_t)n * each <= sizeof gid.bytes);
    for (ssize_t k = 0; k < n; k++)
        CHECK(is(gid.bytes, k * each + sizeof gid.known, (k + 1) * each, 0));
    CHECK(is(gid.bytes, n * each, sizeof gid.bytes, POISON));

    struct ibv_pd *pd = ibv_alloc_pd(ctx);
    struct ibv_cq *cq = ibv_create_cq(ctx, 16, NULL, NULL, 0);
    struct ibv_qp_init_attr init;
    struct ibv_qp *qp = new_qp(pd, cq, IBV_QPT_RC, 4);
    connect_qp(qp, qp->qp_num, 14);
    for (uint32_t kbps = 40000; kbps < 4000000; kbps *= 10) {
        struct ibv_qp_rate_limit_attr rate = {.rate_limit = kbps};
        struct ibv_qp_attr now = {0};
        CHECK(ibv_modify_qp_rate_limit(qp, &rate) == 0);
        CHECK(ibv_query_qp(qp, &now, IBV_QP_RATE_LIMIT, &init) == 0);
        CHECK(now.rate_limit == kbps);
        // And by ibv_modify_qp.
        now = (struct ibv_qp_attr){.qp_state = IBV_QPS_RTS, .rate_limit = kbps / 2};
        CHECK(ibv_modify_qp(qp, &now, IBV_QP_STATE | IBV_QP_RATE_LIMIT) == 0);
        CHECK(ibv_query_qp(qp, &now, IBV_QP_RATE_LIMIT, &init) == 0 &&
              now.rate_limit == kbps / 2);
    }
    puts("ok");
    return 0;
}
