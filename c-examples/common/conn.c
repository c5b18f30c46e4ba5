// SPDX-License-Identifier: MIT OR Apache-2.0
/*
 * The side channel: framed messages over TCP or a Unix socket. Sockets never block; every wait has
 * a deadline, runs the engine, and ends when the peer goes away or the user presses Ctrl-C.
 */
#include "gx.h"

#include <errno.h>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <arpa/inet.h>
#include <stdarg.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#define MAGIC 0x47445258u /* "GDRX" */
#define SPIN_NS 50000u

void gx_put16(uint8_t *at, uint16_t v) { at[0] = (uint8_t)(v >> 8), at[1] = (uint8_t)v; }
void gx_put32(uint8_t *at, uint32_t v)
{
    gx_put16(at, (uint16_t)(v >> 16)), gx_put16(at + 2, (uint16_t)v);
}
void gx_put64(uint8_t *at, uint64_t v)
{
    gx_put32(at, (uint32_t)(v >> 32)), gx_put32(at + 4, (uint32_t)v);
}
uint16_t gx_get16(const uint8_t *at) { return (uint16_t)(at[0] << 8 | at[1]); }
uint32_t gx_get32(const uint8_t *at) { return (uint32_t)gx_get16(at) << 16 | gx_get16(at + 2); }
uint64_t gx_get64(const uint8_t *at) { return (uint64_t)gx_get32(at) << 32 | gx_get32(at + 4); }

static int ms_left(uint64_t deadline_ns)
{
    uint64_t now = gx_now_ns();
    return now >= deadline_ns ? 0 : (int)((deadline_ns - now + 999999u) / 1000000u);
}

static uint64_t deadline_after(int timeout_ms)
{
    return timeout_ms < 0 ? UINT64_MAX : gx_now_ns() + (uint64_t)timeout_ms * 1000000u;
}

/*
 * While the peer reads or writes our memory the engine has work every few microseconds, so sleeping
 * in between would cost more than polling. Returns true when the socket is ready.
 */
static bool spin_socket(int fd, short events, gdrc_context *ctx)
{
    uint64_t now = gx_now_ns(), busy = now;
    struct pollfd p = { .fd = fd, .events = events };
    for (unsigned round = 0; now - busy < SPIN_NS; round++) {
        if (gdrc_progress(ctx) > 0)
            busy = now;
        if (round % 8 == 0 && poll(&p, 1, 0) > 0)
            return true;
        now = gx_now_ns();
    }
    return false;
}

/* Waits for the socket while the engine runs. 0, -ETIMEDOUT, -EINTR. */
static int wait_socket(int fd, short events, gdrc_context *ctx, uint64_t deadline)
{
    if (ctx && spin_socket(fd, events, ctx))
        return 0;
    for (;;) {
        struct pollfd p = { .fd = fd, .events = events };
        int left = deadline == UINT64_MAX ? -1 : ms_left(deadline);
        int ready = gx_sleep(ctx, NULL, &p, 1, left);
        if (ready < 0)
            return ready;
        if (p.revents)
            return 0;
        if (left == 0)
            return -ETIMEDOUT;
    }
}

/* Converts host and port to an address; names are looked up. */
static int resolve(const char *host, uint16_t port, bool passive, struct sockaddr_storage *out,
                   socklen_t *length)
{
    struct addrinfo hints, *found = NULL;
    char service[8];
    memset(&hints, 0, sizeof hints);
    hints.ai_socktype = SOCK_STREAM;
    hints.ai_flags = AI_NUMERICSERV | (passive ? AI_PASSIVE : 0);
    snprintf(service, sizeof service, "%u", port);
    int err = getaddrinfo(host, service, &hints, &found);
    if (err) {
        gx_error(
            "Give an IPv4 or IPv6 address (link-local ones with %zone), or a name that resolves.",
            "address '%s': %s", host, gai_strerror(err));
        return -EADDRNOTAVAIL;
    }
    memcpy(out, found->ai_addr, found->ai_addrlen);
    *length = found->ai_addrlen;
    freeaddrinfo(found);
    return 0;
}

