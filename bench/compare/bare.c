// SPDX-License-Identifier: MIT OR Apache-2.0
/*
 * bare: the same messages on the same path with sockets alone: two processes, no library.
 *
 * bare echo ADDRESS         one end: echoes, and serves `bw`, until it is told to end
 * bare lat  ADDRESS PEER    half round trips of a busy echo; with a 20-byte ACK per message,
 *                           -a: after the answer, -b: before it. -r, at both ends: the socket is
 *                           another process's, with which the end shares memory and its core
 * bare bw   ADDRESS PEER    messages in datagrams, a 20-byte ACK per group; -g: GSO and GRO
 * bare put  PEER FILE,
 * bare get  ADDRESS FILE    a file through a TCP socket, by read and write
 * bare hop  CORE CORE       half round trips of a cache line between two processes, each on its
 *                           core: the cost of memory alone; on one core, where they yield: of a
 *                           change of processes
 * bare ring CORE CORE       messages through a ring in memory between the same two: a copy into it
 *                           and one out of it, in pieces of an MTU
 * bare pace CORE [CORE]     arithmetic in processes that share nothing, one on each core: what a
 *                           second core is worth
 *
 * Every datagram has 16 more bytes, for the RoCEv2 header and ICRC. Prints JSON, as perf does.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <netinet/udp.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define HEAD 16u
#define MTU 4096u
#define SEGMENT (MTU + HEAD)
/* Bytes of one GSO call, less than 64 KiB. */
#define GROUP (15u * SEGMENT)
#define ACK 20u
#define BUFFER (1u << 20)
#define WARM_UP 200u
/* Bytes under way that the default receive buffer (208 KiB of memory) holds without a loss. */
#define ROOM (200u << 10)
#define COST_SINGLE (9u << 10)
#define COST_GROUP (4u << 10)
/* Silence after which a datagram counts as lost. */
#define LOST_NS 300000000u
#define SILENCE_NS 5000000000ull
/* Idle time after which a server ends. */
#define IDLE_NS 30000000000ull
/* Most bytes of each size with `-A`. */
#define ALL_BYTES (128u << 20)
#define COPY_CHUNK (128u << 10)

enum { KIND_ECHO = 1, KIND_ECHO_ACK, KIND_ACK_ECHO, KIND_ACK, KIND_DATA, KIND_END };

static uint8_t tx[BUFFER + GROUP], rx[BUFFER + GROUP];

/* A datagram on its way to the process that has the socket, or from it; `bytes` 0: none. */
struct place {
    _Alignas(128) _Atomic uint32_t bytes;
    struct sockaddr_in peer;
    uint8_t data[GROUP];
};

/* Places of each direction: as many bytes as a ring of gdrcore's has. */
#define PLACES 4u

/* Those to that process, then those from it; NULL: the socket is our own. */
static struct place *relay;
/* Places that this process has filled, and that it has emptied. */
static unsigned filled, emptied;

static void die(const char *what)
{
    fprintf(stderr, "bare: %s: %s\n", what, errno ? strerror(errno) : "failed");
    exit(1);
}

static uint64_t now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static struct sockaddr_in address_of(const char *text, uint16_t port)
{
    struct sockaddr_in a = { .sin_family = AF_INET, .sin_port = htons(port) };
    errno = 0;
    if (inet_pton(AF_INET, text, &a.sin_addr) != 1)
        die(text);
    return a;
}

