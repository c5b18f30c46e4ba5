/*
 * The files of a device that programs look at beside libibverbs: there for stat, access and open, with what libibverbs says in
 * them, and nothing more than that.
 */
#include <errno.h>
#include <fcntl.h>
#include <infiniband/verbs.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* Exported under IBVERBS_1.0, and in no header of today. */
int ibv_read_sysfs_file(const char *dir, const char *file, char *buf, size_t size);

static int failed;

#define CHECK(what)                                                                                                                \
	do {                                                                                                                       \
		if (!(what)) {                                                                                                     \
			fprintf(stderr, "line %d: %s (errno %d)\n", __LINE__, #what, errno);                                      \
			failed = 1;                                                                                                \
		}                                                                                                                  \
	} while (0)

/* The line that a file holds, by open and read. */
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

	snprintf(path, sizeof(path), "%s/ports/1/gid_attrs/types/0", list[0]->ibdev_path);
	CHECK(stat(path, &st) == 0 && S_ISREG(st.st_mode));
	CHECK(access(path, R_OK) == 0);
	CHECK(access(path, W_OK) < 0 && errno == EACCES);
	CHECK(open(path, O_RDWR) < 0 && errno == EACCES);
	CHECK(strcmp(line(path), "RoCE v2") == 0);
	CHECK(ibv_read_sysfs_file(list[0]->ibdev_path, "ports/1/gid_attrs/types/0", text, sizeof(text)) == 7);
	CHECK(strcmp(text, "RoCE v2") == 0);

	uint64_t guid = be64toh(ibv_get_device_guid(list[0]));
	snprintf(want, sizeof(want), "%04x:%04x:%04x:%04x", (unsigned)(guid >> 48), (unsigned)(guid >> 32 & 0xffff),
		 (unsigned)(guid >> 16 & 0xffff), (unsigned)(guid & 0xffff));
	snprintf(path, sizeof(path), "%s/node_guid", list[0]->ibdev_path);
	CHECK(strcmp(line(path), want) == 0);

	snprintf(path, sizeof(path), "%s/ports/2/state", list[0]->ibdev_path);
	CHECK(open(path, O_RDONLY) < 0 && errno == ENOENT);
	/* Other names go on to the kernel. */
	CHECK(stat("/proc/self/exe", &st) == 0 && S_ISREG(st.st_mode) && st.st_size > 0);
	CHECK(access("/dev/null", R_OK | W_OK) == 0);
	ibv_free_device_list(list);
	if (!failed)
		printf("ok\n");
	return failed;
}