static void format_peer(char *out, size_t size, const struct sockaddr *address, socklen_t length)
{
    char host[72], service[8];
    if (getnameinfo(address, length, host, sizeof host, service, sizeof service,
                    NI_NUMERICHOST | NI_NUMERICSERV))
        snprintf(out, size, "(unknown)");
    else
        snprintf(out, size, strchr(host, ':') ? "[%s]:%s" : "%s:%s", host, service);
}

/*
 * Messages are small and awaited, so they are not delayed; a host that disappeared is noticed
 * within half a minute.
 */
static void tune(int fd)
{
    int on = 1, idle = 10, every = 5, count = 4;
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof on);
    setsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &idle, sizeof idle);
    setsockopt(fd, IPPROTO_TCP, TCP_KEEPINTVL, &every, sizeof every);
    setsockopt(fd, IPPROTO_TCP, TCP_KEEPCNT, &count, sizeof count);
}

int gx_tcp_listen(const char *host, uint16_t port)
{
    struct sockaddr_storage address;
    socklen_t length;
    int err = resolve(host, port, true, &address, &length);
    if (err)
        return err;
    int on = 1, fd = socket(address.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0)
        err = -errno;
    else if (setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on) < 0 ||
             bind(fd, (struct sockaddr *)&address, length) < 0 || listen(fd, 64) < 0)
        err = -errno;
    if (err) {
        const char *hint =
            err == -EADDRINUSE
                ? "Another program has this port: stop it, or choose another with -p."
            : err == -EADDRNOTAVAIL ? "This machine has no such address: see 'ip address'."
            : err == -EACCES        ? "Ports below 1024 need privileges: choose another with -p."
                                    : NULL;
        gx_error(hint, "cannot listen on %s port %u: %s", host, port, strerror(-err));
        if (fd >= 0)
            close(fd);
        return err;
    }
    return fd;
}

static int try_connect(struct gx_conn *conn, const struct sockaddr_storage *to, socklen_t length,
                       const char *local, uint64_t deadline)
{
    int fd = socket(to->ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0)
        return -errno;
    int err = 0;
    if (local) {
        struct sockaddr_storage from;
        socklen_t from_length;
        err = resolve(local, 0, false, &from, &from_length);
        /* If the device is IPv6 and the side channel IPv4, the system chooses the source. */
        if (!err && from.ss_family == to->ss_family &&
            bind(fd, (struct sockaddr *)&from, from_length) < 0)
            err = -errno;
    }
    if (!err && connect(fd, (const struct sockaddr *)to, length) < 0 && errno != EINPROGRESS)
        err = -errno;
    if (!err)
        err = wait_socket(fd, POLLOUT, conn->ctx, deadline);
    if (!err) {
        int soft = 0;
        socklen_t size = sizeof soft;
        getsockopt(fd, SOL_SOCKET, SO_ERROR, &soft, &size);
        err = -soft;
    }
    if (err) {
        close(fd);
        return err;
    }
    tune(fd);
    char peer[96];
    format_peer(peer, sizeof peer, (const struct sockaddr *)to, length);
    gx_conn_init(conn, fd, peer, conn->ctx);
    return 0;
}

int gx_tcp_connect(struct gx_conn *conn, const char *host, uint16_t port, const char *local,
                   int timeout_ms)
{
    struct sockaddr_storage to;
    socklen_t length;
    gx_conn_init(conn, -1, host, conn->ctx);
    int err = resolve(host, port, false, &to, &length);
    if (err)
        return err;
    uint64_t deadline = deadline_after(timeout_ms);
    /* Programs of a demo start in any order, so a refused connection is retried. */
    while ((err = try_connect(conn, &to, length, local, deadline)) == -ECONNREFUSED &&
           ms_left(deadline) > 0) {
        int slept = gx_sleep(conn->ctx, NULL, NULL, 0, 100);
        if (slept < 0) {
            err = slept;
            break;
        }
    }
    if (err && err != -EINTR)
        gx_error(err == -ECONNREFUSED ? "Nothing listens there: start the other side first, and "
                                        "compare address and port (-p)."
                 : err == -ETIMEDOUT
                     ? "No answer: compare the address, and look for a firewall on the way."
                     : "Compare the address with the one that the other side printed.",
                 "cannot connect to %s port %u: %s", host, port, strerror(-err));
    return err;
}