static int open_udp(const char *address, uint16_t port, bool gro)
{
    struct sockaddr_in a = address_of(address, port);
    int one = 1, fd = socket(AF_INET, SOCK_DGRAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (fd < 0 || bind(fd, (struct sockaddr *)&a, sizeof a))
        die("binding the socket");
    if (gro && setsockopt(fd, IPPROTO_UDP, UDP_GRO, &one, sizeof one))
        die("UDP_GRO");
    return fd;
}

/* Not connected, as an RDMA port with many peers is not. */
static void send_by(int fd, const void *data, size_t length, const struct sockaddr_in *to)
{
    while (sendto(fd, data, length, 0, (const struct sockaddr *)to, sizeof *to) < 0)
        if (errno != EAGAIN && errno != ENOBUFS && errno != ECONNREFUSED)
            die("sending");
}

static size_t receive_by(int fd, void *into, size_t room, struct sockaddr_in *from)
{
    socklen_t length = sizeof *from;
    ssize_t n = recvfrom(fd, into, room, 0, (struct sockaddr *)from, &length);
    if (n < 0 && errno != EAGAIN && errno != ECONNREFUSED)
        die("receiving");
    return n < 0 ? 0 : (size_t)n;
}

static void send_to(int fd, const void *data, size_t length, const struct sockaddr_in *to)
{
    if (!relay) {
        send_by(fd, data, length, to);
        return;
    }
    struct place *up = &relay[filled++ % PLACES];
    while (atomic_load_explicit(&up->bytes, memory_order_acquire))
        sched_yield();
    memcpy(up->data, data, length);
    up->peer = *to;
    atomic_store_explicit(&up->bytes, (uint32_t)length, memory_order_release);
}

static size_t receive(int fd, void *into, size_t room, struct sockaddr_in *from)
{
    if (!relay)
        return receive_by(fd, into, room, from);
    struct place *down = &relay[PLACES + emptied % PLACES];
    size_t n = atomic_load_explicit(&down->bytes, memory_order_acquire);
    if (!n) {
        /* Nothing comes before the other process has run. */
        sched_yield();
        return 0;
    }
    emptied++;
    memcpy(into, down->data, n < room ? n : room);
    *from = down->peer;
    atomic_store_explicit(&down->bytes, 0, memory_order_release);
    return n;
}

/* Gives the socket to a process of its own. It yields when it has nothing, and when the end has. */
static void start_relay(int fd)
{
    relay = mmap(NULL, 2 * PLACES * sizeof *relay, PROT_READ | PROT_WRITE,
                 MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (relay == MAP_FAILED)
        die("mmap");
    pid_t child = fork();
    if (child < 0)
        die("fork");
    if (child)
        return;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    for (;;) {
        struct place *up = &relay[emptied % PLACES], *down = &relay[PLACES + filled % PLACES];
        size_t n = atomic_load_explicit(&up->bytes, memory_order_acquire), came = 0;
        if (n) {
            send_by(fd, up->data, n, &up->peer);
            atomic_store_explicit(&up->bytes, 0, memory_order_release);
            emptied++;
        }
        if (!atomic_load_explicit(&down->bytes, memory_order_acquire))
            came = receive_by(fd, down->data, GROUP, &down->peer);
        if (came) {
            atomic_store_explicit(&down->bytes, (uint32_t)came, memory_order_release);
            filled++;
        }
        /* Small answers are waited for; of bulk there may be more. */
        if ((!n && !came) || (came && came < MTU))
            sched_yield();
    }
}

/* Before the end exits, and the other process with it. */
static void finish_relay(void)
{
    for (unsigned i = 0; relay && i < PLACES; i++)
        while (atomic_load_explicit(&relay[i].bytes, memory_order_acquire))
            sched_yield();
}

/*
 * ---- the passive end ----------------------------------------------------------------------------
 */

static int echo(const char *address, uint16_t port, bool relayed)
{
    struct sockaddr_in from;
    uint8_t ack[ACK] = { KIND_ACK };
    uint64_t total = 0, last = now_ns(), acked = 0, step;
    size_t place = 0;
    int fd = open_udp(address, port, true);
    if (relayed)
        start_relay(fd);
    for (uint64_t idle = 0;;) {
        size_t n = receive(fd, rx + place, GROUP, &from);
        if (!n) {
            if (++idle % 4096 == 0 && now_ns() - last > IDLE_NS)
                return errno = 0, die("nobody came"), 1;
            continue;
        }
        if (idle >= 4096)
            last = now_ns();
        idle = 0;
        switch (rx[place]) {
        case KIND_ECHO:
            send_to(fd, rx + place, n, &from);
            break;
        case KIND_ECHO_ACK:
            /*
             * The answer first, as an RDMA stack may send it: the peer does not wait for the ACK.
             */
            send_to(fd, rx + place, n, &from);
            send_to(fd, ack, sizeof ack, &from);
            break;
        case KIND_ACK_ECHO:
            send_to(fd, ack, sizeof ack, &from);
            send_to(fd, rx + place, n, &from);
            break;
        case KIND_DATA:
            /*
             * The second word is the number of bytes that the sender wants acknowledged at once; 0
             * in its first message.
             */
            memcpy(&step, rx + place + 8, sizeof step);
            if (!(step >> 32))
                total = acked = 0;
            total += n;
            if (total - acked >= (uint32_t)step) {
                memcpy(ack + 8, &total, sizeof total);
                acked = total;
                send_to(fd, ack, sizeof ack, &from);
            }
            /* Moves through the buffer as a WRITE does, not over the same cache lines. */
            place = place + n < BUFFER ? place + n : 0;
            break;
        case KIND_END:
            return 0;
        }
    }
}

/*
 * ---- latency
 * ---------------------------------------------------------------------------------------
 */

static int ascending(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return (x > y) - (x < y);
}

/* Same ranks and buckets, eight per doubling, as c-examples/perf/report.c. */
static void report_latency(uint64_t *v, uint64_t count, size_t size)
{
    qsort(v, count, sizeof *v, ascending);
    printf("{\"results\":[{\"bytes\":%zu,\"iterations\":%llu,\"min_us\":%.4f,\"median_us\":%.4f,"
           "\"p99_us\":%.4f,\"p999_us\":%.4f,\"histogram\":[",
           size, (unsigned long long)count, (double)v[0] / 2e3, (double)v[(count - 1) / 2] / 2e3,
           (double)v[(uint64_t)ceil((double)count * 0.99) - 1] / 2e3,
           (double)v[(uint64_t)ceil((double)count * 0.999) - 1] / 2e3);
    for (uint64_t at = 0; at < count;) {
        unsigned log = v[at] > 7 ? 63u - (unsigned)__builtin_clzll(v[at]) : 3;
        uint64_t end = ((v[at] >> (log - 3)) + 1) << (log - 3), from = at;
        while (at < count && v[at] < end)
            at++;
        printf("%s[%.4f,%llu]", from ? "," : "", (double)end / 2e3,
               (unsigned long long)(at - from));
    }
    printf("]}]}\n");
}

static void latency(int fd, const struct sockaddr_in *to, size_t size, uint64_t count, uint8_t kind)
{
    struct sockaddr_in from;
    uint8_t ack[ACK] = { KIND_ACK };
    uint64_t *v = malloc(count * sizeof *v), last = now_ns();
    size_t length = size + HEAD;
    if (!v)
        die("memory");
    tx[0] = kind;
    for (uint64_t i = 0; i < count + WARM_UP; i++) {
        uint64_t idle = 0;
        if (kind == KIND_ACK_ECHO && i)
            send_to(fd, ack, sizeof ack, to);
        send_to(fd, tx, length, to);
        if (kind == KIND_ECHO_ACK && i)
            send_to(fd, ack, sizeof ack, to);
        /* A datagram of this length is the echo; the peer's ACK is shorter. */
        while (receive(fd, rx, GROUP, &from) != length)
            if (++idle % 65536 == 0 && now_ns() - last > SILENCE_NS)
                errno = ETIMEDOUT, die("waiting for the echo");
        uint64_t now = now_ns();
        if (i >= WARM_UP)
            v[i - WARM_UP] = now - last;
        last = now;
    }
    report_latency(v, count, size);
    free(v);
}

/*
 * ---- bandwidth
 * ---------------------------------------------------------------------------------------
 */

struct flow {
    int fd;
    const struct sockaddr_in *to;
    uint64_t sent, acked, lost, moved, idle;
};

static void take_acks(struct flow *f)
{
    struct sockaddr_in from;
    uint8_t in[256];
    uint64_t total;
    size_t n = receive(f->fd, in, sizeof in, &from);
    /* GRO may have joined several; the last one counts. */
    if (n >= ACK && n % ACK == 0) {
        memcpy(&total, in + n - ACK + 8, sizeof total);
        total += f->lost;
        f->acked = total > f->sent ? f->sent : total > f->acked ? total : f->acked;
        f->moved = now_ns();
    } else if (++f->idle % 1024 == 0 && now_ns() - f->moved > LOST_NS) {
        f->lost += f->sent - f->acked;
        f->acked = f->sent;
        f->moved = now_ns();
    }
}

/*
 * Keeps as many bytes under way as fit the peer's receive buffer; the peer acknowledges each
 * quarter of that, or each group.
 */
static void bandwidth(int fd, const struct sockaddr_in *to, size_t size, uint64_t count, bool gso,
                      struct flow *f)
{
    size_t room = gso ? GROUP / SEGMENT * MTU : MTU, full = size < room ? size : room, place = 0;
    size_t unit = full + (full + MTU - 1) / MTU * HEAD,
           cost = unit <= SEGMENT ? COST_SINGLE : unit + COST_GROUP;
    uint64_t window = ROOM / cost * unit, quarter = window / 4 > unit ? window / 4 : unit;
    *f = (struct flow){ .fd = fd, .to = to, .moved = now_ns() };
    for (uint64_t i = 0; i < count; i++) {
        for (size_t left = size; left;) {
            /* Payload and a header per datagram, in one buffer for one call. */
            size_t part = left < room ? left : room, length = part + (part + MTU - 1) / MTU * HEAD;
            uint64_t step = (uint64_t)(f->sent != 0) << 32 | quarter;
            while (f->sent - f->acked + length > window)
                take_acks(f);
            tx[place] = KIND_DATA;
            memcpy(tx + place + 8, &step, sizeof step);
            send_to(fd, tx + place, length, to);
            f->sent += length;
            left -= part;
            place = place + length < BUFFER ? place + length : 0;
        }
    }
    /* The last group may be smaller than an acknowledged quarter. */
    while (f->sent - f->acked >= quarter)
        take_acks(f);
}

static void measure_bandwidth(int fd, const struct sockaddr_in *to, size_t size, uint64_t count,
                              bool gso, bool first)
{
    struct flow f;
    uint64_t start = now_ns(), bytes = count * size;
    bandwidth(fd, to, size, count, gso, &f);
    double seconds = (double)(now_ns() - start) / 1e9;
    bytes -= f.lost < bytes ? f.lost : bytes;
    printf("%s{\"bytes\":%zu,\"messages\":%llu,\"lost\":%llu,\"seconds\":%.6f,\"MB_per_s\":%.2f}",
           first ? "" : ",", size, (unsigned long long)count, (unsigned long long)f.lost, seconds,
           (double)bytes / seconds / 1e6);
    /* Late ACKs must not count for the next run. */
    for (uint64_t end = now_ns() + 3000000; now_ns() < end;)
        take_acks(&f);
}

/*
 * ---- a file through TCP
 * ---------------------------------------------------------------------------------
 */

static void move(int from, int to)
{
    static uint8_t chunk[COPY_CHUNK];
    for (;;) {
        ssize_t n = read(from, chunk, sizeof chunk);
        if (n < 0)
            die("reading");
        if (n == 0)
            return;
        for (ssize_t at = 0; at < n;) {
            ssize_t w = write(to, chunk + at, (size_t)(n - at));
            if (w <= 0)
                die("writing");
            at += w;
        }
    }
}

static int put(const char *peer, uint16_t port, const char *path)
{
    struct sockaddr_in a = address_of(peer, port);
    int fd = socket(AF_INET, SOCK_STREAM, 0), file = open(path, O_RDONLY);
    uint8_t end;
    if (fd < 0 || file < 0 || connect(fd, (struct sockaddr *)&a, sizeof a))
        die(path);
    move(file, fd);
    shutdown(fd, SHUT_WR);
    /* The other end closes when it has written everything. */
    return read(fd, &end, 1) != 0;
}

static int get(const char *address, uint16_t port, const char *path)
{
    struct sockaddr_in a = address_of(address, port);
    int one = 1, fd = socket(AF_INET, SOCK_STREAM, 0),
        file = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0644);
    if (fd < 0 || file < 0 || setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one) ||
        bind(fd, (struct sockaddr *)&a, sizeof a) || listen(fd, 1))
        die(path);
    int conn = accept(fd, NULL, NULL);
    if (conn < 0)
        die("accepting");
    move(conn, file);
    return close(file) != 0;
}

