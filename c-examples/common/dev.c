// SPDX-License-Identifier: MIT OR Apache-2.0
/* Opens devices, makes queue pairs, waits for completions. */
#include "gx.h"

#include <arpa/inet.h>
#include <errno.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#define USUAL_PORT 4791u
#define PORTS_TO_TRY 64u
/*
 * Polling costs a core, sleeping costs a wake-up: after this long without a completion sleeping is
 * cheaper.
 */
#define SPIN_NS 50000u

static bool is_address(const char *text)
{
    struct addrinfo hints, *found = NULL;
    memset(&hints, 0, sizeof hints);
    hints.ai_flags = AI_NUMERICHOST;
    bool yes = getaddrinfo(text, NULL, &hints, &found) == 0;
    if (yes)
        freeaddrinfo(found);
    return yes;
}

/*
 * The `index`th address of an interface. If name is NULL: of any interface, the first address that
 * is not loopback.
 */
static int interface_address(const char *name, unsigned index, char *out, size_t size)
{
    struct ifaddrs *all = NULL;
    unsigned seen = 0;
    int err = -ENODEV;
    if (getifaddrs(&all) < 0)
        return -errno;
    /* IPv4 first, the order in which users expect a GID table. */
    for (int pass = 0; pass < 2 && err; pass++) {
        int family = pass ? AF_INET6 : AF_INET;
        for (struct ifaddrs *a = all; a && err; a = a->ifa_next) {
            if (!a->ifa_addr || a->ifa_addr->sa_family != family || !(a->ifa_flags & IFF_UP))
                continue;
            if (name ? strcmp(name, a->ifa_name) != 0 : (a->ifa_flags & IFF_LOOPBACK) || pass)
                continue;
            socklen_t length = pass ? sizeof(struct sockaddr_in6) : sizeof(struct sockaddr_in);
            if (seen++ == index)
                err =
                    getnameinfo(a->ifa_addr, length, out, (socklen_t)size, NULL, 0, NI_NUMERICHOST)
                        ? -EINVAL
                        : 0;
        }
    }
    freeifaddrs(all);
    return err == -ENODEV && seen ? -ERANGE : err;
}

/* A NIC's address is known only when it is open. */
static bool is_verbs(const char *name)
{
    return !strncmp(name, "verbs:", 6);
}

/* The address by which peers reach the device. */
static void device_address(const struct gdrc_device_attr *attr, char *out, size_t size)
{
    static const uint8_t mapped[12] = {[10] = 0xff, [11] = 0xff};
    bool v4 = !memcmp(attr->gid, mapped, sizeof mapped);
    if (!inet_ntop(v4 ? AF_INET : AF_INET6, attr->gid + (v4 ? sizeof mapped : 0), out,
                   (socklen_t)size))
        snprintf(out, size, "::");
    char zone[IF_NAMESIZE];
    size_t used = strlen(out);
    if (attr->scope_id && if_indextoname(attr->scope_id, zone))
        snprintf(out + used, size - used, "%%%s", zone);
}

/*
 * Removes ",path=udp|shm|auto" from a device's name, the last two optionally with ",cma": these
 * select options of the context, for peers on this host.
 */
static int take_path(const char **spec, char *plain, size_t size, uint32_t *flags)
{
    static const char key[] = ",path=";
    const char *option = strstr(*spec, key);
    *flags = 0;
    if (!option)
        return 0;
    static const struct {
        const char *path;
        uint32_t flags;
    } known[] = {
        { "udp", GDRC_CONFIG_UDP_ONLY },
        { "shm", GDRC_CONFIG_SHM_ONLY },
        { "shm,cma", GDRC_CONFIG_SHM_ONLY | GDRC_CONFIG_CMA },
        { "auto", GDRC_CONFIG_SHM },
        { "auto,cma", GDRC_CONFIG_SHM | GDRC_CONFIG_CMA },
    };
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (!strcmp(option + strlen(key), known[i].path))
            *flags = known[i].flags;
    if (!*flags || (size_t)(option - *spec) >= size) {
        gx_error("Behind a device's name ',path=udp', ',path=shm' or ',path=auto' may stand, "
                 "behind the last two ',cma'.",
                 "device '%s' has an unknown path", *spec);
        return -EINVAL;
    }
    snprintf(plain, size, "%.*s", (int)(option - *spec), *spec);
    *spec = plain;
    return 0;
}

