/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * GPU memory through the C interface: correct use, errors of a program, a second process, a context
 * that is lost. Arguments: "fake" or "real", the driver; then nothing, "lose", or, for a process
 * that this program starts, "import".
 */
#include <gdrcore.h>

#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define CHECK(is)                                                             \
    do {                                                                      \
        if (!(is)) {                                                          \
            char why_[400];                                                   \
            gdrc_error_detail(why_, sizeof why_);                               \
            fprintf(stderr, "line %d: %s (%s)\n", __LINE__, #is, why_);       \
            exit(1);                                                          \
        }                                                                     \
    } while (0)

#define ALL                                                                         \
    (GDRC_ACCESS_LOCAL_WRITE | GDRC_ACCESS_REMOTE_WRITE | GDRC_ACCESS_REMOTE_READ | \
     GDRC_ACCESS_REMOTE_ATOMIC)
#define LEN 300000u

static gdrc_context *ctx;
static gdrc_pd pd;
static gdrc_cq cq;

static struct gdrc_memory cuda_memory(uint64_t addr, uint64_t length)
{
    struct gdrc_memory m;
    memset(&m, 0, sizeof m);
    m.struct_size = sizeof m;
    m.kind = GDRC_MEMORY_CUDA;
    m.addr = addr;
    m.length = length;
    return m;
}

static int reg(struct gdrc_memory m, uint32_t access, gdrc_mr *mr, struct gdrc_mr_attr *attr)
{
    memset(attr, 0, sizeof *attr);
    attr->struct_size = sizeof *attr;
    return gdrc_mr_reg_memory(ctx, pd, &m, access, mr, attr);
}

static int descriptors(void)
{
    int n = 0;
    DIR *dir = opendir("/proc/self/fd");
    while (readdir(dir))
        n++;
    closedir(dir);
    return n;
}

static void wait_for(uint64_t id, uint32_t status)
{
    gdrc_wc wc;
    int n;
    while ((n = gdrc_poll_cq(ctx, cq, 1, &wc)) == 0)
        ;
    CHECK(n == 1 && wc.wr_id == id);
    CHECK(wc.status == status);
}

static void devices(int *gpu)
{
    struct gdrc_cuda_attr a;
    memset(&a, 0, sizeof a);
    CHECK(gdrc_cuda_device(NULL, &a) == -EINVAL);
    a.struct_size = sizeof a;
    CHECK((*gpu = gdrc_cuda_device(NULL, &a)) == 0);
    CHECK(a.memory > 0 && strlen(a.bdf) == 12 && a.name[0]);
    CHECK(gdrc_cuda_device(a.bdf, NULL) == 0 && gdrc_cuda_device(a.bdf + 5, NULL) == 0 &&
          gdrc_cuda_device("0", NULL) == 0);
    CHECK(gdrc_cuda_device("nonsense", NULL) == -EINVAL && gdrc_error_detail(NULL, 0) > 0);
    CHECK(gdrc_cuda_device("ff:1f.7", NULL) == -ENODEV && gdrc_cuda_device("63", NULL) == -ENODEV);
    CHECK(gdrc_cuda_device("99999999999999999999", NULL) == -ENODEV &&
          gdrc_cuda_device("64", NULL) == -ENODEV);
}

static void memory(int gpu)
{
    static uint8_t bytes[LEN], back[LEN];
    uint64_t at = 0, other = 0;
    CHECK(gdrc_cuda_alloc(gpu, 0, 0, &at) == -EINVAL && gdrc_cuda_alloc(gpu, 1, 2, &at) == -EINVAL);
    CHECK(gdrc_cuda_alloc(-1, 1, 0, &at) == -EINVAL && gdrc_cuda_alloc(1000, 1, 0, &at) == -ENODEV);
    CHECK(gdrc_cuda_alloc(gpu, 1, 0, NULL) == -EINVAL &&
          gdrc_cuda_alloc(gpu, (size_t)1 << 60, 0, &at) == -ENOMEM);
    for (uint32_t flags = 0; flags <= GDRC_CUDA_SHAREABLE; flags++) {
        CHECK(gdrc_cuda_alloc(gpu, LEN, flags, &at) == 0 && at);
        for (size_t i = 0; i < LEN; i++)
            bytes[i] = (uint8_t)(i * 7 + flags);
        CHECK(gdrc_cuda_copy_in(at, bytes, LEN) == 0 && gdrc_cuda_copy_out(back, at, LEN) == 0 &&
              !memcmp(bytes, back, LEN));
        CHECK(gdrc_cuda_fill(at + 10, 0xab, 100) == 0 &&
              gdrc_cuda_copy_out(back, at + 9, 102) == 0);
        CHECK(back[0] == bytes[9] && back[1] == 0xab && back[100] == 0xab &&
              back[101] == bytes[110]);
        CHECK(gdrc_cuda_copy_in(at, NULL, 1) == -EINVAL &&
              gdrc_cuda_copy_in(1, bytes, 1) == -EINVAL);
        CHECK(gdrc_cuda_copy_out(back, at + LEN, (size_t)1 << 40) == -EINVAL &&
              gdrc_cuda_fill((uint64_t)(uintptr_t)bytes, 0, 1) == -EINVAL);
        CHECK(gdrc_cuda_copy_in(at, bytes, 0) == 0);

        struct gdrc_cuda_handle h, bad;
        int fd = -2;
        CHECK(gdrc_cuda_export(at + 100, 1000, &h, NULL) == -EINVAL &&
              gdrc_cuda_export(1, 1, &h, &fd) == -EINVAL);
        CHECK(gdrc_cuda_export(at + 100, 1000, &h, &fd) == 0 && h.length == 1000 &&
              (fd >= 0) == (flags != 0));
        if (fd >= 0) {
            /* The same memory at another address, also within one process. */
            CHECK(gdrc_cuda_import(&h, fd, &other) == 0 && other != at + 100);
            CHECK(gdrc_cuda_fill(other, 0x11, 1000) == 0 &&
                  gdrc_cuda_copy_out(back, at + 100, 1000) == 0 && back[999] == 0x11);
            CHECK(gdrc_cuda_free(other) == 0 && gdrc_cuda_free(other) == -EINVAL);
            CHECK(gdrc_cuda_import(&h, -1, &other) == -EINVAL &&
                  gdrc_cuda_import(&h, 0, &other) < 0);
        } else {
            CHECK(gdrc_cuda_import(&h, -1, &other) < 0);
        }
        /* A handle comes from another process, so its fields are checked. */
        int before = descriptors();
        for (int i = 0; i < 8; i++) {
            bad = h;
            switch (i) {
            case 0: bad.kind = 77; break;
            case 1: bad.length = UINT64_MAX; break;
            case 2: bad.offset = UINT64_MAX - 100; break;
            case 3: bad.offset = (uint64_t)1 << 40; break;
            case 4: memset(bad.bdf, 'x', sizeof bad.bdf); break;
            case 5: memcpy(bad.bdf, "ff:1f.7", 8); break;
            case 6: memset(bad.ipc, 0xff, sizeof bad.ipc); break;
            default: bad.length = 0; break;
            }
            CHECK(gdrc_cuda_import(&bad, fd, &other) < 0);
        }
        CHECK(gdrc_cuda_import(NULL, fd, &other) == -EINVAL &&
              gdrc_cuda_import(&h, fd, NULL) == -EINVAL);
        CHECK(descriptors() == before);
        if (fd >= 0)
            close(fd);
        CHECK(gdrc_cuda_free(at + 1) == -EINVAL && gdrc_cuda_free(at) == 0 &&
              gdrc_cuda_free(at) == -EINVAL);
    }
}

static void registration(int gpu)
{
    struct gdrc_memory m, wrong;
    struct gdrc_mr_attr a;
    uint64_t at;
    gdrc_mr mr;
    static char host[4096];
    CHECK(gdrc_cuda_alloc(gpu, LEN, 0, &at) == 0);
    m = cuda_memory(at, LEN);
    for (int i = 0; i < 10; i++) {
        uint32_t access = ALL;
        wrong = m;
        switch (i) {
        case 0: wrong.struct_size = 0; break;
        case 1: wrong.kind = 2; break;
        case 2: wrong.flags = 0x80; break;
        case 3: wrong.length = 0; break;
        case 4: wrong.length = (uint64_t)1 << 40; break;
        case 5: wrong.addr = (uint64_t)(uintptr_t)host; wrong.length = 100; break;
        case 6: wrong.addr = UINT64_MAX - 10; break;
        case 7: wrong.flags = GDRC_MEMORY_FLAG_DMABUF; wrong.fd = -1; break;
        case 8: access |= 1u << 30; break;
        default: wrong.flags = GDRC_MEMORY_FLAG_IOVA; wrong.iova = UINT64_MAX; break;
        }
        CHECK(reg(wrong, access, &mr, &a) == -EINVAL);
    }
    CHECK(gdrc_mr_reg_memory(ctx, pd, NULL, ALL, &mr, NULL) == -EINVAL &&
          gdrc_mr_reg_memory(ctx, pd, &m, ALL, NULL, NULL) == -EINVAL);
    CHECK(gdrc_mr_reg_memory(ctx, (gdrc_pd){ 77 }, &m, ALL, &mr, NULL) == -EINVAL);
    CHECK(reg(m, ALL, &mr, &a) == 0 && a.addr == at && a.iova == at && a.length == LEN &&
          a.provider == GDRC_MEMORY_CUDA);
    CHECK(a.route == GDRC_ROUTE_STAGED && a.no_dmabuf == GDRC_MR_REASON_SOFT_DEVICE &&
          a.no_peermem == GDRC_MR_REASON_SOFT_DEVICE && a.buffer_id && !a.flags);
    CHECK(!strcmp(gdrc_mr_route_str(a.route), "staged through pinned host memory") &&
          strlen(gdrc_mr_reason_str(a.no_dmabuf)) > 10);
    CHECK(!strcmp(gdrc_mr_reason_str(1000), "unknown") &&
          !strcmp(gdrc_mr_route_str(1000), "unknown"));

    /* A struct of an old program, which is shorter, is filled up to its size. */
    struct { struct gdrc_mr_attr attr; } small;
    memset(&small, 0x5a, sizeof small);
    small.attr.struct_size = 48;
    CHECK(gdrc_mr_query(ctx, mr, &small.attr) == 0 && small.attr.addr == at &&
          small.attr.route == 0x5a5a5a5au);

    /* The memory is freed under the region: the region reports it, and releases its resources. */
    CHECK(gdrc_cuda_free(at) == 0);
    memset(&a, 0, sizeof a);
    a.struct_size = sizeof a;
    CHECK(gdrc_mr_query(ctx, mr, &a) == 0 && a.flags == GDRC_MR_GONE);
    CHECK(gdrc_mr_dereg(ctx, mr) == 0 && gdrc_mr_dereg(ctx, mr) == -EINVAL &&
          gdrc_mr_query(ctx, mr, &a) == -EINVAL);

    /* Host memory through the same call. */
    wrong = m;
    wrong.kind = GDRC_MEMORY_HOST;
    wrong.addr = (uint64_t)(uintptr_t)host;
    wrong.length = sizeof host;
    CHECK(reg(wrong, ALL, &mr, &a) == 0 && a.route == GDRC_ROUTE_HOST &&
          a.provider == GDRC_MEMORY_HOST && !a.buffer_id);
    CHECK(gdrc_mr_dereg(ctx, mr) == 0);
    wrong.flags = GDRC_MEMORY_FLAG_DMABUF;
    CHECK(reg(wrong, ALL, &mr, &a) == -EINVAL);
}

static void no_descriptor_is_left_over(int gpu, unsigned times)
{
    struct gdrc_mr_attr a;
    uint64_t at;
    gdrc_mr mr;
    CHECK(gdrc_cuda_alloc(gpu, LEN, 0, &at) == 0);
    CHECK(reg(cuda_memory(at, LEN), ALL, &mr, &a) == 0 && gdrc_mr_dereg(ctx, mr) == 0);
    int before = descriptors();
    for (unsigned i = 0; i < times; i++)
        CHECK(reg(cuda_memory(at + i % 1000, LEN - 1000), ALL, &mr, &a) == 0 &&
              gdrc_mr_dereg(ctx, mr) == 0);
    CHECK(descriptors() == before);
    CHECK(gdrc_cuda_free(at) == 0);
}

/* Two queue pairs of this context, connected with each other. */
static void connected_pair(gdrc_qp qp[2])
{
    struct gdrc_endpoint end[2];
    for (int i = 0; i < 2; i++) {
        struct gdrc_qp_init init = {
            .struct_size = sizeof init,
            .qp_type = GDRC_QPT_RC,
            .pd = pd,
            .send_cq = cq,
            .recv_cq = cq,
        };
        init.cap.max_send_wr = 16;
        init.cap.max_send_sge = 2;
        init.cap.max_inline_data = 64;
        CHECK(gdrc_qp_create(ctx, &init, &qp[i], NULL) == 0);
        memset(&end[i], 0, sizeof end[i]);
        end[i].struct_size = sizeof end[i];
        CHECK(gdrc_endpoint_local(ctx, qp[i], NULL, &end[i]) == 0);
    }
    CHECK(gdrc_qp_connect(ctx, qp[0], &end[0], &end[1], NULL) == 0 &&
          gdrc_qp_connect(ctx, qp[1], &end[1], &end[0], NULL) == 0);
}

/* Posts a WRITE of LEN bytes and waits for its completion with this status. */
static void write_all(gdrc_qp qp, const struct gdrc_mr_attr *from, const struct gdrc_mr_attr *to,
                      uint32_t status)
{
    static uint64_t id = 1000;
    gdrc_sge piece = { .addr = from->iova, .length = LEN, .lkey = from->lkey };
    gdrc_send_wr wr = {
        .wr_id = ++id,
        .sg_list = &piece,
        .num_sge = 1,
        .opcode = GDRC_WR_RDMA_WRITE,
        .send_flags = GDRC_SEND_SIGNALED,
    };
    wr.wr.rdma.remote_addr = to->iova;
    wr.wr.rdma.rkey = to->rkey;
    CHECK(gdrc_post_send(ctx, qp, &wr, NULL) == 0);
    wait_for(id, status);
}

static void traffic(int gpu)
{
    static uint8_t bytes[LEN], back[LEN];
    struct gdrc_mr_attr a, b;
    uint64_t from, to;
    gdrc_qp qp[2];
    gdrc_mr mr, mr2;
    CHECK(gdrc_cuda_alloc(gpu, LEN, 0, &from) == 0 &&
          gdrc_cuda_alloc(gpu, LEN, GDRC_CUDA_SHAREABLE, &to) == 0);
    struct gdrc_memory m = cuda_memory(from, LEN);
    CHECK(reg(m, ALL | GDRC_ACCESS_ZERO_BASED, &mr, &a) == 0 && a.iova == 0);
    m = cuda_memory(to, LEN);
    m.flags = GDRC_MEMORY_FLAG_IOVA;
    m.iova = 0x1000;
    CHECK(reg(m, ALL, &mr2, &b) == 0 && b.iova == 0x1000);
    connected_pair(qp);
    for (size_t i = 0; i < LEN; i++)
        bytes[i] = (uint8_t)(i * 13);
    CHECK(gdrc_cuda_copy_in(from, bytes, LEN) == 0);
    gdrc_sge piece = { .addr = 0, .length = LEN, .lkey = a.lkey };
    gdrc_send_wr wr = {
        .wr_id = 1,
        .sg_list = &piece,
        .num_sge = 1,
        .opcode = GDRC_WR_RDMA_WRITE,
        .send_flags = GDRC_SEND_SIGNALED,
    };
    wr.wr.rdma.remote_addr = 0x1000;
    wr.wr.rdma.rkey = b.rkey;
    CHECK(gdrc_post_send(ctx, qp[0], &wr, NULL) == 0);
    wait_for(1, GDRC_WC_SUCCESS);
    CHECK(gdrc_cuda_copy_out(back, to, LEN) == 0 && !memcmp(bytes, back, LEN));

    /* Inline data is read by the CPU. */
    gdrc_sge inside = { .addr = from, .length = 8, .lkey = a.lkey };
    gdrc_send_wr in = wr;
    in.sg_list = &inside;
    in.send_flags |= GDRC_SEND_INLINE;
    CHECK(gdrc_post_send(ctx, qp[0], &in, NULL) == -EFAULT);

    /* The region is deregistered while requests wait for it. */
    for (uint64_t i = 0; i < 8; i++) {
        wr.wr_id = 10 + i;
        CHECK(gdrc_post_send(ctx, qp[0], &wr, NULL) == 0);
    }
    CHECK(gdrc_mr_dereg(ctx, mr2) == 0);
    CHECK(gdrc_cuda_free(to) == 0);
    gdrc_wc wc;
    for (unsigned ended = 0; ended < 8;)
        ended += gdrc_poll_cq(ctx, cq, 1, &wc) == 1;
    CHECK(wc.status != GDRC_WC_SUCCESS);

    /*
     * A child of fork has no driver and no context: calls return errors, and the parent's objects
     * stay as they are.
     */
    pid_t child = fork();
    if (!child) {
        uint64_t at = 0;
        struct gdrc_mr_attr x;
        bool refused = gdrc_cuda_alloc(0, 4096, 0, &at) < 0 &&
                       gdrc_mr_dereg(ctx, mr) == -EOWNERDEAD &&
                       reg(cuda_memory(from, LEN), ALL, &mr, &x) == -EOWNERDEAD;
        _exit(refused ? 0 : 1);
    }
    int status = 0;
    CHECK(waitpid(child, &status, 0) == child && status == 0);
    CHECK(gdrc_cuda_copy_out(back, from, LEN) == 0 && !memcmp(bytes, back, LEN));
    /* gdrc_close releases `mr` and the queue pairs. */
    CHECK(gdrc_cuda_free(from) == 0);
}

/* The second process: takes a handle from standard input, reads the memory and fills it. */
static int import(void)
{
    static uint8_t back[LEN];
    struct gdrc_cuda_handle h;
    uint64_t at;
    CHECK(fread(&h, sizeof h, 1, stdin) == 1);
    CHECK(gdrc_cuda_import(&h, -1, &at) == 0 && h.length == LEN);
    CHECK(gdrc_cuda_copy_out(back, at, LEN) == 0);
    for (size_t i = 0; i < LEN; i++)
        CHECK(back[i] == (uint8_t)(i * 11));
    CHECK(gdrc_cuda_fill(at, 0x3c, LEN) == 0 && gdrc_cuda_free(at) == 0);
    return 0;
}

/* Memory that has no descriptor passes to another process by a CUDA IPC handle. */
static void another_process(int gpu, const char *self, const char *driver)
{
    static uint8_t bytes[LEN];
    struct gdrc_cuda_handle h;
    char command[4096];
    uint64_t at;
    int fd = -2;
    CHECK(gdrc_cuda_alloc(gpu, LEN, 0, &at) == 0);
    for (size_t i = 0; i < LEN; i++)
        bytes[i] = (uint8_t)(i * 11);
    CHECK(gdrc_cuda_copy_in(at, bytes, LEN) == 0 && gdrc_cuda_export(at, LEN, &h, &fd) == 0 &&
          fd == -1);
    snprintf(command, sizeof command, "'%s' %s import", self, driver);
    FILE *other = popen(command, "w");
    CHECK(other && fwrite(&h, sizeof h, 1, other) == 1 && pclose(other) == 0);
    CHECK(gdrc_cuda_copy_out(bytes, at, LEN) == 0 && bytes[0] == 0x3c && bytes[LEN - 1] == 0x3c);
    CHECK(gdrc_cuda_free(at) == 0);
}

typedef void *object;

/* The driver's function of this name, if it has one. */
static object driver_call(const char *name)
{
    object library = dlopen("libcuda.so.1", RTLD_NOW);
    CHECK(library);
    return dlsym(library, name);
}

/*
 * Loses the context of this process: the fake driver's on demand, NVIDIA's by a kernel that
 * executes a trap.
 */
static void lose_context(bool fake)
{
    if (fake) {
        void (*lose)(int);
        *(object *)&lose = driver_call("fakecuda_lose");
        CHECK(lose);
        lose(700);
        return;
    }
    static const char ptx[] = ".version 7.0\n.target sm_50\n.address_size 64\n"
                              ".visible .entry lose() { trap; }\n";
    int (*retain)(object *, int), (*push)(object), (*load)(object *, const void *);
    int (*function)(object *, object, const char *), (*synchronize)(void);
    int (*launch)(object, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned,
                  object, void **, void **);
    *(object *)&retain = driver_call("cuDevicePrimaryCtxRetain");
    *(object *)&push = driver_call("cuCtxPushCurrent_v2");
    *(object *)&load = driver_call("cuModuleLoadData");
    *(object *)&function = driver_call("cuModuleGetFunction");
    *(object *)&launch = driver_call("cuLaunchKernel");
    *(object *)&synchronize = driver_call("cuCtxSynchronize");
    object context, module, kernel;
    CHECK(retain(&context, 0) == 0 && push(context) == 0 && load(&module, ptx) == 0 &&
          function(&kernel, module, "lose") == 0);
    CHECK(launch(kernel, 1, 1, 1, 1, 1, 1, 0, NULL, NULL, NULL) == 0);
    int code = synchronize();
    printf("cuda: the context is lost by error %d\n", code);
    CHECK(code >= 700);
}

/* What uses the GPU's memory fails, and nothing else. */
static void lost(int gpu, bool fake)
{
    static uint8_t here[LEN], there[LEN];
    struct gdrc_mr_attr from, to, device;
    gdrc_qp qp[2], beside[2];
    gdrc_mr mr, mr2, mr3;
    uint64_t at, other;
    CHECK(gdrc_open("loopback", NULL, &ctx) == 0 && gdrc_pd_alloc(ctx, &pd) == 0 &&
          gdrc_cq_create(ctx, 64, &cq, NULL) == 0);
    CHECK(gdrc_cuda_alloc(gpu, LEN, 0, &at) == 0 &&
          reg(cuda_memory(at, LEN), ALL, &mr, &device) == 0);
    struct gdrc_memory m = cuda_memory((uint64_t)(uintptr_t)here, LEN);
    m.kind = GDRC_MEMORY_HOST;
    CHECK(reg(m, ALL, &mr2, &from) == 0);
    m.addr = (uint64_t)(uintptr_t)there;
    CHECK(reg(m, ALL, &mr3, &to) == 0);
    connected_pair(qp);
    connected_pair(beside);
    for (size_t i = 0; i < LEN; i++)
        here[i] = (uint8_t)(i * 17);
    write_all(qp[0], &from, &device, GDRC_WC_SUCCESS);
    lose_context(fake);
    write_all(qp[0], &from, &device, GDRC_WC_REM_OP_ERR);
    write_all(beside[0], &from, &to, GDRC_WC_SUCCESS);
    CHECK(!memcmp(here, there, LEN));
    write_all(beside[0], &device, &to, GDRC_WC_LOC_PROT_ERR);
    CHECK(gdrc_cuda_alloc(gpu, LEN, 0, &other) < 0 && gdrc_cuda_copy_out(here, at, LEN) < 0);
    CHECK(gdrc_mr_dereg(ctx, mr) == 0 && gdrc_close(ctx, NULL) >= 0);
    printf("cuda: a lost context ends what uses the GPU's memory, and nothing else\n");
}

int main(int argc, char **argv)
{
    bool fake = argc > 1 && !strcmp(argv[1], "fake");
    int gpu;
    if (argc > 2 && !strcmp(argv[2], "import"))
        return import();
    devices(&gpu);
    if (argc > 2 && !strcmp(argv[2], "lose"))
        return lost(gpu, fake), 0;
    memory(gpu);
    another_process(gpu, argv[0], fake ? "fake" : "real");
    for (int life = 0; life < 3; life++) {
        struct gdrc_leaks leaks = { .struct_size = sizeof leaks };
        int before = descriptors();
        CHECK(gdrc_open("loopback", NULL, &ctx) == 0 && gdrc_pd_alloc(ctx, &pd) == 0 &&
              gdrc_cq_create(ctx, 64, &cq, NULL) == 0);
        registration(gpu);
        if (life == 0)
            no_descriptor_is_left_over(gpu, fake ? 100000 : 2000);
        traffic(gpu);
        CHECK(gdrc_close(ctx, &leaks) > 0 && leaks.mr == 1 && leaks.qp == 2);
        CHECK(descriptors() == before);
    }
    printf("cuda: the C interface behaves as documented\n");
    return 0;
}