static int by_value(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return (x > y) - (x < y);
}

static void stay_on(const char *core)
{
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET((unsigned)atoi(core) % CPU_SETSIZE, &set);
    if (sched_setaffinity(0, sizeof set, &set))
        die("sched_setaffinity");
}

/* Waits for a value; `yields`: the process that writes it is on this core. */
static void await_value(_Atomic uint64_t *at, uint64_t value, bool yields)
{
    while (atomic_load_explicit(at, memory_order_acquire) != value)
        if (yields)
            sched_yield();
}

/* Batches of 100 round trips, each timed as a whole: reading the clock costs as much as a hop. */
static int hop(const char *own, const char *other, uint64_t count)
{
    enum { BATCH = 100 };
    bool one_core = atoi(own) == atoi(other);
    _Atomic uint64_t *line =
        mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (line == MAP_FAILED)
        die("mmap");
    uint64_t rounds = count / BATCH + 1, all = rounds * BATCH, *took = calloc(rounds, sizeof *took);
    pid_t child = took ? fork() : -1;
    if (child < 0)
        die("fork");
    if (child == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        stay_on(other);
        for (uint64_t i = 1; i <= all; i++) {
            await_value(&line[0], i, one_core);
            atomic_store_explicit(&line[16], i, memory_order_release);
        }
        _exit(0);
    }
    stay_on(own);
    for (uint64_t k = 0, i = 0; k < rounds; k++) {
        uint64_t start = now_ns();
        for (int j = 0; j < BATCH; j++) {
            atomic_store_explicit(&line[0], ++i, memory_order_release);
            await_value(&line[16], i, one_core);
        }
        took[k] = now_ns() - start;
    }
    int status;
    waitpid(child, &status, 0);
    qsort(took, rounds, sizeof *took, by_value);
    double unit = 2e3 * BATCH;
    printf("{\"results\":[{\"min_us\":%.4f,\"median_us\":%.4f,\"p99_us\":%.4f}]}\n",
           (double)took[0] / unit, (double)took[rounds / 2] / unit,
           (double)took[rounds * 99 / 100] / unit);
    return status != 0;
}

