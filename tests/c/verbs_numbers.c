/*
 * verbs_numbers COUNT PAIRS: as numbers.c, through libibverbs. Creates and destroys COUNT queue
 * pairs that are never connected, one after another, then PAIRS pairs that exchange a message.
 * Prints "ok". C11.
 */
#include <errno.h>
#include <infiniband/verbs.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "rc_pair.h"

static unsigned long made, pairs;
static char memory[128];
static struct ibv_context *ctx;
static struct ibv_pd *pd;
static struct ibv_cq *cq;
static struct ibv_mr *mr;

static void talk(void)
{
    struct ibv_qp *a = new_qp(pd, cq, IBV_QPT_RC, 1), *b = new_qp(pd, cq, IBV_QPT_RC, 1);
    connect_both(a, b);
    memset(memory, (int)pairs, 64);
    CHECK(write_to(a, mr, 64, (uintptr_t)memory + 64, mr->rkey).status == IBV_WC_SUCCESS);
    CHECK(memcmp(memory, memory + 64, 64) == 0);
    CHECK(ibv_destroy_qp(a) == 0 && ibv_destroy_qp(b) == 0);
}

int main(int argc, char **argv)
{
    if (argc != 3) {
        fprintf(stderr, "usage: verbs_numbers COUNT PAIRS\n");
        return 2;
    }
    unsigned long count = strtoul(argv[1], NULL, 10), talks = strtoul(argv[2], NULL, 10);
    ctx = open_device();
    CHECK((pd = ibv_alloc_pd(ctx)) && (cq = ibv_create_cq(ctx, 16, NULL, NULL, 0)));
    CHECK((mr = ibv_reg_mr(pd, memory, sizeof memory,
                           IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE)));
    static const enum ibv_qp_type types[3] = {IBV_QPT_RC, IBV_QPT_UC, IBV_QPT_UD};
    for (; made < count; made++)
        CHECK(ibv_destroy_qp(new_qp(pd, cq, types[made % 3], 1)) == 0);
    for (; pairs < talks; pairs++)
        talk();
    CHECK(ibv_dereg_mr(mr) == 0 && ibv_destroy_cq(cq) == 0 && ibv_dealloc_pd(pd) == 0 &&
          ibv_close_device(ctx) == 0);
    printf("ok: %lu queue pairs, %lu connected pairs\n", made, pairs);
    return 0;
}
