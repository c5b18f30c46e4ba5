/*
 * SPDX-License-Identifier: MIT OR Apache-2.0
 *
 * A program of the C API that ends while it does something (tests/tests/ends/matrix.rs), by a way
 * that a program in Rust lacks. Compiled twice: as a library that does the part, and with -DHOST as
 * the program that loads it, so that dlclose unloads libgdrcore.so too.
 *
 * ends PART PATH WAY DEVICE GID PORT ...
 * WAY: dlclose; main: pthread_exit of the only thread; thread: the same while another one goes on.
 */
#include "check.h"
#include <dlfcn.h>
#include <pthread.h>
#include <signal.h>
#include <string.h>
#include <unistd.h>

#ifdef HOST
#define IS_LIBRARY "/ends.so"

static void (*go_on)(void);
static pthread_t first;

static void own_handler(int signal)
{
    _exit(signal);
}

static int is_loaded(void)
{
    void *library = dlopen("libgdrcore.so.0", RTLD_NOW | RTLD_NOLOAD);
    return library && !dlclose(library);
}

static void *other(void *unused)
{
    pthread_join(first, NULL);
    printf("goes on\n");
    fflush(stdout);
    go_on();
    return unused;
}

int main(int argc, char **argv)
{
    char path[4096];
    pthread_t thread;
    ssize_t n = readlink("/proc/self/exe", path, sizeof path - sizeof IS_LIBRARY);
    CHECK(argc >= 7 && n > 0);
    path[n] = 0;
    strcpy(strrchr(path, '/'), IS_LIBRARY);
    CHECK(signal(SIGSEGV, own_handler) == SIG_DFL);
    void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (!library)
        fprintf(stderr, "%s\n", dlerror());
    CHECK(library && is_loaded());
    void (*play)(char **);
    *(void **)&play = dlsym(library, "play");
    *(void **)&go_on = dlsym(library, "go_on");
    CHECK(play && go_on);
    play(argv + 1);
    if (!strcmp(argv[3], "dlclose")) {
        _exit(dlclose(library) || is_loaded() || signal(SIGSEGV, SIG_DFL) != own_handler);
    }
    first = pthread_self();
    if (!strcmp(argv[3], "thread"))
        CHECK(!pthread_create(&thread, NULL, other, NULL));
    pthread_exit(NULL);
}
#else
#include <gdrcore.h>

#define SIZE(s) .struct_size = sizeof(struct s)
#define PORT 7471
#define EXCHANGES 20

static struct gdrc_context *ctx;
static struct gdrc_pd pd;
static struct gdrc_cq cq;
static struct gdrc_qp qp;
static struct gdrc_mr mr;
static struct gdrc_mr_attr keys = {SIZE(gdrc_mr_attr)};
static char bytes[8192] __attribute__((aligned(4096)));
static struct gdrc_endpoint own = {SIZE(gdrc_endpoint)};

static void say(const char *word)
{
    printf("%s\n", word);
    fflush(stdout);
}

static void gid_text(const uint8_t *gid, char out[33])
{
    for (int i = 0; i < 16; i++)
        sprintf(out + 2 * i, "%02x", gid[i]);
}

static void gid_of(const char *text, uint8_t *gid)
{
    unsigned byte;
    for (int i = 0; i < 16; i++) {
        CHECK(sscanf(text + 2 * i, "%2x", &byte) == 1);
        gid[i] = byte;
    }
}

static void tell(void)
{
    char gid[33];
    gid_text(own.gid, gid);
    printf("%s %u %u %u %llu %u\n", gid, own.udp_port, own.qpn, own.psn,
           (unsigned long long)own.addr, own.rkey);
    fflush(stdout);
}

static struct gdrc_endpoint hear(void)
{
    struct gdrc_endpoint e = own;
    char line[256], gid[33];
    unsigned long long addr;
    CHECK(fgets(line, sizeof line, stdin));
    CHECK(sscanf(line, "%32s %u %u %u %llu %u", gid, &e.udp_port, &e.qpn, &e.psn, &addr,
                 &e.rkey) == 6);
    gid_of(gid, e.gid);
    e.addr = addr, e.mtu = GDRC_MTU_1024;
    return e;
}

static void wait_for_line(void)
{
    char line[256];
    CHECK(fgets(line, sizeof line, stdin));
}

static void post_recv(uint64_t id)
{
    struct gdrc_sge sge = {(uintptr_t)bytes, 64, keys.lkey};
    struct gdrc_recv_wr wr = {.wr_id = id, .sg_list = &sge, .num_sge = 1};
    const struct gdrc_recv_wr *bad;
    CHECK(gdrc_post_recv(ctx, qp, &wr, &bad) == 0);
}

