/*
 * The device file of rdma_cm under gdrcore-run: what open, fstat, write and close do, the kernel's
 * layouts, and the answers to garbage. Prints "ok" at the end; any other end is a failure.
 */
#include <arpa/inet.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <rdma/rdma_user_cm.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <infiniband/verbs.h>

#include "check.h"

#define PATH "/dev/infiniband/rdma_cm"

/* A call that fails with this errno. */
#define FAILS(e, call) CHECK((errno = 0, (call) == -1) && errno == (e))

struct command {
	struct rdma_ucm_cmd_hdr head;
	char body[sizeof(struct rdma_ucm_resolve_addr)];
};

static ssize_t send_command(int fd, uint32_t number, const void *body, size_t len, void *answer,
                            size_t room)
{
    struct command c;
    memset(&c, 0, sizeof c);
    c.head.cmd = number;
    c.head.in = len;
    c.head.out = room;
    memcpy(c.body, body, len);
    (void)answer;
    return write(fd, &c, sizeof c.head + len);
}

static int open_file(int flags) {
	int fd = open(PATH, O_RDWR | O_CLOEXEC | flags);
	CHECK(fd >= 0);
	return fd;
}

static uint32_t create(int fd, uint64_t uid, uint16_t ps) {
	struct rdma_ucm_create_id_resp r = {0};
        struct rdma_ucm_create_id c = {
            .uid = uid,
            .response = (uintptr_t)&r,
            .ps = ps,
            .qp_type = IBV_QPT_RC,
        };
        CHECK(send_command(fd, RDMA_USER_CM_CMD_CREATE_ID, &c, sizeof c, &r, sizeof r) > 0);
	return r.id;
}

static int is_readable(int fd) {
	struct pollfd p = {.fd = fd, .events = POLLIN};
	return poll(&p, 1, 0) == 1;
}

static int descriptors(void) {
	int n = 0;
	DIR *d = opendir("/proc/self/fd");
	CHECK(d);
	while (readdir(d))
		n++;
	closedir(d);
	return n;
}

/*
 * Resolves an address of this host: an event, then the answer of QUERY_ROUTE, all in the header's
 * own structs.
 */
static void layouts(const char *address) {
	int fd = open_file(O_NONBLOCK);
	uint32_t id = create(fd, 0x1234567890abcdef, RDMA_PS_TCP);
	struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons(7471)};
	CHECK(inet_pton(AF_INET, address, &to.sin_addr) == 1);
	struct rdma_ucm_resolve_ip r = {.id = id, .timeout_ms = 1000};
	memcpy(&r.dst_addr, &to, sizeof to);
	CHECK(!is_readable(fd));
	CHECK(send_command(fd, RDMA_USER_CM_CMD_RESOLVE_IP, &r, sizeof r, NULL, 0) > 0);
	CHECK(is_readable(fd));
	struct rdma_ucm_event_resp e;
	struct rdma_ucm_get_event g = {.response = (uintptr_t)&e};
	memset(&e, 0xff, sizeof e);
	CHECK(send_command(fd, RDMA_USER_CM_CMD_GET_EVENT, &g, sizeof g, &e, sizeof e) > 0);
	CHECK(e.uid == 0x1234567890abcdef && e.id == id && e.event == 0 && e.status == 0);
	CHECK(e.param.conn.private_data_len == 0 && e.ece.vendor_id == 0);
	CHECK(!is_readable(fd));
	FAILS(EAGAIN, send_command(fd, RDMA_USER_CM_CMD_GET_EVENT, &g, sizeof g, &e, sizeof e));
	struct rdma_ucm_resolve_route rr = {.id = id, .timeout_ms = 1000};
	CHECK(send_command(fd, RDMA_USER_CM_CMD_RESOLVE_ROUTE, &rr, sizeof rr, NULL, 0) > 0);
	struct rdma_ucm_query_route_resp q;
	memset(&q, 0xff, sizeof q);
	struct rdma_ucm_query c = {.response = (uintptr_t)&q, .id = id};
	CHECK(send_command(fd, RDMA_USER_CM_CMD_QUERY_ROUTE, &c, sizeof c, &q, sizeof q) > 0);
	int n;
	struct ibv_device **list = ibv_get_device_list(&n);
	CHECK(list && n == 1);
        CHECK(q.node_guid == ibv_get_device_guid(list[0]) &&
              (int)q.ibdev_index == ibv_get_device_index(list[0]));
        CHECK(q.num_paths == 1 && q.port_num == 1);
        struct sockaddr_in *dst = (struct sockaddr_in *)&q.dst_addr,
                           *src = (struct sockaddr_in *)&q.src_addr;
        CHECK(dst->sin_family == AF_INET && dst->sin_addr.s_addr == to.sin_addr.s_addr &&
              dst->sin_port == to.sin_port);
        CHECK(src->sin_family == AF_INET && src->sin_port != 0);
        CHECK(memcmp(q.ib_route[0].dgid + 12, &to.sin_addr, 4) == 0 && q.ib_route[0].mtu >= 1 &&
              q.ib_route[0].mtu <= 5);
        struct ib_uverbs_qp_attr a;
	memset(&a, 0xff, sizeof a);
	struct rdma_ucm_init_qp_attr i = {.response = (uintptr_t)&a, .id = id, .qp_state = IBV_QPS_INIT};
	CHECK(send_command(fd, RDMA_USER_CM_CMD_INIT_QP_ATTR, &i, sizeof i, &a, sizeof a) > 0);
	CHECK(a.qp_attr_mask == (IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS));
	CHECK(a.qp_state == IBV_QPS_INIT && a.port_num == 1 && a.pkey_index == 0);
	ibv_free_device_list(list);
	struct rdma_ucm_destroy_id_resp gone = {0};
	struct rdma_ucm_destroy_id d = {.response = (uintptr_t)&gone, .id = id};
	CHECK(send_command(fd, RDMA_USER_CM_CMD_DESTROY_ID, &d, sizeof d, &gone, sizeof gone) > 0);
	CHECK(gone.events_reported == 1);
	FAILS(ENOENT, send_command(fd, RDMA_USER_CM_CMD_DESTROY_ID, &d, sizeof d, &gone, sizeof gone));
	CHECK(close(fd) == 0);
}

