// Finds libibverbs as NCCL does, by dlopen and dlvsym, in a program that is also linked to
// libgdrcore.so; both must work side by side. verbs_dlopen.c DEVICE-OF-GDRCORE. Exit code 0: all
// checks passed.
#include <dlfcn.h>
#include <gdrcore.h>
#include <infiniband/verbs.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "check.h"

static void *library;

static void *find(const char *name, const char *version) {
    void *f = dlvsym(library, name, version);
    CHECK(f);
    return f;
}

int main(int argc, char **argv) {
    CHECK(argc == 2);
    gdrc_context *own = NULL;
    CHECK(gdrc_open(argv[1], NULL, &own) == 0);

    // Programs try the name of the development package first; it must not load the system's library
    // either.
    CHECK((library = dlopen("libibverbs.so", RTLD_NOW)));
    CHECK(library == dlopen("libibverbs.so.1", RTLD_NOW));
    struct ibv_device **(*get_list)(int *) =
        (struct ibv_device * *(*)(int *)) find("ibv_get_device_list", "IBVERBS_1.1");
    const char *(*name)(struct ibv_device *) =
        (const char *(*)(struct ibv_device *))find("ibv_get_device_name", "IBVERBS_1.1");
    struct ibv_context *(*open)(struct ibv_device *) =
        (struct ibv_context * (*)(struct ibv_device *)) find("ibv_open_device", "IBVERBS_1.1");
    int (*close)(struct ibv_context *) =
        (int (*)(struct ibv_context *))find("ibv_close_device", "IBVERBS_1.1");
    struct ibv_pd *(*alloc_pd)(struct ibv_context *) =
        (struct ibv_pd * (*)(struct ibv_context *)) find("ibv_alloc_pd", "IBVERBS_1.1");
    int (*dealloc_pd)(struct ibv_pd *) =
        (int (*)(struct ibv_pd *))find("ibv_dealloc_pd", "IBVERBS_1.1");
    struct ibv_mr *(*reg)(struct ibv_pd *, void *, size_t, uint64_t, unsigned) =
        (struct ibv_mr * (*)(struct ibv_pd *, void *, size_t, uint64_t, unsigned))
            find("ibv_reg_mr_iova2", "IBVERBS_1.8");
    int (*dereg)(struct ibv_mr *) = (int (*)(struct ibv_mr *))find("ibv_dereg_mr", "IBVERBS_1.1");
    // Optional names, which programs look for.
    CHECK(dlvsym(library, "ibv_reg_dmabuf_mr", "IBVERBS_1.12") &&
          !dlvsym(library, "ibv_alloc_pd", "IBVERBS_9.9"));

    int n = 0;
    struct ibv_device **list = get_list(&n);
    CHECK(list && n == 1 && strcmp(name(list[0]), "gdrc0") == 0);
    struct ibv_context *ctx = open(list[0]);
    CHECK(ctx);
    struct ibv_pd *pd = alloc_pd(ctx);
    static char buffer[4096];
    struct ibv_mr *mr = reg(pd, buffer, sizeof buffer, (uintptr_t)buffer,
                            IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_RELAXED_ORDERING);
    CHECK(pd && mr && dereg(mr) == 0 && dealloc_pd(pd) == 0 && close(ctx) == 0);
    CHECK(gdrc_close(own, NULL) == 0);
    return 0;
}
