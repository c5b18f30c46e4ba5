/*
 * The files of a device that programs read beside libibverbs: stat, access and open find them,
 * their contents agree with libibverbs, and no other files exist.
 */
#include <errno.h>
#include <fcntl.h>
#include <infiniband/verbs.h>
#include <net/if.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "check.h"

/* Exported under IBVERBS_1.0, but in no current header. */
int ibv_read_sysfs_file(const char *dir, const char *file, char *buf, size_t size);

/* The line that a file holds, read with open and read. */
static const char *line(const char *path)
{
	static char text[256];
	int fd = open(path, O_RDONLY);
	ssize_t n = fd < 0 ? 0 : read(fd, text, sizeof(text) - 1);

	if (fd >= 0)
		close(fd);
	text[n > 0 && text[n - 1] == '\n' ? n - 1 : 0] = 0;
	return text;
}

/* A file that exists but cannot be read: it opens, and read(2) fails with EINVAL. */
static int is_unreadable(const char *path)
{
	char text[16];
	int fd = open(path, O_RDONLY);
	int is = fd >= 0 && read(fd, text, sizeof(text)) < 0 && errno == EINVAL;

	if (fd >= 0)
		close(fd);
	return is;
}

/*
 * An unused entry of the GID table, as Linux shows it: a zero GID by ibv_query_gid and in sysfs,
 * ENODATA where a type is wanted too.
 */
static void unused_gid(struct ibv_device *device, struct ibv_context *context, int i)
{
	static const char *const unreadable[] = { "types", "ndevs" };
	struct ibv_gid_entry one;
	union ibv_gid gid, zero = { 0 };
	char path[512], text[64];

	memset(&gid, 1, sizeof(gid));
	CHECK(ibv_query_gid(context, 1, i, &gid) == 0 && memcmp(&gid, &zero, sizeof(gid)) == 0);
	CHECK(ibv_query_gid_ex(context, 1, i, &one, 0) == ENODATA);
	snprintf(path, sizeof(path), "%s/ports/1/gids/%d", device->ibdev_path, i);
	CHECK(strcmp(line(path), "0000:0000:0000:0000:0000:0000:0000:0000") == 0);
	for (int k = 0; k < 2; k++) {
		snprintf(path, sizeof(path), "%s/ports/1/gid_attrs/%s/%d", device->ibdev_path,
			 unreadable[k], i);
		CHECK(is_unreadable(path));
		FILE *file = fopen(path, "r");
		CHECK(file && !fgets(text, sizeof(text), file) && errno == EINVAL);
		if (file)
			fclose(file);
		snprintf(path, sizeof(path), "ports/1/gid_attrs/%s/%d", unreadable[k], i);
		CHECK(ibv_read_sysfs_file(device->ibdev_path, path, text, sizeof(text)) == -1);
	}
}