/* Some hundreds of instructions in registers and the first-level cache, four chains at a time. */
static void work(uint64_t x[4], uint64_t table[4][256])
{
    for (int i = 0; i < 16; i++)
        for (int k = 0; k < 4; k++) {
            x[k] ^= x[k] << 13;
            x[k] ^= x[k] >> 7;
            x[k] ^= x[k] << 17;
            table[k][x[k] % 256] += x[k];
        }
}

/* Does the work so many times. Returns the time that it took. */
static uint64_t work_alone(const char *core, uint64_t count, _Atomic int *ready, int processes)
{
    static uint64_t table[4][256];
    uint64_t x[4] = { 1, 2, 3, 4 };
    stay_on(core);
    atomic_fetch_add(ready, 1);
    while (atomic_load(ready) < processes)
        ;
    uint64_t start = now_ns();
    for (uint64_t i = 0; i < count; i++)
        work(x, table);
    uint64_t took = now_ns() - start;
    /* Used, so that it is done. */
    return took + (x[0] + table[3][x[1] % 256] == 1);
}

static int pace(const char *one, const char *two, uint64_t count)
{
    struct {
        _Atomic int ready;
        uint64_t took[2];
    } *both = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (both == MAP_FAILED)
        die("mmap");
    pid_t child = two ? fork() : 0;
    if (child < 0)
        die("fork");
    if (two && child == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        both->took[1] = work_alone(two, count, &both->ready, 2);
        _exit(0);
    }
    both->took[0] = work_alone(one, count, &both->ready, two ? 2 : 1);
    int status = 0;
    if (two)
        waitpid(child, &status, 0);
    double rate = 1e3 * (double)count / (double)both->took[0];
    if (two)
        rate += 1e3 * (double)count / (double)both->took[1];
    printf("{\"results\":[{\"Mmsg_per_s\":%.4f}]}\n", rate);
    return status != 0;
}

