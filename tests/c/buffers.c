// Buffers of the library's own and registrations by ibv_reg_mr_ex, which libibverbs has since
// releases 59 to 65: looked up by name, because this machine's headers may be older. Prints "ok".
#include <sys/mman.h>
#include <unistd.h>

#include "newer_verbs.h"

static int (*export_buf)(struct buf *);
static int (*port_speed)(struct ibv_context *, uint32_t, uint64_t *);

static int refused(struct ibv_mr *mr, int error) {
    return !mr && errno == error;
}

// What a WRITE brings from one region to another.
static int carries(struct ibv_qp *qp, struct ibv_mr *from, struct ibv_mr *to, void *at,
                   uint64_t remote) {
    static unsigned char n;
    memset(from->addr, ++n, 64);
    return write_to(qp, from, 64, remote, to->rkey).status == IBV_WC_SUCCESS &&
           memcmp(at, from->addr, 64) == 0;
}

int main(void) {
    find_common();
    find(&export_buf, "ibv_export_buf_dmabuf_fd");
    find(&port_speed, "ibv_query_port_speed");
    struct ibv_context *ctx = open_device();
    uint64_t speed = 0;
    CHECK(port_speed(ctx, 1, &speed) == 0 && speed > 0);
    CHECK(port_speed(ctx, 2, &speed) == EINVAL && port_speed(ctx, 1, NULL) == EINVAL);

    struct ibv_pd *pd = ibv_alloc_pd(ctx), *other = ibv_alloc_pd(ctx);
    struct ibv_cq *cq = ibv_create_cq(ctx, 16, NULL, NULL, 0);
    struct ibv_qp *qp = new_qp(pd, cq, IBV_QPT_RC, 4), *peer = new_qp(pd, cq, IBV_QPT_RC, 4);
    connect_both(qp, peer);

    struct buf *buf = NULL;
    errno = 0;
    CHECK(!alloc_buf(pd, 0, &buf) && errno == EINVAL && !alloc_buf(pd, 100, NULL));
    CHECK(!alloc_buf(pd, SIZE_MAX, &buf) && !alloc_buf(NULL, 100, &buf));
    char *memory = alloc_buf(pd, 10000, &buf);
    CHECK(memory && buf && (uintptr_t)memory % sysconf(_SC_PAGESIZE) == 0);
    CHECK(memory[0] == 0 && memory[9999] == 0 && ibv_dealloc_pd(pd) == EBUSY);
    CHECK(export_buf(buf) == -1 && errno == ENODATA);
    CHECK(refused(reg_buf_mr(other, buf, memory, 64, REMOTE), EINVAL));
    CHECK(refused(reg_buf_mr(pd, NULL, memory, 64, REMOTE), EINVAL));
    CHECK(refused(reg_buf_mr(pd, buf, memory - 1, 64, REMOTE), EINVAL));
    CHECK(refused(reg_buf_mr(pd, buf, memory + 9999, 2, REMOTE), EINVAL));
    CHECK(refused(reg_buf_mr(pd, buf, memory + 1, SIZE_MAX, REMOTE), EINVAL));
    struct ibv_mr *from = reg_buf_mr(pd, buf, memory, 4096, REMOTE);
    struct ibv_mr *to = reg_buf_mr(pd, buf, memory + 5000, 5000, REMOTE);
    CHECK(from && to && to->addr == memory + 5000);
    CHECK(carries(qp, from, to, memory + 5000, (uintptr_t)memory + 5000));
    CHECK(ibv_dereg_mr(to) == 0);

    // Each registration by its mask.
    struct mr_init a = {.length = 5000, .access = REMOTE, .addr = memory + 5000, .buf = buf};
    a.comp_mask = ADDR | BUF;
    CHECK((to = reg_mr_ex(pd, &a)));
    CHECK(carries(qp, from, to, memory + 5000, (uintptr_t)memory + 5000) && !ibv_dereg_mr(to));
    a.length = 5001;
    CHECK(refused(reg_mr_ex(pd, &a), EINVAL));
    static char own[4096];
    a = (struct mr_init){.length = sizeof own, .access = REMOTE, .addr = own, .iova = 0x1000};
    a.comp_mask = ADDR;
    CHECK((to = reg_mr_ex(pd, &a)));
    CHECK(carries(qp, from, to, own, (uintptr_t)own) && !ibv_dereg_mr(to));
    a.comp_mask = ADDR | IOVA;
    CHECK((to = reg_mr_ex(pd, &a)) && carries(qp, from, to, own, 0x1000) && !ibv_dereg_mr(to));
    // A memfd is mapped as a dma-buf is.
    a.fd = memfd_create("buffer", 0);
    CHECK(a.fd >= 0 && ftruncate(a.fd, 8192) == 0);
    char *map = mmap(NULL, 8192, PROT_READ | PROT_WRITE, MAP_SHARED, a.fd, 0);
    a.fd_offset = 4096;
    a.comp_mask = FD | FD_OFFSET | IOVA;
    CHECK((to = reg_mr_ex(pd, &a)) && carries(qp, from, to, map + 4096, 0x1000));
    CHECK(ibv_dereg_mr(to) == 0);
    const uint64_t wrong[] = {0, IOVA, FD, FD | IOVA, FD | FD_OFFSET, FD | FD_OFFSET | IOVA | ADDR,
                              FD | FD_OFFSET | IOVA | BUF, ADDR | FD_OFFSET, BUF};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        a.comp_mask = wrong[i];
        CHECK(refused(reg_mr_ex(pd, &a), EINVAL));
    }
    for (int bit = 6; bit < 64; bit++) {
        a.comp_mask = ADDR | (uint64_t)1 << bit;
        CHECK(refused(reg_mr_ex(pd, &a), EOPNOTSUPP));
    }
    CHECK(refused(reg_mr_ex(pd, NULL), EINVAL));

    // Memory that is freed under a region ends the request, not the process.
    free_buf(buf);
    free_buf(NULL);
    struct ibv_sge sge = {(uintptr_t)memory, 64, from->lkey};
    struct ibv_send_wr wr = {.sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_RDMA_WRITE};
    CHECK(done(qp, wr).status == IBV_WC_LOC_PROT_ERR);
    CHECK(ibv_dereg_mr(from) == 0 && ibv_destroy_qp(qp) == 0 && ibv_destroy_qp(peer) == 0);
    CHECK(ibv_dealloc_pd(pd) == 0);
    puts("ok");
    return 0;
}