static void garbage(void) {
	int fd = open_file(O_NONBLOCK);
	struct command c;
	unsigned seed = 7;
	FAILS(EINVAL, write(fd, &c, 0));
	FAILS(EINVAL, write(fd, &c, 7));
	void *volatile nowhere = (void *)8;
	FAILS(EFAULT, write(fd, nowhere, 64));
	memset(&c, 0, sizeof c);
	c.head.cmd = RDMA_USER_CM_CMD_GET_OPTION;
	c.head.in = sizeof c.body;
	FAILS(EINVAL, write(fd, &c, sizeof c));
	/* An answer whose buffer is not writable. */
	struct rdma_ucm_create_id bad = {.response = 8, .ps = RDMA_PS_TCP};
	FAILS(EFAULT, send_command(fd, RDMA_USER_CM_CMD_CREATE_ID, &bad, sizeof bad, NULL, 4));
	FAILS(ENOSPC, send_command(fd, RDMA_USER_CM_CMD_CREATE_ID, &bad, sizeof bad, NULL, 3));
	for (int i = 0; i < 20000; i++) {
		for (size_t k = 0; k < sizeof c; k++)
			((unsigned char *)&c)[k] = rand_r(&seed) % 4 ? 0 : rand_r(&seed);
		c.head.cmd = rand_r(&seed) % 24;
		c.head.in = rand_r(&seed) % (sizeof c.body + 1);
		c.head.out = 512;
		(void)!write(fd, &c, sizeof c.head + rand_r(&seed) % (sizeof c.body + 1));
	}
	CHECK(close(fd) == 0);
	FAILS(EBADF, write(fd, &c, sizeof c));
}

int main(int argc, char **argv) {
	CHECK(argc == 2);
	struct stat st;
	int fd = open_file(0);
	CHECK(fstat(fd, &st) == 0 && S_ISCHR(st.st_mode));
	/* A descriptor number that now refers to another file is no device file. */
	int null = open("/dev/null", O_RDWR);
	CHECK(dup2(null, fd) == fd && write(fd, "any", 3) == 3);
	CHECK(close(fd) == 0);
	layouts(argv[1]);
	int before = descriptors();
	garbage();
	for (int i = 0; i < 1000; i++) {
		fd = open_file(0);
		create(fd, 1, RDMA_PS_TCP);
		CHECK(close(fd) == 0);
	}
	CHECK(descriptors() == before);
	puts("ok");
	return 0;
}