int gx_accept(int listener, struct gx_conn *conn, gdrc_context *ctx)
{
    struct sockaddr_storage from;
    socklen_t length = sizeof from;
    char peer[96] = "a local process";
    int fd = accept4(listener, (struct sockaddr *)&from, &length, SOCK_CLOEXEC | SOCK_NONBLOCK);
    if (fd < 0)
        /* A connection that was reset while it waited is no error of the listener. */
        return errno == ECONNABORTED || errno == EINTR || errno == EPROTO ? -EAGAIN : -errno;
    if (from.ss_family == AF_INET || from.ss_family == AF_INET6) {
        tune(fd);
        format_peer(peer, sizeof peer, (struct sockaddr *)&from, length);
    }
    gx_conn_init(conn, fd, peer, ctx);
    return 0;
}

int gx_conn_local_address(const struct gx_conn *conn, char *out, size_t size)
{
    struct sockaddr_storage own;
    socklen_t length = sizeof own;
    if (getsockname(conn->fd, (struct sockaddr *)&own, &length) < 0)
        return -errno;
    return getnameinfo((struct sockaddr *)&own, length, out, (socklen_t)size, NULL, 0,
                       NI_NUMERICHOST)
               ? -EINVAL
               : 0;
}

static int unix_address(const char *path, struct sockaddr_un *out)
{
    memset(out, 0, sizeof *out);
    out->sun_family = AF_UNIX;
    if (!*path || strlen(path) >= sizeof out->sun_path) {
        gx_error("A Unix socket's path has at most 107 bytes: choose a shorter one with -s.",
                 "socket path '%s' is too long", path);
        return -ENAMETOOLONG;
    }
    strcpy(out->sun_path, path);
    return 0;
}

/* True if the socket file exists but has no listener. */
static bool is_stale(const struct sockaddr_un *address)
{
    struct stat st;
    if (lstat(address->sun_path, &st) < 0 || !S_ISSOCK(st.st_mode))
        return false;
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    bool stale = fd >= 0 && connect(fd, (const struct sockaddr *)address, sizeof *address) < 0 &&
                 errno == ECONNREFUSED;
    if (fd >= 0)
        close(fd);
    return stale;
}

int gx_unix_listen(const char *path, mode_t mode)
{
    struct sockaddr_un address;
    int err = unix_address(path, &address);
    if (err)
        return err;
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0)
        err = -errno;
    else {
        if (is_stale(&address))
            unlink(path);
        /*
         * The file must never be accessible to more users than `mode` allows, not even between bind
         * and chmod.
         */
        mode_t old = umask(0177);
        if (bind(fd, (struct sockaddr *)&address, sizeof address) < 0)
            err = -errno;
        umask(old);
        if (!err && (chmod(path, mode) < 0 || listen(fd, 16) < 0)) {
            err = -errno;
            unlink(path);
        }
    }
    if (err) {
        gx_error(err == -EADDRINUSE
                     ? "Another router serves this path, or the file is no socket: choose another "
                       "with -s."
                     : "The folder must exist and be writable: choose another path with -s.",
                 "cannot listen on socket %s: %s", path, strerror(-err));
        if (fd >= 0)
            close(fd);
        return err;
    }
    return fd;
}

int gx_unix_connect(struct gx_conn *conn, const char *path, int timeout_ms)
{
    struct sockaddr_un address;
    gx_conn_init(conn, -1, path, conn->ctx);
    int err = unix_address(path, &address);
    if (err)
        return err;
    uint64_t deadline = deadline_after(timeout_ms);
    for (;;) {
        int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
        if (fd < 0) {
            err = -errno;
            break;
        }
        if (connect(fd, (struct sockaddr *)&address, sizeof address) == 0) {
            gx_conn_init(conn, fd, path, conn->ctx);
            return 0;
        }
        err = -errno;
        close(fd);
        bool not_yet = err == -ENOENT || err == -ECONNREFUSED || err == -EAGAIN;
        if (!not_yet || ms_left(deadline) == 0)
            break;
        int slept = gx_sleep(conn->ctx, NULL, NULL, 0, 100);
        if (slept < 0) {
            err = slept;
            break;
        }
    }
    if (err != -EINTR)
        gx_error(err == -EACCES ? "The router serves its own user only: run as that user, or start "
                                  "it with --any-user."
                                : "Start the router first, and give both the same path with -s.",
                 "cannot connect to socket %s: %s", path, strerror(-err));
    return err;
}

