/*
 * SPDX-License-Identifier: MIT OR Apache-2.0
 *
 * /dev/infiniband/umad<n> as a program sees it that makes libibumad's calls by itself: registration
 * of agents, queries to the port, requests that nobody answers, and writes of any bytes. Arguments:
 * the file. Prints "ok".
 */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdint.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "check.h"

struct head {
    uint32_t id, status, timeout_ms, retries, length;
    uint32_t qpn, qkey;
    uint16_t lid;
    uint8_t sl, path_bits, grh_present, gid_index, hop_limit, traffic_class, gid[16];
    uint32_t flow_label;
    uint16_t pkey_index;
    uint8_t reserved[6];
};
enum { HEAD = sizeof(struct head), OLD_HEAD = 56, MAD = 256 };
struct agent {
    uint32_t id, methods[4];
    uint8_t qpn, class, version, oui[3], rmpp;
};
#define REGISTER _IOWR(0x1b, 1, struct agent)
#define UNREGISTER _IOW(0x1b, 2, uint32_t)
#define ENABLE_PKEY _IO(0x1b, 3)

static int refused(int fd, unsigned long request, void *argument, int error)
{
    errno = 0;
    return ioctl(fd, request, argument) == -1 && errno == error;
}

static uint32_t agent_of(int fd, int class, uint32_t methods)
{
    struct agent a = {.qpn = 1, .class = class, .version = 1, .methods = {methods}};
    CHECK(ioctl(fd, REGISTER, &a) == 0);
    return a.id;
}

/* An address of this host that no device has. */
static const unsigned char NOBODY[16] = {[10] = 0xff, 0xff, 127, 255, 255, 254};

static void ask(int fd, uint32_t agent, int class, int attribute, int port, int timeout_ms,
                const unsigned char *to)
{
    unsigned char bytes[HEAD + MAD] = {0};
    struct head h = {.id = agent, .timeout_ms = timeout_ms, .retries = 2, .grh_present = !!to};
    if (to)
        memcpy(h.gid, to, sizeof h.gid);
    memcpy(bytes, &h, HEAD);
    unsigned char *mad = bytes + HEAD;
    mad[0] = 1, mad[1] = class, mad[2] = 1, mad[3] = 1, mad[15] = 42, mad[17] = attribute;
    mad[65] = port;
    CHECK(write(fd, bytes, sizeof bytes) == sizeof bytes);
}

/* What comes back; its length. */
static ssize_t answer(int fd, unsigned char *bytes, size_t room)
{
    struct pollfd p = {.fd = fd, .events = POLLIN};
    CHECK(poll(&p, 1, -1) == 1);
    return read(fd, bytes, room);
}

static uint32_t status_of(const unsigned char *bytes)
{
    struct head h;
    memcpy(&h, bytes, sizeof h);
    return h.status;
}

static void registrations(int fd)
{
    struct agent a = {.qpn = 2, .class = 4};
    CHECK(refused(fd, REGISTER, &a, EINVAL));
    a.qpn = 1;
    a.class = 7;
    CHECK(refused(fd, REGISTER, &a, EINVAL));
    CHECK(refused(fd, REGISTER, (void *)8, EFAULT) && refused(fd, UNREGISTER, (void *)8, EFAULT));
    CHECK(refused(fd, _IO(0x1b, 9), NULL, ENOTTY) && refused(fd, _IO(0x1c, 3), NULL, ENOTTY));
    uint32_t id = 5;
    CHECK(refused(fd, UNREGISTER, &id, EINVAL));
    id = UINT32_MAX;
    CHECK(refused(fd, UNREGISTER, &id, EINVAL));
    for (uint32_t n = 0; n < 32; n++)
        CHECK(agent_of(fd, 4, 0) == n);
    a.class = 4;
    CHECK(refused(fd, REGISTER, &a, ENOMEM));
    for (id = 0; id < 32; id++)
        CHECK(ioctl(fd, UNREGISTER, &id) == 0);
    /* Two agents do not get the same requests. */
    id = agent_of(fd, 0x32, 2);
    a = (struct agent){.qpn = 1, .class = 0x32, .methods = {6}};
    CHECK(refused(fd, REGISTER, &a, EINVAL));
    CHECK(ioctl(fd, UNREGISTER, &id) == 0);
}

