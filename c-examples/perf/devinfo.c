// SPDX-License-Identifier: MIT OR Apache-2.0
/*
 * devinfo: lists devices and their capabilities, as ibv_devinfo -v and ibv_devices do.
 *
 *   devinfo                   every address of this machine, as a device
 *   devinfo -d soft:10.0.0.1  one
 *   devinfo --brief           one line each
 */
#include "../common/gx.h"

#include <arpa/inet.h>
#include <errno.h>
#include <ifaddrs.h>
#include <inttypes.h>
#include <net/if.h>
#include <netdb.h>
#include <string.h>

static void usage(FILE *to)
{
    fprintf(to, "usage: devinfo [-d DEVICE] [-g N] [--brief] [-v]\n\n"
                "  -d, --ib-dev, --device DEVICE  only this one: soft:ADDRESS[:PORT], an address, "
                "a network interface, or loopback\n"
                "  -g, --gid-index N              which of the interface's addresses\n"
                "  -b, --brief                    one line per device\n"
                "  -v, --verbose                  bounds and counters, too\n"
                "  -l, --list                     names only\n"
                "  -h, --help                     this text\n"
                "  -V, --version                  the version\n");
}

static void print_gid(const uint8_t gid[16])
{
    for (int i = 0; i < 16; i += 2)
        printf("%s%02x%02x", i ? ":" : "", gid[i], gid[i + 1]);
}

static void print_guid(uint64_t guid)
{
    printf("%04x:%04x:%04x:%04x", (unsigned)(guid >> 48), (unsigned)(guid >> 32) & 0xffff,
           (unsigned)(guid >> 16) & 0xffff, (unsigned)guid & 0xffff);
}

static void print_counters(gdrc_context *ctx)
{
    uint64_t values[256];
    int n = gdrc_counters(ctx, values, sizeof values / sizeof *values);
    printf("\tcounters:\n");
    for (int i = 0; i < n; i++)
        printf("\t\t%-28s%" PRIu64 "\n", gdrc_counter_name((uint32_t)i), values[i]);
}

static void print_device(const struct gx_dev *dev, bool verbose)
{
    const struct gdrc_device_attr *a = &dev->attr;
    bool v4 = !memcmp(a->gid, "\0\0\0\0\0\0\0\0\0\0\xff\xff", 12);
    printf(
        "hca_id:\t%s\n\ttransport:\t\t\tRoCEv2 (software)\n\tfw_ver:\t\t\t\t%s\n\tnode_guid:\t\t\t",
        dev->name, gdrc_version());
    print_guid(a->node_guid);
    printf("\n\tphys_port_cnt:\t\t\t1\n");
    if (verbose) {
        printf("\tmax_msg_size:\t\t\t%" PRIu64 "\n\tmax_qp:\t\t\t\t%u\n\tmax_qp_wr:\t\t\t%u\n"
               "\tmax_sge:\t\t\t%u\n\tmax_inline:\t\t\t%u\n",
               a->max_msg_size, a->max_qp, a->max_qp_wr, a->max_sge, a->max_inline);
        printf("\tmax_cq:\t\t\t\t%u\n\tmax_cqe:\t\t\t%u\n\tmax_mr:\t\t\t\t%u\n"
               "\tmax_pd:\t\t\t\t%u\n\tmax_srq:\t\t\t%u\n\tmax_ah:\t\t\t\t%u\n",
               a->max_cq, a->max_cqe, a->max_mr, a->max_pd, a->max_srq, a->max_ah);
        printf("\tmax_qp_rd_atom:\t\t\t%u\n\tatomic_cap:\t\t\tATOMIC_GLOB\n"
               "\tqpn_base:\t\t\t0x%06x\n",
               a->max_rd_atomic, a->qpn_base);
    }
    printf("\t\tport:\t1\n\t\t\tstate:\t\t\tPORT_ACTIVE\n\t\t\tactive_mtu:\t\t%u (%u)\n"
           "\t\t\tlink_layer:\t\tEthernet\n\t\t\tudp_port:\t\t%u\n",
           128u << a->active_mtu, a->active_mtu, a->udp_port);
    printf("\t\t\tGID[  0]:\t\t");
    print_gid(a->gid);
    printf(", RoCE v2 (IPv%d", v4 ? 4 : 6);
    if (v4)
        printf(" %u.%u.%u.%u", a->gid[12], a->gid[13], a->gid[14], a->gid[15]);
    if (a->scope_id)
        printf(", interface %u", a->scope_id);
    printf(")\n");
    if (verbose)
        print_counters(dev->ctx);
    printf("\n");
}