/* Fills in name and address; `has_port` returns whether the user chose a port. */
static int resolve_name(const char *spec, unsigned gid_index, struct gx_dev *dev, bool *has_port)
{
    char address[80], plain[128];
    *has_port = false;
    if (!spec)
        spec = getenv("GDRC_DEVICE");
    if (!spec && interface_address(NULL, 0, address, sizeof address) == 0)
        spec = address;
    if (!spec)
        spec = "127.0.0.1";
    int bad = take_path(&spec, plain, sizeof plain, &dev->path_flags);
    if (bad)
        return bad;
    if (!strncmp(spec, "router:", 7) && strlen(spec) < sizeof dev->name) {
        /* Its address is on no interface; the side channel listens on all of them. */
        snprintf(dev->name, sizeof dev->name, "%s", spec);
        snprintf(dev->address, sizeof dev->address, "0.0.0.0");
        *has_port = true;
        return 0;
    }
    if (strlen(spec) >= sizeof dev->address) {
        gx_error("Devices are named like soft:192.0.2.1 or soft:[2001:db8::1]:4791.",
                 "device name '%s' is too long", spec);
        return -EINVAL;
    }
    const char *colon = strchr(spec, ':');
    bool named = !strncmp(spec, "soft:", 5) || !strcmp(spec, "loopback") ||
                 !strncmp(spec, "verbs:", 6) || !strncmp(spec, "remote:", 7);
    if (named) {
        snprintf(dev->name, sizeof dev->name, "%s", spec);
        const char *at = colon ? colon + 1 : "127.0.0.1";
        bool bracket = *at == '[';
        size_t length = bracket ? strcspn(++at, "]") : strcspn(at, ":");
        *has_port = at[length] && strchr(at + length, ':');
        snprintf(dev->address, sizeof dev->address, "%.*s", (int)length, at);
        if (is_verbs(spec) && gid_index && !*has_port) {
            snprintf(dev->name, sizeof dev->name, "%s:1:%u", spec, gid_index);
            gid_index = 0;
        }
    } else if (is_address(spec)) {
        snprintf(dev->address, sizeof dev->address, "%s", spec);
        snprintf(dev->name, sizeof dev->name, colon ? "soft:[%s]" : "soft:%s", spec);
    } else {
        int err = interface_address(spec, gid_index, dev->address, sizeof dev->address);
        if (err) {
            gx_error(err == -ERANGE ? "'ip address show' lists the interface's addresses; -g "
                                      "counts them from 0, IPv4 first."
                                    : "Use soft:ADDRESS with an address of this machine, or the "
                                      "name of an interface: see 'ip address'.",
                     err == -ERANGE ? "device '%s' has no GID index %u"
                                    : "there is no device '%s' (GID index %u)",
                     spec, gid_index);
            return err;
        }
        snprintf(dev->name, sizeof dev->name, strchr(dev->address, ':') ? "soft:[%s]" : "soft:%s",
                 dev->address);
        return 0;
    }
    if (gid_index) {
        gx_error("A device named by address has one GID, index 0. To choose among several name the "
                 "interface: -d eth0 -g 1.",
                 "device '%s' has no GID index %u", spec, gid_index);
        return -EINVAL;
    }
    return 0;
}

/* Reports why a device could not be opened, and a remedy. */
static void explain_open(const char *name, int err)
{
    char why[384];
    if (gdrc_error_detail(why, sizeof why) <= 0)
        snprintf(why, sizeof why, "%s", gdrc_strerror(err));
    const char *hint =
        is_verbs(name) ? "NICs are named like verbs:rxe0, verbs:mlx5_0:1:3 (port, GID index) or "
                         "verbs:192.0.2.1."
        : err == -EADDRNOTAVAIL
            ? "Take an address of this machine ('ip address' shows them), or an interface's name."
        : err == -EADDRINUSE
            ? "Another program has this UDP port: stop it, or give another (soft:ADDRESS:PORT)."
        : err == -EINVAL ? "Devices are named like soft:192.0.2.1, soft:192.0.2.1:4800 or "
                           "soft:[2001:db8::1]:4791."
        : err == -ENOMEM
            ? "The device's tables did not fit into memory: look at the limits (ulimit -v, cgroup)."
            : "The system refused a socket: look at its limits and at what a sandbox forbids.";
    gx_error(hint, "cannot open device %s: %s", name, why);
}

