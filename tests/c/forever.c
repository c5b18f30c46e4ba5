// A queue pair without an ACK timeout, between two processes: forever ADDRESS ADDRESS. Its requests
// wait for a peer that does not run, and end when the peer's process has ended. Prints "ok".
#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "rc_pair.h"

static char memory[4096];

// What one side tells the other.
struct end {
    union ibv_gid gid;
    uint32_t qpn, rkey;
    uint64_t addr;
};

static void swap(int fd, const struct end *own, struct end *peer) {
    CHECK(write(fd, own, sizeof *own) == sizeof *own);
    CHECK(read(fd, peer, sizeof *peer) == sizeof *peer);
}

// A queue pair and its memory on a device of this process, connected to the other side's.
static struct ibv_qp *connected(const char *address, int fd, struct ibv_mr **mr, struct end *peer) {
    setenv("GDRC_ADDRESS", address, 1);
    struct ibv_context *ctx = open_device();
    struct ibv_pd *pd = ibv_alloc_pd(ctx);
    struct ibv_cq *cq = ibv_create_cq(ctx, 16, NULL, NULL, 0);
    CHECK(pd && cq && (*mr = ibv_reg_mr(pd, memory, sizeof memory, REMOTE)));
    struct ibv_qp *qp = new_qp(pd, cq, IBV_QPT_RC, 4);
    struct end own = {.qpn = qp->qp_num, .rkey = (*mr)->rkey, .addr = (uintptr_t)memory};
    CHECK(ibv_query_gid(ctx, 1, 0, &own.gid) == 0);
    swap(fd, &own, peer);
    connect_qp_to(qp, &peer->gid, peer->qpn, 0);
    swap(fd, &own, peer);
    return qp;
}

static void trial(char **addresses, int write_first) {
    int fds[2];
    CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, fds) == 0);
    struct ibv_mr *mr;
    struct end peer;
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        close(fds[0]);
        connected(addresses[1], fds[1], &mr, &peer);
        for (;;)
            pause();
    }
    close(fds[1]);
    struct ibv_qp *qp = connected(addresses[0], fds[0], &mr, &peer);
    CHECK(write_to(qp, mr, 100, peer.addr, peer.rkey).status == IBV_WC_SUCCESS);
    // A SEND that has no receive waits for the peer's process, whatever its helper does.
    struct ibv_sge sge = {(uintptr_t)memory, 100, mr->lkey};
    struct ibv_send_wr *bad, send = {.wr_id = 7,
                                     .sg_list = &sge,
                                     .num_sge = 1,
                                     .opcode = IBV_WR_SEND,
                                     .send_flags = IBV_SEND_SIGNALED};
    CHECK(kill(child, SIGSTOP) == 0);
    if (write_first)
        CHECK(ibv_post_send(qp, &send, &bad) == 0);
    CHECK(kill(child, SIGKILL) == 0 && waitpid(child, NULL, 0) == child);
    if (!write_first)
        CHECK(ibv_post_send(qp, &send, &bad) == 0);
    struct ibv_wc wc = next_wc(qp->send_cq);
    CHECK(wc.wr_id == 7 && wc.status == IBV_WC_RETRY_EXC_ERR);
    // Without the other side, the next trial has the addresses for itself.
    CHECK(ibv_destroy_qp(qp) == 0 && ibv_dereg_mr(mr) == 0);
    close(fds[0]);
}

int main(int argc, char **argv) {
    CHECK(argc == 3);
    trial(argv + 1, 1);
    trial(argv + 1, 0);
    puts("ok");
    return 0;
}