void gx_conn_init(struct gx_conn *conn, int fd, const char *peer, gdrc_context *ctx)
{
    conn->fd = fd;
    conn->passed_fd = -1;
    conn->ctx = ctx;
    conn->hangup = false;
    conn->have = 0;
    snprintf(conn->peer, sizeof conn->peer, "%s", peer);
}

void gx_conn_close(struct gx_conn *conn)
{
    if (conn->fd >= 0)
        close(conn->fd);
    if (conn->passed_fd >= 0)
        close(conn->passed_fd);
    conn->fd = conn->passed_fd = -1;
    conn->have = 0;
}

static ssize_t send_piece(int fd, const void *bytes, size_t length, int pass_fd)
{
    union {
        struct cmsghdr align;
        char bytes[CMSG_SPACE(sizeof(int))];
    } control;
    struct iovec piece = { .iov_base = (void *)(uintptr_t)bytes, .iov_len = length };
    struct msghdr message;
    memset(&message, 0, sizeof message);
    message.msg_iov = &piece;
    message.msg_iovlen = 1;
    if (pass_fd >= 0) {
        memset(&control, 0, sizeof control);
        message.msg_control = control.bytes;
        message.msg_controllen = sizeof control.bytes;
        struct cmsghdr *c = CMSG_FIRSTHDR(&message);
        c->cmsg_level = SOL_SOCKET;
        c->cmsg_type = SCM_RIGHTS;
        c->cmsg_len = CMSG_LEN(sizeof(int));
        memcpy(CMSG_DATA(c), &pass_fd, sizeof pass_fd);
    }
    return sendmsg(fd, &message, MSG_NOSIGNAL);
}

int gx_conn_send(struct gx_conn *conn, unsigned type, const void *body, size_t length, int pass_fd,
                 const char *what)
{
    uint8_t out[GX_HEADER_BYTES + GX_BODY_MAX];
    int err = length > GX_BODY_MAX ? -EMSGSIZE : conn->fd < 0 ? -ENOTCONN : 0;
    if (!err) {
        gx_put32(out, MAGIC);
        gx_put16(out + 4, GX_PROTOCOL_VERSION);
        gx_put16(out + 6, (uint16_t)type);
        gx_put32(out + 8, (uint32_t)length);
        gx_put32(out + 12, 0);
        if (length)
            memcpy(out + GX_HEADER_BYTES, body, length);
        size_t total = GX_HEADER_BYTES + length, done = 0;
        uint64_t deadline = deadline_after(GX_TIMEOUT_MS);
        while (!err && done < total) {
            ssize_t n = send_piece(conn->fd, out + done, total - done, done ? -1 : pass_fd);
            if (n >= 0)
                done += (size_t)n;
            else if (errno == EAGAIN)
                err = wait_socket(conn->fd, POLLOUT, conn->ctx, deadline);
            else if (errno != EINTR)
                err = -errno;
        }
    }
    if (err && what && err != -EINTR)
        gx_error("The other side has gone: its own output says why.", "sending %s to %s: %s", what,
                 conn->peer, strerror(-err));
    return err;
}

void gx_conn_send_error(struct gx_conn *conn, const char *fmt, ...)
{
    char text[512];
    va_list args;
    va_start(args, fmt);
    int n = vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    if (n > 0)
        gx_conn_send(conn, GX_MSG_ERROR, text,
                     (size_t)n < sizeof text ? (size_t)n : sizeof text - 1, -1, NULL);
}

/*
 * Keeps the first descriptor of a message and closes all others, so that a peer cannot fill our
 * table.
 */
static void keep_descriptor(struct gx_conn *conn, struct msghdr *message)
{
    for (struct cmsghdr *c = CMSG_FIRSTHDR(message); c; c = CMSG_NXTHDR(message, c)) {
        if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS)
            continue;
        size_t count = (c->cmsg_len - CMSG_LEN(0)) / sizeof(int);
        for (size_t i = 0; i < count; i++) {
            int fd;
            memcpy(&fd, CMSG_DATA(c) + i * sizeof fd, sizeof fd);
            if (conn->passed_fd < 0)
                conn->passed_fd = fd;
            else
                close(fd);
        }
    }
}