int gx_dev_address(const char *spec, unsigned gid_index, char *out, size_t size)
{
    struct gx_dev dev;
    bool has_port;
    int err = resolve_name(spec, gid_index, &dev, &has_port);
    if (!err && is_verbs(dev.name)) {
        err = gdrc_open(dev.name, NULL, &dev.ctx);
        if (err) {
            explain_open(dev.name, err);
            return err;
        }
        dev.attr.struct_size = sizeof dev.attr;
        err = gdrc_device_query(dev.ctx, &dev.attr);
        gdrc_close(dev.ctx, NULL);
        if (!err)
            device_address(&dev.attr, dev.address, sizeof dev.address);
    }
    if (!err)
        snprintf(out, size, "%s", dev.address);
    return err;
}

int gx_dev_open(struct gx_dev *dev, const char *spec, unsigned gid_index,
                const struct gdrc_config *config)
{
    bool has_port;
    struct gdrc_config with_path;
    memset(dev, 0, sizeof *dev);
    int err = resolve_name(spec, gid_index, dev, &has_port);
    if (err)
        return err;
    const char *faults = getenv("GDRC_FAULTS"), *seed = getenv("GDRC_SEED");
    if (faults && !*faults)
        faults = NULL;
    if (dev->path_flags || faults) {
        with_path = config ? *config : (struct gdrc_config){ .struct_size = sizeof with_path };
        with_path.flags |= dev->path_flags;
        with_path.faults = faults;
        if (faults && seed)
            with_path.seed = strtoull(seed, NULL, 10);
        config = &with_path;
    }
    err = gdrc_open(dev->name, config, &dev->ctx);
    bool soft = !strncmp(dev->name, "soft:", 5);
    size_t stem = strlen(dev->name);
    for (unsigned i = 1;
         err == -EADDRINUSE && soft && !has_port && i < PORTS_TO_TRY && stem + 8 < sizeof dev->name;
         i++) {
        snprintf(dev->name + stem, sizeof dev->name - stem, ":%u", USUAL_PORT + i);
        err = gdrc_open(dev->name, config, &dev->ctx);
    }
    if (err) {
        explain_open(dev->name, err);
        dev->ctx = NULL;
        return err;
    }
    if (dev->name[stem])
        gx_note("UDP port %u is taken on this address; using %s", USUAL_PORT, dev->name);
    dev->attr.struct_size = sizeof dev->attr;
    err = gdrc_device_query(dev->ctx, &dev->attr);
    if (!err && is_verbs(dev->name))
        device_address(&dev->attr, dev->address, sizeof dev->address);
    if (!err)
        err = gdrc_pd_alloc(dev->ctx, &dev->pd);
    if (err) {
        gx_explain_call(dev, err, "preparing the device");
        gdrc_close(dev->ctx, NULL);
        dev->ctx = NULL;
    }
    return err;
}

void gx_dev_close(struct gx_dev *dev)
{
    if (!dev->ctx)
        return;
    int err = gdrc_pd_dealloc(dev->ctx, dev->pd);
    if (err)
        gx_note("the protection domain is still in use: %s", gdrc_strerror(err));
    int left = gdrc_close(dev->ctx, NULL);
    if (left)
        gx_note("closing the device: %s",
                left > 0 ? "objects were left open (a bug of this program)" : gdrc_strerror(left));
    dev->ctx = NULL;
}

void gx_explain_call(struct gx_dev *dev, int err, const char *what)
{
    struct gdrc_cause cause;
    char text[256] = "";
    memset(&cause, 0, sizeof cause);
    if (dev->ctx && gdrc_last_cause(dev->ctx, &cause) >= 0)
        gdrc_cause_str(&cause, text, sizeof text);
    gx_error(*text ? text : NULL, "%s: %s", what, gdrc_strerror(err));
}

void gx_explain_wc(struct gx_dev *dev, gdrc_qp qp, const gdrc_wc *wc, const char *what)
{
    struct gdrc_cause cause;
    char text[256] = "";
    memset(&cause, 0, sizeof cause);
    if (gdrc_qp_cause(dev->ctx, qp, &cause) >= 0)
        gdrc_cause_str(&cause, text, sizeof text);
    gx_error(*text ? text : NULL, "%s failed: %s", what, gdrc_wc_status_str(wc->status));
}