static void print_brief(const struct gx_dev *dev, const char *interface)
{
    printf("%-36s %-12s mtu %-5u port %-6u guid ", dev->name, interface,
           128u << dev->attr.active_mtu, dev->attr.udp_port);
    print_guid(dev->attr.node_guid);
    printf(" gid ");
    print_gid(dev->attr.gid);
    printf("\n");
}

struct choice { bool brief, verbose, list; };

static int show(const struct choice *choice, const char *device, unsigned gid_index,
                const char *interface)
{
    struct gx_dev dev;
    if (choice->list)
        return printf("%-36s %s\n", device, interface), 0;
    int err = gx_dev_open(&dev, device, gid_index, NULL);
    if (err)
        return err;
    if (choice->brief)
        print_brief(&dev, interface);
    else
        print_device(&dev, choice->verbose);
    gx_dev_close(&dev);
    return 0;
}

/* A soft device can be opened at every address: IPv4 first, loopback last. */
static int show_all(const struct choice *choice)
{
    struct ifaddrs *all = NULL;
    char address[80], name[96];
    int shown = 0, failed = 0;
    if (getifaddrs(&all) < 0)
        return -errno;
    for (int pass = 0; pass < 4; pass++) {
        int family = pass & 1 ? AF_INET6 : AF_INET;
        bool loopback = pass & 2;
        for (struct ifaddrs *a = all; a; a = a->ifa_next) {
            if (!a->ifa_addr || a->ifa_addr->sa_family != family || !(a->ifa_flags & IFF_UP) ||
                !!(a->ifa_flags & IFF_LOOPBACK) != loopback)
                continue;
            socklen_t length =
                family == AF_INET6 ? sizeof(struct sockaddr_in6) : sizeof(struct sockaddr_in);
            if (getnameinfo(a->ifa_addr, length, address, sizeof address, NULL, 0, NI_NUMERICHOST))
                continue;
            snprintf(name, sizeof name, family == AF_INET6 ? "soft:[%s]" : "soft:%s", address);
            if (show(choice, name, 0, a->ifa_name))
                failed++;
            else
                shown++;
        }
    }
    freeifaddrs(all);
    if (!shown)
        gx_error("'ip address' shows them; without any, 'loopback' connects the queue pairs of one "
                 "process.",
                 "no device: this machine has no address");
    return failed || !shown ? -ENODEV : 0;
}

int main(int argc, char **argv)
{
    static const struct option longs[] = {
        { "device", required_argument, NULL, 'd' },
        { "ib-dev", required_argument, NULL, 'd' },
        { "gid-index", required_argument, NULL, 'g' },
        { "brief", no_argument, NULL, 'b' },
        { "verbose", no_argument, NULL, 'v' },
        { "list", no_argument, NULL, 'l' },
        GX_COMMON_OPTIONS,
    };
    struct choice choice = { 0 };
    const char *device = NULL;
    uint64_t gid_index = 0;
    gx_program = "devinfo";
    for (int c; (c = gx_getopt(argc, argv, "d:g:bvlhV", longs)) != -1;) {
        switch (c) {
        case 'd': device = optarg; break;
        case 'g':
            if (gx_parse_number(optarg, "--gid-index", 0, 1000, &gid_index))
                return GX_EXIT_USAGE;
            break;
        case 'b': choice.brief = true; break;
        case 'v': choice.verbose = true; break;
        case 'l': choice.list = true; break;
        case 'h': return usage(stdout), GX_EXIT_OK;
        default: return gx_note("try 'devinfo --help'"), GX_EXIT_USAGE;
        }
    }
    if (optind < argc)
        return gx_error("Name a device with -d.", "'%s' is no option", argv[optind]), GX_EXIT_USAGE;
    int err = device ? show(&choice, device, (unsigned)gid_index, "") : show_all(&choice);
    return gx_exit_code(err);
}
