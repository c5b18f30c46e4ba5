// DMA handles, descriptors of device memory, and the domains of confidential computing, which
// libibverbs has since releases 57 to 65: looked up by name, because this machine's headers may be
// older. Prints "ok".
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include "newer_verbs.h"

// As in the newer headers.
struct hints {
    uint32_t mask, cpu;
    uint8_t ph, type;
};
enum { CPU = 1, PH = 2, TYPE = 4 };
enum { UNPROTECTED = 4 };

static struct dmah *(*alloc_dmah)(struct ibv_context *, struct hints *);
static int (*dealloc_dmah)(struct dmah *);
static int (*export_dm)(struct ibv_dm *);

static int is_refused(struct ibv_context *ctx, struct hints hints, int error) {
    errno = 0;
    return !alloc_dmah(ctx, &hints) && errno == error;
}

static void dma_handles(struct ibv_context *ctx, struct ibv_pd *pd, struct ibv_qp *qp) {
    CHECK(!alloc_dmah(ctx, NULL) && errno == EINVAL);
    CHECK(!alloc_dmah(NULL, &(struct hints){0}) && errno == EINVAL);
    CHECK(is_refused(ctx, (struct hints){.mask = 8}, EOPNOTSUPP));
    CHECK(is_refused(ctx, (struct hints){PH, 0, 4, 0}, EINVAL));
    CHECK(is_refused(ctx, (struct hints){TYPE, 0, 0, 2}, EINVAL));
    CHECK(is_refused(ctx, (struct hints){CPU, 1 << 20, 0, 0}, EPERM));
    CHECK(is_refused(ctx, (struct hints){CPU, 1023, 0, 0}, EPERM));
    CHECK(dealloc_dmah(NULL) == EINVAL);
    // Fields that the mask does not name are not looked at.
    struct dmah *none = alloc_dmah(ctx, &(struct hints){0, 1 << 20, 4, 2});
    CHECK(none && dealloc_dmah(none) == 0);
    struct dmah *dmah = alloc_dmah(ctx, &(struct hints){PH | TYPE, 0, 3, 1});
    CHECK(dmah);

    static char from[64], to[64];
    struct ibv_mr *local = ibv_reg_mr(pd, from, sizeof from, 0);
    struct mr_init a = {.length = sizeof to, .access = REMOTE, .addr = to, .dmah = dmah};
    a.comp_mask = ADDR | DMAH;
    struct ibv_mr *remote = reg_mr_ex(pd, &a);
    CHECK(remote);
    memset(from, 7, sizeof from);
    CHECK(write_to(qp, local, 64, (uintptr_t)to, remote->rkey).status == IBV_WC_SUCCESS);
    CHECK(memcmp(from, to, 64) == 0);
    CHECK(dealloc_dmah(dmah) == EBUSY && ibv_dereg_mr(remote) == 0);
    a.access = REMOTE | IBV_ACCESS_ON_DEMAND;
    CHECK(!reg_mr_ex(pd, &a) && errno == EINVAL);
    a.access = REMOTE;
    a.dmah = NULL;
    CHECK(!reg_mr_ex(pd, &a) && errno == EINVAL);
    CHECK(dealloc_dmah(dmah) == 0 && ibv_dereg_mr(local) == 0);
}

// What a peer writes into device memory is there for whoever maps its descriptor, and the other way
// round, also as a dma-buf's region.
static void device_memory(struct ibv_context *ctx, struct ibv_pd *pd, struct ibv_qp *qp) {
    struct ibv_alloc_dm_attr attr = {.length = 100};
    struct ibv_dm *dm = ibv_alloc_dm(ctx, &attr);
    CHECK(dm && export_dm(NULL) == -1 && errno == EINVAL);
    int fd = export_dm(dm);
    CHECK(fd >= 0 && fcntl(fd, F_GETFD) == FD_CLOEXEC);
    char *map = mmap(NULL, 100, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    CHECK(map != MAP_FAILED);
    char text[8] = "abcdefg";
    CHECK(ibv_memcpy_to_dm(dm, 4, text, 8) == 0 && memcmp(map + 4, text, 8) == 0);
    struct ibv_mr *local = ibv_reg_mr(pd, text, 8, IBV_ACCESS_LOCAL_WRITE);
    struct ibv_mr *remote = ibv_reg_dmabuf_mr(pd, 0, 100, 0x1000, fd, REMOTE);
    CHECK(local && remote);
    CHECK(write_to(qp, local, 8, 0x1000 + 40, remote->rkey).status == IBV_WC_SUCCESS);
    char back[8];
    CHECK(ibv_memcpy_from_dm(back, dm, 40, 8) == 0 && memcmp(back, text, 8) == 0);
    // Nobody takes a page away from under the library.
    CHECK(ftruncate(fd, 0) == -1 && errno == EPERM);
    CHECK(ibv_dereg_mr(remote) == 0 && ibv_dereg_mr(local) == 0);
    CHECK(ibv_free_dm(dm) == 0 && memcmp(map + 40, text, 8) == 0);
    CHECK(munmap(map, 100) == 0 && close(fd) == 0);
}

// The permission to take memory that the host can read changes nothing here.
static void unprotected(struct ibv_context *ctx, struct ibv_pd *pd) {
    struct ibv_parent_domain_init_attr attr = {.pd = pd, .comp_mask = UNPROTECTED};
    struct ibv_pd *parent = ibv_alloc_parent_domain(ctx, &attr);
    CHECK(parent);
    struct buf *buf;
    char *memory = alloc_buf(parent, 4096, &buf);
    CHECK(memory && !reg_buf_mr(pd, buf, memory, 64, 0) && errno == EINVAL);
    struct ibv_mr *mr = reg_buf_mr(parent, buf, memory, 4096, REMOTE);
    CHECK(mr && ibv_dereg_mr(mr) == 0);
    free_buf(buf);
    CHECK(ibv_dealloc_pd(parent) == 0);
    attr.comp_mask = 8;
    CHECK(!ibv_alloc_parent_domain(ctx, &attr) && errno == EOPNOTSUPP);
}

int main(void) {
    find_common();
    find(&alloc_dmah, "ibv_alloc_dmah");
    find(&dealloc_dmah, "ibv_dealloc_dmah");
    find(&export_dm, "ibv_dm_export_dmabuf_fd");
    struct ibv_context *ctx = open_device();
    struct ibv_pd *pd = ibv_alloc_pd(ctx);
    struct ibv_cq *cq = ibv_create_cq(ctx, 16, NULL, NULL, 0);
    struct ibv_qp *qp = new_qp(pd, cq, IBV_QPT_RC, 4), *peer = new_qp(pd, cq, IBV_QPT_RC, 4);
    connect_both(qp, peer);
    dma_handles(ctx, pd, qp);
    device_memory(ctx, pd, qp);
    unprotected(ctx, pd);
    CHECK(ibv_destroy_qp(qp) == 0 && ibv_destroy_qp(peer) == 0);
    CHECK(ibv_dealloc_pd(pd) == 0);
    puts("ok");
    return 0;
}