int gx_qp_create(struct gx_dev *dev, gdrc_cq cq, uint32_t send_wr, uint32_t recv_wr, uint32_t sge,
                 gdrc_qp *out, uint32_t *qpn)
{
    struct gdrc_qp_init init;
    memset(&init, 0, sizeof init);
    init.struct_size = sizeof init;
    init.pd = dev->pd;
    init.send_cq = cq;
    init.recv_cq = cq;
    init.qp_type = GDRC_QPT_RC;
    init.cap.max_send_wr = send_wr;
    init.cap.max_recv_wr = recv_wr;
    init.cap.max_send_sge = sge;
    init.cap.max_recv_sge = 1;
    int err = gdrc_qp_create(dev->ctx, &init, out, qpn);
    if (err)
        gx_explain_call(dev, err, "creating a queue pair");
    return err;
}

int gx_mr_register(struct gx_dev *dev, void *addr, size_t length, uint32_t access, gdrc_mr *out,
                   struct gdrc_mr_attr *attr)
{
    struct gdrc_mr_attr scratch;
    if (!attr)
        attr = &scratch;
    memset(attr, 0, sizeof *attr);
    attr->struct_size = sizeof *attr;
    int err = gdrc_mr_reg(dev->ctx, dev->pd, addr, length, access, out, attr);
    if (err)
        gx_explain_call(dev, err, "registering a buffer");
    return err;
}

int gx_mem_register(struct gx_dev *dev, const struct gdrc_memory *memory, uint32_t access,
                    gdrc_mr *out, struct gdrc_mr_attr *attr)
{
    struct gdrc_mr_attr scratch;
    char words[400];
    if (!attr)
        attr = &scratch;
    memset(attr, 0, sizeof *attr);
    attr->struct_size = sizeof *attr;
    int err = gdrc_mr_reg_memory(dev->ctx, dev->pd, memory, access, out, attr);
    if (err && gdrc_error_detail(words, sizeof words) > 0)
        gx_error(words, "registering a buffer: %s", gdrc_strerror(err));
    else if (err)
        gx_explain_call(dev, err, "registering a buffer");
    return err;
}

void gx_endpoint_fit(struct gx_dev *dev, const struct gx_conn *conn, struct gdrc_endpoint *local)
{
    struct sockaddr_storage peer;
    socklen_t length = sizeof peer;
    struct gdrc_ah_attr to;
    memset(&to, 0, sizeof to);
    if (getpeername(conn->fd, (struct sockaddr *)&peer, &length) < 0)
        return;
    if (peer.ss_family == AF_INET) {
        to.dgid[10] = to.dgid[11] = 0xff;
        memcpy(to.dgid + 12, &((struct sockaddr_in *)&peer)->sin_addr, 4);
    } else if (peer.ss_family == AF_INET6) {
        memcpy(to.dgid, &((struct sockaddr_in6 *)&peer)->sin6_addr, 16);
        to.scope_id = ((struct sockaddr_in6 *)&peer)->sin6_scope_id;
    } else {
        return;
    }
    int mtu = gdrc_path_mtu(dev->ctx, &to);
    if (mtu > 0 && (uint32_t)mtu < local->mtu)
        local->mtu = (uint32_t)mtu;
}

int gx_endpoint_send(struct gx_dev *dev, gdrc_qp qp, const gdrc_mr *mr, struct gx_conn *conn,
                     struct gdrc_endpoint *local)
{
    uint8_t wire[GDRC_ENDPOINT_WIRE_BYTES];
    memset(local, 0, sizeof *local);
    local->struct_size = sizeof *local;
    int err = gdrc_endpoint_local(dev->ctx, qp, mr, local);
    if (!err)
        gx_endpoint_fit(dev, conn, local);
    if (!err)
        err = gdrc_endpoint_pack(local, wire);
    if (err) {
        gx_explain_call(dev, err, "describing the endpoint");
        return err;
    }
    return gx_conn_send(conn, GX_MSG_ENDPOINT, wire, sizeof wire, -1, "the endpoint");
}