#define RING_BYTES (256u << 10)

/* What both ends of a ring share, and on pages of its own the ring. */
struct ring {
    _Alignas(128) _Atomic uint64_t head;
    _Alignas(128) _Atomic uint64_t tail;
    _Alignas(4096) uint8_t bytes[RING_BYTES];
};

/* Copies all of a message of `size` bytes out of the ring, `count` times. */
static void drain(struct ring *r, uint8_t *to, size_t size, uint64_t count)
{
    uint64_t tail = 0, head = 0;
    for (uint64_t i = 0; i < count; i++) {
        for (size_t at = 0; at < size; at += MTU, tail += MTU) {
            while (head == tail)
                head = atomic_load_explicit(&r->head, memory_order_acquire);
            memcpy(to + at, r->bytes + tail % RING_BYTES, MTU);
            atomic_store_explicit(&r->tail, tail + MTU, memory_order_release);
        }
    }
}

static int ring(const char *own, const char *other, size_t size, uint64_t count)
{
    struct ring *r =
        mmap(NULL, sizeof *r, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    size = (size + MTU - 1) / MTU * MTU;
    uint8_t *message = aligned_alloc(4096, size);
    if (r == MAP_FAILED || !message)
        die("memory");
    memset(message, 5, size);
    memset(r->bytes, 0, RING_BYTES);
    pid_t child = fork();
    if (child < 0)
        die("fork");
    if (child == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        stay_on(other);
        memset(message, 0, size);
        drain(r, message, size, count);
        _exit(0);
    }
    stay_on(own);
    uint64_t head = 0, tail = 0, start = now_ns();
    for (uint64_t i = 0; i < count; i++) {
        for (size_t at = 0; at < size; at += MTU, head += MTU) {
            while (head - tail > RING_BYTES - MTU)
                tail = atomic_load_explicit(&r->tail, memory_order_acquire);
            memcpy(r->bytes + head % RING_BYTES, message + at, MTU);
            atomic_store_explicit(&r->head, head + MTU, memory_order_release);
        }
    }
    while (atomic_load_explicit(&r->tail, memory_order_acquire) != head) {}
    uint64_t took = now_ns() - start;
    int status;
    waitpid(child, &status, 0);
    printf("{\"results\":[{\"MB_per_s\":%.1f}]}\n",
           (double)size * (double)count * 1e3 / (double)took);
    return status != 0;
}

int main(int argc, char **argv)
{
    uint64_t count = 1000;
    size_t size = 64;
    uint16_t port = 4793;
    uint8_t kind = KIND_ECHO;
    bool gso = false, all = false, keep = false, relayed = false;
    for (int c; (c = getopt(argc, argv, "p:s:n:abgrAk")) != -1;) {
        switch (c) {
        case 'p': port = (uint16_t)atoi(optarg); break;
        case 's': size = (size_t)strtoull(optarg, NULL, 10); break;
        case 'n': count = strtoull(optarg, NULL, 10); break;
        case 'a': kind = KIND_ECHO_ACK; break;
        case 'b': kind = KIND_ACK_ECHO; break;
        case 'g': gso = true; break;
        case 'r': relayed = true; break;
        case 'A': all = true; break;
        case 'k': keep = true; break;
        default: return 2;
        }
    }
    int left = argc - optind;
    const char *what = left ? argv[optind] : "", *one = left > 1 ? argv[optind + 1] : "",
               *two = left > 2 ? argv[optind + 2] : "";
    if (left == 2 && !strcmp(what, "echo"))
        return echo(one, port, relayed);
    if (left == 3 && !strcmp(what, "hop") && count && count <= 1u << 24)
        return hop(one, two, count);
    if ((left == 2 || left == 3) && !strcmp(what, "pace") && count)
        return pace(one, left == 3 ? two : NULL, count);
    if (left == 3 && !strcmp(what, "ring") && count && size && size <= 1u << 30)
        return ring(one, two, size, count);
    if (left == 3 && !strcmp(what, "put"))
        return put(one, port, two);
    if (left == 3 && !strcmp(what, "get"))
        return get(one, port, two);
    if (left != 3 || (strcmp(what, "lat") && strcmp(what, "bw")) || !size || !count ||
        count > 1u << 24 || (*what == 'l' && size > 32768)) {
        fprintf(stderr, "usage: bare [-p PORT] [-r] echo ADDRESS\n"
                        "       bare [-p PORT] get ADDRESS FILE | put PEER FILE\n"
                        "       bare [-n COUNT] hop CORE CORE\n"
                        "       bare [-s BYTES] [-n COUNT] ring CORE CORE\n"
                        "       bare [-n COUNT] pace CORE [CORE]\n"
                        "       bare [-p PORT] [-s BYTES] [-n COUNT] [-a | -b | -g] [-r] [-A] [-k] "
                        "lat|bw ADDRESS PEER\n"
                        "-a, -b: ACKs after or before the answer, -g: GSO, -r: through a process "
                        "more, -A: all sizes from 64 up to -s, -k: the other end lives on\n");
        return 2;
    }
    struct sockaddr_in to = address_of(two, port);
    int fd = open_udp(one, port, true), segment = SEGMENT;
    memset(tx, 5, sizeof tx);
    if (gso && setsockopt(fd, IPPROTO_UDP, UDP_SEGMENT, &segment, sizeof segment))
        die("UDP_SEGMENT");
    if (relayed)
        start_relay(fd);
    if (*what == 'l') {
        latency(fd, &to, size, count, kind);
    } else {
        struct flow warm;
        bandwidth(fd, &to, size < MTU ? size : MTU, 256, gso, &warm);
        for (uint64_t until = now_ns() + 3000000; now_ns() < until;)
            take_acks(&warm);
        printf("{\"results\":[");
        size_t from = all && size > 64 ? 64 : size;
        for (size_t s = from; s <= size; s *= 2) {
            uint64_t n = all && count * s > ALL_BYTES ? ALL_BYTES / s : count;
            measure_bandwidth(fd, &to, s, n ? n : 1, gso, s == from);
        }
        printf("]}\n");
    }
    uint8_t end[HEAD] = { KIND_END };
    for (int i = 0; i < 3 && !keep; i++)
        send_to(fd, end, sizeof end, &to);
    finish_relay();
    return 0;
}