int gx_conn_pump(struct gx_conn *conn)
{
    while (!conn->hangup && conn->have < sizeof conn->in) {
        union {
            struct cmsghdr align;
            char bytes[CMSG_SPACE(4 * sizeof(int))];
        } control;
        struct iovec piece = {
            .iov_base = conn->in + conn->have,
            .iov_len = sizeof conn->in - conn->have,
        };
        struct msghdr message;
        memset(&message, 0, sizeof message);
        message.msg_iov = &piece;
        message.msg_iovlen = 1;
        message.msg_control = control.bytes;
        message.msg_controllen = sizeof control.bytes;
        ssize_t n = recvmsg(conn->fd, &message, MSG_CMSG_CLOEXEC);
        if (n > 0) {
            keep_descriptor(conn, &message);
            conn->have += (size_t)n;
        } else if (n < 0 && errno == EAGAIN) {
            return 0;
        } else if (n == 0 || errno != EINTR) {
            conn->hangup = true;
        }
    }
    return conn->hangup && conn->have < GX_HEADER_BYTES ? -ECONNRESET : 0;
}

int gx_conn_take(struct gx_conn *conn, unsigned *type, void *body, size_t capacity)
{
    if (conn->have < GX_HEADER_BYTES) {
        /*
         * Fails at the first wrong byte: a peer that sends a line of text may never send a 16-byte
         * header.
         */
        uint8_t magic[4];
        gx_put32(magic, MAGIC);
        return memcmp(conn->in, magic, conn->have < 4 ? conn->have : 4) ? -EPROTO
               : conn->hangup                                           ? -ECONNRESET
                                                                        : -EAGAIN;
    }
    uint32_t length = gx_get32(conn->in + 8);
    if (gx_get32(conn->in) != MAGIC || gx_get16(conn->in + 4) != GX_PROTOCOL_VERSION ||
        length > GX_BODY_MAX || length > capacity)
        return -EPROTO;
    size_t whole = GX_HEADER_BYTES + length;
    if (conn->have < whole)
        return conn->hangup ? -ECONNRESET : -EAGAIN;
    *type = gx_get16(conn->in + 6);
    if (length)
        memcpy(body, conn->in + GX_HEADER_BYTES, length);
    conn->have -= whole;
    memmove(conn->in, conn->in + whole, conn->have);
    return (int)length;
}

int gx_conn_recv(struct gx_conn *conn, unsigned type, void *body, size_t capacity, int timeout_ms,
                 const char *what)
{
    uint8_t buffer[GX_BODY_MAX];
    unsigned got = 0;
    uint64_t deadline = deadline_after(timeout_ms);
    int n, err = 0;
    if (conn->fd < 0)
        return -ENOTCONN;
    while ((n = gx_conn_take(conn, &got, buffer, sizeof buffer)) == -EAGAIN) {
        err = wait_socket(conn->fd, POLLIN, conn->ctx, deadline);
        if (err)
            break;
        gx_conn_pump(conn); /* take() reports the hangup, after the last whole message */
    }
    if (err == -EINTR)
        return err;
    if (err == -ETIMEDOUT) {
        gx_error("It may hang or be stopped: look at its output, then start it again.",
                 "no %s from %s within %d s", what, conn->peer, timeout_ms / 1000);
        return err;
    }
    if (!err && n >= 0 && got == GX_MSG_ERROR) {
        fflush(stdout);
        fprintf(stderr, "%s: %s says: ", gx_program, conn->peer);
        gx_print_bytes(stderr, buffer, (size_t)n, 500);
        fputs("\n    The other side gave up; its own output may say more.\n", stderr);
        return -EREMOTEIO;
    }
    if (!err && n >= 0 && got == type && (size_t)n <= capacity) {
        if (n)
            memcpy(body, buffer, (size_t)n);
        return n;
    }
    err = err ? err : n == -ECONNRESET ? n : -EPROTO;
    if (err == -EPROTO)
        gx_error("The other end is another program, or of another version: compare the port, and "
                 "build both from one source.",
                 "%s does not speak this program's protocol (waiting for %s)", conn->peer, what);
    else
        gx_error("It has ended or was killed: its own output says why.",
                 "%s closed the connection (waiting for %s)", conn->peer, what);
    return err;
}