int gx_endpoint_connect(struct gx_dev *dev, gdrc_qp qp, struct gx_conn *conn,
                        const struct gdrc_endpoint *local, const uint8_t *wire, size_t length,
                        uint64_t patience_s, struct gdrc_endpoint *remote)
{
    struct gdrc_qp_connect_opts opts;
    memset(&opts, 0, sizeof opts);
    opts.struct_size = sizeof opts;
    if (patience_s) {
        /*
         * Eight tries, each 4.096 us * 2^timeout. More than 1.07 s each would be too long: only
         * this timer detects the loss of a last packet.
         */
        opts.timeout = 14;
        while (opts.timeout < 18 && (8 * 8192ull << opts.timeout) <= patience_s * 1000000000u)
            opts.timeout++;
    }
    memset(remote, 0, sizeof *remote);
    remote->struct_size = sizeof *remote;
    int err = length == GDRC_ENDPOINT_WIRE_BYTES ? gdrc_endpoint_unpack(wire, remote) : -EPROTO;
    if (err) {
        gx_error("Build both sides from one source.",
                 "%s sent an endpoint that this version does not read: %s", conn->peer,
                 gdrc_strerror(err));
        gx_conn_send_error(conn, "your endpoint is not understood");
        return err;
    }
    err = gdrc_qp_connect(dev->ctx, qp, local, remote, &opts);
    if (err) {
        gx_explain_call(dev, err, "connecting the queue pair");
        gx_conn_send_error(conn, "connecting the queue pair: %s", gdrc_strerror(err));
    }
    return err;
}

int gx_qp_handshake(struct gx_dev *dev, gdrc_qp qp, const gdrc_mr *mr, struct gx_conn *conn,
                    uint64_t patience_s, struct gdrc_endpoint *remote)
{
    struct gdrc_endpoint local;
    uint8_t wire[GDRC_ENDPOINT_WIRE_BYTES];
    int err = gx_endpoint_send(dev, qp, mr, conn, &local);
    if (err)
        return err;
    int n = gx_conn_recv(conn, GX_MSG_ENDPOINT, wire, sizeof wire, GX_TIMEOUT_MS, "endpoint");
    return n < 0 ? n
                 : gx_endpoint_connect(dev, qp, conn, &local, wire, (size_t)n, patience_s, remote);
}

int gx_ready(struct gx_conn *conn)
{
    /* A packet for a queue pair that is not ready yet is dropped and costs a retry. */
    int err = gx_conn_send(conn, GX_MSG_READY, NULL, 0, -1, "readiness");
    int n = err ? err : gx_conn_recv(conn, GX_MSG_READY, NULL, 0, GX_TIMEOUT_MS, "readiness");
    return n < 0 ? n : 0;
}

int gx_wait_completion(struct gx_dev *dev, gdrc_cq cq, gdrc_qp qp, gdrc_wc *wc,
                       struct gx_conn *conn, int timeout_ms, const char *what)
{
    uint64_t start = gx_now_ns(), deadline = start + (uint64_t)timeout_ms * 1000000u, closed_at = 0;
    for (;;) {
        int n = gdrc_poll_cq(dev->ctx, cq, 1, wc);
        if (n < 0) {
            gx_explain_call(dev, n, what);
            return n;
        }
        if (n > 0) {
            if (wc->status == GDRC_WC_SUCCESS)
                return 0;
            gx_explain_wc(dev, qp, wc, what);
            return -EIO;
        }
        uint64_t now = gx_now_ns();
        if (now >= deadline) {
            gx_error("The other side may be stopped, or the network in between is down.",
                     "%s: nothing within %d s", what, timeout_ms / 1000);
            return -ETIMEDOUT;
        }
        /*
         * A peer that closes right after its last message may still have packets of ours to
         * acknowledge.
         */
        if (closed_at && now - closed_at > 500000000u) {
            gx_error("It has ended or was killed: its own output says why.",
                     "%s: %s closed the connection", what, conn->peer);
            return -ECONNRESET;
        }
        if (now - start < SPIN_NS)
            continue;
        bool watch = conn && conn->fd >= 0 && !closed_at;
        struct pollfd p = { .fd = conn ? conn->fd : -1, .events = POLLRDHUP };
        int ready = gx_sleep(dev->ctx, &cq, &p, watch ? 1 : 0, 100);
        if (ready < 0)
            return ready;
        if (watch && p.revents & (POLLRDHUP | POLLHUP | POLLERR))
            closed_at = gx_now_ns();
    }
}