/* The GID table is the same by every way of reading it. */
static void gids(struct ibv_device *device)
{
	struct ibv_context *context = ibv_open_device(device);
	struct ibv_gid_entry one, all[32];
	struct ibv_port_attr port;
	char path[512], want[64];
	union ibv_gid gid;
	int used;

	CHECK(context && ibv_query_port(context, 1, &port) == 0);
	used = ibv_query_gid_table(context, all, 32, 0);
	CHECK(used > 3 && used < port.gid_tbl_len);
	CHECK(ibv_query_gid_table(context, all, used, 0) == used);
	CHECK(ibv_query_gid_table(context, all, used - 1, 0) == -EINVAL);
	for (int i = 0; i < used; i++) {
		CHECK(ibv_query_gid(context, 1, i, &gid) == 0);
		CHECK(ibv_query_gid_ex(context, 1, i, &one, 0) == 0 && memcmp(&one, &all[i], sizeof(one)) == 0);
                CHECK(memcmp(&one.gid, &gid, sizeof(gid)) == 0 && one.gid_index == (unsigned)i &&
                      one.port_num == 1);
                CHECK(one.gid_type == (i % 2 ? IBV_GID_TYPE_ROCE_V2 : IBV_GID_TYPE_ROCE_V1));
		snprintf(path, sizeof(path), "%s/ports/1/gid_attrs/types/%d", device->ibdev_path, i);
		CHECK(strcmp(line(path), i % 2 ? "RoCE v2" : "IB/RoCE v1") == 0);
		snprintf(path, sizeof(path), "%s/ports/1/gids/%d", device->ibdev_path, i);
		for (int k = 0; k < 8; k++)
			sprintf(want + 5 * k, "%02x%02x:", gid.raw[2 * k], gid.raw[2 * k + 1]);
		want[39] = 0;
		CHECK(strcmp(line(path), want) == 0);
		snprintf(path, sizeof(path), "%s/ports/1/gid_attrs/ndevs/%d", device->ibdev_path, i);
		CHECK(strcmp(line(path), if_indextoname(one.ndev_ifindex, want) ? want : "") == 0);
	}
	for (int i = used; i < port.gid_tbl_len; i++)
		unused_gid(device, context, i);
	CHECK(ibv_query_gid_ex(context, 1, port.gid_tbl_len, &one, 0) == EINVAL);
	snprintf(path, sizeof(path), "%s/ports/1/gids/%d", device->ibdev_path, port.gid_tbl_len);
	CHECK(open(path, O_RDONLY) < 0 && errno == ENOENT);
	ibv_close_device(context);
}

int main(void)
{
	int n = 0;
	struct ibv_device **list = ibv_get_device_list(&n);
	char path[512], text[64], want[64];
	struct stat st;

	CHECK(list && n == 1);
	if (!n)
		return 1;
	snprintf(path, sizeof(path), "/dev/infiniband/%s", list[0]->dev_name);
	CHECK(stat(path, &st) == 0 && S_ISCHR(st.st_mode));
	CHECK(access(path, R_OK | W_OK) == 0);
	CHECK(access(path, X_OK) < 0 && errno == EACCES);
	CHECK(stat("/dev/infiniband/rdma_cm", &st) == 0 && S_ISCHR(st.st_mode));
	CHECK(stat("/dev/infiniband/uverbs7", &st) < 0 && errno == ENOENT);

	snprintf(path, sizeof(path), "%s/ports/1/gid_attrs/types/1", list[0]->ibdev_path);
	CHECK(stat(path, &st) == 0 && S_ISREG(st.st_mode));
	CHECK(access(path, R_OK) == 0);
	CHECK(access(path, W_OK) < 0 && errno == EACCES);
	CHECK(open(path, O_RDWR) < 0 && errno == EACCES);
	CHECK(strcmp(line(path), "RoCE v2") == 0);
        CHECK(ibv_read_sysfs_file(list[0]->ibdev_path, "ports/1/gid_attrs/types/1", text,
                                  sizeof(text)) == 7);
        CHECK(strcmp(text, "RoCE v2") == 0);

	gids(list[0]);

	uint64_t guid = be64toh(ibv_get_device_guid(list[0]));
        snprintf(want, sizeof(want), "%04x:%04x:%04x:%04x", (unsigned)(guid >> 48),
                 (unsigned)(guid >> 32 & 0xffff), (unsigned)(guid >> 16 & 0xffff),
                 (unsigned)(guid & 0xffff));
        snprintf(path, sizeof(path), "%s/node_guid", list[0]->ibdev_path);
	CHECK(strcmp(line(path), want) == 0);

	snprintf(path, sizeof(path), "%s/ports/2/state", list[0]->ibdev_path);
	CHECK(open(path, O_RDONLY) < 0 && errno == ENOENT);
	/* Other names are passed on to the kernel. */
	CHECK(stat("/proc/self/exe", &st) == 0 && S_ISREG(st.st_mode) && st.st_size > 0);
	CHECK(access("/dev/null", R_OK | W_OK) == 0);
	ibv_free_device_list(list);
	printf("ok\n");
	return 0;
}
