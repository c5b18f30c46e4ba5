// SPDX-License-Identifier: MIT OR Apache-2.0
/*
 * map_pci_nic_gpu: prints, for every NIC that shares a root port or a closer bridge with a GPU,
 *
 *   172.172.1.112 (mlx5_12) is near 0000:b7:00.0 3D controller: NVIDIA Corporation GV100GL (rev a1)
 *
 * Give such a pair to gpu_direct: `client -a 172.172.1.112 -u b7:00.0`.
 */
#include "../common/gx.h"

#include <arpa/inet.h>
#include <errno.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>
#include <stdlib.h>
#include <string.h>

static void usage(FILE *to)
{
    fprintf(
        to,
        "usage: map_pci_nic_gpu [options]\n"
        "Prints which GPU is near which NIC: they share a PCIe bridge, switch or root port.\n\n"
        "  -a, --all               every pair, also far ones, with what they share\n"
        "  -r, --root FOLDER       read this folder instead of /sys\n"
        "  -i, --ids FILE          names of PCI devices (default: where the system keeps pci.ids)\n"
        "  -h, --help              this text\n"
        "  -V, --version           the version\n"
        "The exit code is 1 where no pair is near.\n");
}

static const char *near_words(uint32_t near)
{
    static const char *const words[] = { "only the machine", "a NUMA node",   "a host bridge",
                                         "a root port",      "a PCIe switch", "a PCIe bridge" };
    return near < sizeof words / sizeof *words ? words[near] : "something";
}

static const char *class_words(uint32_t class)
{
    switch (class >> 8) {
    case 0x0300:
        return "VGA compatible controller";
    case 0x0302:
        return "3D controller";
    default:
        return "Display controller";
    }
}

/* The first address of an interface; IPv4 before IPv6, the order in which programs choose. */
static const char *address_of(const char *netdev, char out[INET6_ADDRSTRLEN])
{
    struct ifaddrs *all = NULL;
    int best = 0;
    strcpy(out, "-");
    if (!*netdev || getifaddrs(&all))
        return out;
    for (struct ifaddrs *a = all; a; a = a->ifa_next) {
        if (!a->ifa_addr || strcmp(a->ifa_name, netdev))
            continue;
        if (a->ifa_addr->sa_family == AF_INET && best < 2) {
            inet_ntop(AF_INET, &((struct sockaddr_in *)(void *)a->ifa_addr)->sin_addr, out,
                      INET6_ADDRSTRLEN);
            best = 2;
        } else if (a->ifa_addr->sa_family == AF_INET6 && best < 1) {
            inet_ntop(AF_INET6, &((struct sockaddr_in6 *)(void *)a->ifa_addr)->sin6_addr, out,
                      INET6_ADDRSTRLEN);
            best = 1;
        }
    }
    freeifaddrs(all);
    return out;
}

/*
 * "Vendor Device" from pci.ids: vendors begin a line, their devices follow after a tab. Numbers if
 * it has no names.
 */
static void name_of(const char *ids, const struct gdrc_topology_pair *p, char *out, size_t size)
{
    char line[256], vendor[120], device[120];
    bool ours = false;
    snprintf(vendor, sizeof vendor, "%04x", p->gpu_vendor);
    snprintf(device, sizeof device, "Device %04x", p->gpu_device);
    FILE *file = ids ? fopen(ids, "re") : NULL;
    while (file && fgets(line, sizeof line, file)) {
        line[strcspn(line, "\n")] = 0;
        char *end = NULL;
        bool below = line[0] == '\t' && line[1] != '\t';
        unsigned long number = strtoul(line + below, &end, 16);
        if (end != line + below + 4 || end[0] != ' ' || end[1] != ' ')
            continue;
        if (!below && ours)
            break;
        if (!below && number == p->gpu_vendor) {
            ours = true;
            snprintf(vendor, sizeof vendor, "%s", end + 2);
        } else if (below && ours && number == p->gpu_device) {
            snprintf(device, sizeof device, "%s", end + 2);
            break;
        }
    }
    if (file)
        fclose(file);
    snprintf(out, size, "%s %s", vendor, device);
}

int main(int argc, char **argv)
{
    static const struct option longs[] = {
        { "all", no_argument, NULL, 'a' },       { "root", required_argument, NULL, 'r' },
        { "ids", required_argument, NULL, 'i' }, GX_COMMON_OPTIONS,
    };
    static const char *const places[] = { "/usr/share/misc/pci.ids", "/usr/share/hwdata/pci.ids" };
    const char *root = NULL, *ids = NULL;
    bool all = false;
    gx_program = "map_pci_nic_gpu";
    for (int c; (c = gx_getopt(argc, argv, "ar:i:hV", longs)) != -1;) {
        switch (c) {
        case 'a': all = true; break;
        case 'r': root = optarg; break;
        case 'i': ids = optarg; break;
        case 'h': usage(stdout); return GX_EXIT_OK;
        default: gx_note("try 'map_pci_nic_gpu --help'"); return GX_EXIT_USAGE;
        }
    }
    if (optind < argc) {
        gx_error("See --help.", "unexpected argument '%s'", argv[optind]);
        return GX_EXIT_USAGE;
    }
    for (size_t i = 0; !ids && i < sizeof places / sizeof *places; i++) {
        FILE *file = fopen(places[i], "re");
        if (file) {
            ids = places[i];
            fclose(file);
        }
    }
    int count = gdrc_topology(root, NULL, 0);
    struct gdrc_topology_pair *pairs = count > 0 ? calloc((size_t)count, sizeof *pairs) : NULL;
    int now = pairs ? gdrc_topology(root, pairs, (uint32_t)count) : count;
    unsigned printed = 0;
    if (now < 0)
        gx_error(NULL, "reading the topology: %s", gdrc_strerror(now));
    /* A device may have been added in between; the pairs that fit are there. */
    for (int i = 0; pairs && i < now && i < count; i++) {
        const struct gdrc_topology_pair *p = &pairs[i];
        char address[INET6_ADDRSTRLEN], name[256];
        if (p->near < GDRC_NEAR_ROOT_PORT && !all)
            continue;
        name_of(ids, p, name, sizeof name);
        printf("%s (%s) is %s %s %s: %s (rev %02x)", address_of(p->netdev, address), p->nic,
               p->near < GDRC_NEAR_ROOT_PORT ? "far from" : "near", p->gpu_bdf,
               class_words(p->gpu_class), name, p->gpu_revision);
        if (all)
            printf(", sharing %s", near_words(p->near));
        putchar('\n');
        printed++;
    }
    free(pairs);
    if (!printed)
        gx_note("%s", count > 0 ? "no NIC shares a root port with a GPU; --all prints every pair"
                                : "this machine has no NIC or no GPU on PCI");
    return printed ? GX_EXIT_OK : GX_EXIT_FAILED;
}