static void queries(int fd)
{
    unsigned char bytes[1024];
    uint32_t counters = agent_of(fd, 4, 0), pings = agent_of(fd, 0x32, 0);
    ask(fd, counters, 4, 0x12, 1, 1000, NULL);
    CHECK(answer(fd, bytes, sizeof bytes) == HEAD + MAD && status_of(bytes) == 0);
    CHECK(bytes[HEAD + 3] == 0x81 && bytes[HEAD + 15] == 42 && bytes[HEAD + 4] == 0);
    CHECK(bytes[HEAD + 65] == 1);
    /* No such port. */
    ask(fd, counters, 4, 0x12, 7, 1000, NULL);
    CHECK(answer(fd, bytes, sizeof bytes) == HEAD + MAD && bytes[HEAD + 5] == 0x1c);
    /* An agent that is not registered. */
    ask(fd, 31, 4, 0x12, 1, 1000, NULL);
    CHECK(answer(fd, bytes, sizeof bytes) > HEAD && status_of(bytes) == EINVAL);
    ask(fd, UINT32_MAX, 4, 0x12, 1, 1000, NULL);
    CHECK(answer(fd, bytes, sizeof bytes) > HEAD && status_of(bytes) == EINVAL);
    /* Nobody is there: the request comes back by its time-out. */
    ask(fd, pings, 0x32, 0, 0, 1, NOBODY);
    CHECK(answer(fd, bytes, sizeof bytes) == HEAD + 24 && status_of(bytes) == ETIMEDOUT);
    CHECK(bytes[HEAD + 15] == 42);
    /* A request without a time-out gets no answer; the next one does. */
    ask(fd, pings, 0x32, 0, 0, 0, NOBODY);
    ask(fd, counters, 4, 0x1d, 1, 1000, NULL);
    do
        CHECK(answer(fd, bytes, sizeof bytes) > HEAD);
    while (status_of(bytes) == ETIMEDOUT);
    CHECK(bytes[HEAD + 3] == 0x81 && bytes[HEAD + 17] == 0x1d);
}

/* Any bytes of any length: the file goes on. */
static void anything(int fd)
{
    unsigned char bytes[2 * (HEAD + MAD)];
    uint32_t x = 1;
    for (size_t len = 1; len < sizeof bytes; len += 3) {
        for (size_t i = 0; i < len; i++)
            bytes[i] = (x = x * 1664525 + 1013904223) >> 24;
        /* An agent that exists, for every other one. */
        if (len % 2)
            memset(bytes, 0, len < 4 ? len : 4);
        ssize_t n = write(fd, bytes, len);
        CHECK(n == (ssize_t)len || (n < 0 && errno == EAGAIN));
        while (read(fd, bytes, sizeof bytes) > 0)
            ;
        CHECK(errno == EAGAIN);
    }
}

/* How many are open. */
static int descriptors(void)
{
    int n = 0;
    for (int fd = 0; fd < 1024; fd++)
        n += fcntl(fd, F_GETFD) >= 0;
    return n;
}

int main(int argc, char **argv)
{
    CHECK(argc == 2);
    CHECK(open("/dev/infiniband/umad63", O_RDWR) == -1 && errno == ENOENT);
    int old = open(argv[1], O_RDWR), fd = open(argv[1], O_RDWR | O_NONBLOCK | O_CLOEXEC);
    CHECK(old >= 0 && fd >= 0 && fcntl(fd, F_GETFD) == FD_CLOEXEC && fcntl(old, F_GETFD) == 0);
    CHECK(fcntl(fd, F_GETFL) & O_NONBLOCK && !(fcntl(old, F_GETFL) & O_NONBLOCK));
    unsigned char bytes[HEAD + MAD];
    CHECK(read(fd, bytes, sizeof bytes) == -1 && errno == EAGAIN);
    CHECK(ioctl(fd, ENABLE_PKEY) == 0);
    registrations(fd);
    queries(fd);
    anything(fd);

    /* The shorter head of programs that do not ask for P_Key indexes. */
    uint32_t id = agent_of(old, 4, 0);
    memset(bytes, 0, sizeof bytes);
    memcpy(bytes, &id, 4);
    memcpy(bytes + OLD_HEAD, (unsigned char[]){1, 4, 1, 1}, 4);
    bytes[OLD_HEAD + 17] = 1;
    CHECK(write(old, bytes, OLD_HEAD + MAD) == OLD_HEAD + MAD);
    CHECK(answer(old, bytes, sizeof bytes) == OLD_HEAD + MAD && bytes[OLD_HEAD + 3] == 0x81);

    /* A child has the descriptor, and files of its own. */
    pid_t child = fork();
    if (child == 0) {
        CHECK(refused(fd, ENABLE_PKEY, NULL, ENOTTY));
        int own = open(argv[1], O_RDWR);
        CHECK(own >= 0 && ioctl(own, ENABLE_PKEY) == 0);
        queries(own);
        _exit(0);
    }
    int status;
    CHECK(waitpid(child, &status, 0) == child && status == 0);
    /* A copy keeps the file; another file of the same number is another one. */
    int copy = dup(fd);
    CHECK(close(fd) == 0 && ioctl(copy, ENABLE_PKEY) == 0 && close(copy) == 0);
    int before = descriptors();
    for (int n = 0; n < 300; n++) {
        fd = open(argv[1], O_RDWR);
        CHECK(fd >= 0 && ioctl(fd, ENABLE_PKEY) == 0 && agent_of(fd, 0x32, 0) == 0);
        CHECK(close(fd) == 0);
    }
    /* The library closes its own ends. */
    while (descriptors() > before)
        usleep(1000);
    puts("ok");
    return 0;
}