static void take(uint64_t id)
{
    struct gdrc_wc wc;
    int n;
    do
        CHECK((n = gdrc_poll_cq(ctx, cq, 1, &wc)) >= 0 && (n == 0 || wc.status == 0));
    while (n == 0 || wc.wr_id != id);
}

static void join(void)
{
    tell();
    struct gdrc_endpoint peer = hear();
    struct gdrc_qp_connect_opts opts = {SIZE(gdrc_qp_connect_opts),
        .access = GDRC_ACCESS_REMOTE_READ | GDRC_ACCESS_REMOTE_WRITE};
    CHECK(gdrc_qp_connect(ctx, qp, &own, &peer, &opts) == 0);
    post_recv(0);
    say("connected");
}

static void expect(uint32_t kind)
{
    struct gdrc_cm_event e = {SIZE(gdrc_cm_event)};
    int n;
    while ((n = gdrc_cm_get_event(ctx, &e)) == 0)
        gdrc_wait(ctx, 100);
    CHECK(n == 1 && e.event == kind);
}

static void ask_for(char **argv)
{
    struct gdrc_ah_attr to = {0};
    struct gdrc_cm_conn_param param = {SIZE(gdrc_cm_conn_param), .response_timeout = 17};
    struct gdrc_cm_id id;
    gid_of(argv[4], to.dgid);
    to.udp_port = atoi(argv[5]);
    CHECK(gdrc_cm_connect(ctx, &to, GDRC_PS_TCP, PORT, qp, &param, &id) == 0);
}

static void listens(void)
{
    struct gdrc_cm_id id;
    CHECK(gdrc_cm_listen(ctx, GDRC_PS_TCP, PORT, 4, 0, &id) == PORT);
    tell();
}

/* Does the part of a program, up to its end. */
void play(char **argv)
{
    const char *part = argv[0];
    struct gdrc_config config = {SIZE(gdrc_config)};
    struct gdrc_qp_init init = {SIZE(gdrc_qp_init), .qp_type = GDRC_QPT_RC,
        .cap = {8, 32, 1, 1, 0}};
    CHECK(gdrc_config_default(&config) == 0);
    if (!strcmp(argv[1], "udp"))
        config.flags |= GDRC_CONFIG_UDP_ONLY;
    CHECK(gdrc_open(argv[3], &config, &ctx) == 0 && gdrc_pd_alloc(ctx, &pd) == 0);
    CHECK(gdrc_mr_reg(ctx, pd, bytes, sizeof bytes,
                      GDRC_ACCESS_LOCAL_WRITE | GDRC_ACCESS_REMOTE_READ, &mr, &keys) == 0);
    CHECK(gdrc_cq_create(ctx, 64, &cq, NULL) == 0);
    init.pd = pd, init.send_cq = init.recv_cq = cq;
    if (!strcmp(part, "datagrams"))
        init.qp_type = GDRC_QPT_UD;
    CHECK(gdrc_qp_create(ctx, &init, &qp, NULL) == 0);
    CHECK(gdrc_endpoint_local(ctx, qp, &mr, &own) == 0);
    say("\nready");
    if (!strcmp(part, "message")) {
        join(), take(0);
    } else if (!strcmp(part, "answers")) {
        join(), take(0);
        for (uint64_t round = 1; round <= EXCHANGES; round++) {
            struct gdrc_sge sge = {(uintptr_t)bytes, 64, keys.lkey};
            struct gdrc_send_wr wr = {.wr_id = 1000 + round, .opcode = GDRC_WR_SEND,
                .send_flags = GDRC_SEND_SIGNALED, .sg_list = &sge, .num_sge = 1};
            const struct gdrc_send_wr *bad;
            post_recv(round);
            CHECK(gdrc_post_send(ctx, qp, &wr, &bad) == 0);
            take(round);
        }
    } else if (!strcmp(part, "read") || !strcmp(part, "datagrams")) {
        join(), wait_for_line();
    } else if (!strcmp(part, "idle")) {
        ask_for(argv), expect(GDRC_CM_EVENT_ESTABLISHED);
        say("connected"), wait_for_line();
    } else if (!strcmp(part, "request")) {
        ask_for(argv), wait_for_line();
    } else if (!strcmp(part, "answer")) {
        listens(), expect(GDRC_CM_EVENT_CONNECT_REQUEST);
        say("asked"), wait_for_line();
    } else {
        CHECK(!strcmp(part, "listener"));
        listens(), wait_for_line();
    }
}

/* Does as a program does that goes on. */
void go_on(void)
{
    struct gdrc_cm_event e = {SIZE(gdrc_cm_event)};
    struct gdrc_wc wc;
    for (;;) {
        gdrc_poll_cq(ctx, cq, 1, &wc);
        gdrc_cm_get_event(ctx, &e);
    }
}
#endif
