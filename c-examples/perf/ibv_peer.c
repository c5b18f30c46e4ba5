// SPDX-License-Identifier: MIT OR Apache-2.0
/* The TCP exchange with a ping-pong of rdma-core, for pingpong. */
#include "ibv_peer.h"

#include <errno.h>
#include <inttypes.h>
#include <string.h>
#include <sys/socket.h>

#define LINE 52u /* its final zero included */
#define GID_AT 19u

static const char done[] = "done";

/* Sends or receives all bytes while the engine runs. */
static int transfer(struct gx_conn *conn, char *bytes, size_t length, bool out)
{
    uint64_t end = gx_now_ns() + GX_TIMEOUT_MS * 1000000ull;
    for (size_t at = 0; at < length;) {
        ssize_t n = out ? send(conn->fd, bytes + at, length - at, MSG_NOSIGNAL | MSG_DONTWAIT)
                        : recv(conn->fd, bytes + at, length - at, MSG_DONTWAIT);
        int err = n < 0 ? -errno : n == 0 ? -ECONNRESET : 0;
        if (n > 0)
            at += (size_t)n;
        if (err == -EAGAIN || err == -EINTR) {
            struct pollfd p = { .fd = conn->fd, .events = out ? POLLOUT : POLLIN };
            err = gx_now_ns() > end ? -ETIMEDOUT : gx_sleep(conn->ctx, NULL, &p, 1, 100);
        }
        if (err < 0) {
            if (err != -EINTR)
                gx_error(
                    "Start an ibv_*_pingpong there, with the same of rc, uc and ud, -s and -n.",
                    "%s: %s", conn->peer, strerror(-err));
            return err;
        }
    }
    return 0;
}

int ibv_peer_send(struct gx_conn *conn, const struct gdrc_endpoint *local)
{
    char line[LINE];
    int n = snprintf(line, sizeof line, "%04x:%06x:%06x:", 0u, local->qpn, local->psn);
    for (unsigned i = 0; i < 16; i++)
        n += snprintf(line + n, sizeof line - (size_t)n, "%02x", local->gid[i]);
    return transfer(conn, line, sizeof line, true);
}

static bool parse(const char *line, struct gdrc_endpoint *e)
{
    unsigned lid;
    if (line[LINE - 1] || strlen(line) != LINE - 1 ||
        sscanf(line, "%4x:%6" SCNx32 ":%6" SCNx32 ":", &lid, &e->qpn, &e->psn) != 3)
        return false;
    for (unsigned i = 0; i < 16; i++) {
        unsigned byte;
        if (sscanf(line + GID_AT + 2 * i, "%2x", &byte) != 1)
            return false;
        e->gid[i] = (uint8_t)byte;
    }
    return true;
}

int ibv_peer_receive(struct gx_conn *conn, const struct gdrc_endpoint *local,
                  struct gdrc_endpoint *remote)
{
    char line[LINE];
    int err = transfer(conn, line, sizeof line, false);
    if (err)
        return err;
    *remote = *local;
    remote->scope_id = 0;
    remote->addr = remote->length = remote->rkey = 0;
    /* A NIC sends from any source port (GDRC_ENDPOINT_OWN_PORT is set by our devices only). */
    remote->flags = 0;
    /* The standard port of RoCEv2: the tools have no other. */
    remote->udp_port = 4791;
    if (!parse(line, remote)) {
        gx_error("The other side is to be an ibv_*_pingpong; to a pingpong of ours speak without "
                 "--ibv-peer.",
                 "%s does not say LID:QPN:PSN:GID", conn->peer);
        return -EPROTO;
    }
    return 0;
}

int ibv_peer_done(struct gx_conn *conn, bool say)
{
    char word[sizeof done];
    memcpy(word, done, sizeof word);
    int err = transfer(conn, word, sizeof word, say);
    if (!err && memcmp(word, done, sizeof word)) {
        gx_error(NULL, "%s does not say \"done\"", conn->peer);
        err = -EPROTO;
    }
    return err;
}
