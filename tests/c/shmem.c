// OpenSHMEM among all PEs: puts, gets, atomics, a lock and collectives, every byte checked. Exit
// code 0: all bytes were right.
#include <shmem.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CHECK(what)                                                                          \
    do {                                                                                     \
        if (!(what)) {                                                                       \
            fprintf(stderr, "%s:%d: PE %d: %s\n", __FILE__, __LINE__, shmem_my_pe(), #what); \
            shmem_global_exit(1);                                                            \
        }                                                                                    \
    } while (0)

#define LONGEST (1 << 20)
#define ADDS 500

// Byte i of the data that a PE sends to another in a round.
static unsigned char said(int from, int to, int round, size_t i) {
    return (unsigned char)(from * 31 + to * 17 + round * 7 + i * 3 + (i >> 8));
}

static long sync_area[SHMEM_REDUCE_SYNC_SIZE], bcast_area[SHMEM_BCAST_SYNC_SIZE],
    collect_area[SHMEM_COLLECT_SYNC_SIZE];
static long work[SHMEM_REDUCE_MIN_WRKDATA_SIZE + 64];
static long lock;

// Each PE writes to its own part of each other PE's memory, and reads back what the others have
// written.
static void puts_and_gets(unsigned char *room, int me, int all) {
    static const size_t lengths[] = {1, 7, 8, 64, 1000, 4096, 65537, LONGEST};
    unsigned char *mine = malloc(LONGEST);
    CHECK(mine);
    for (int round = 0; round < (int)(sizeof lengths / sizeof *lengths); round++) {
        size_t n = lengths[round];
        for (int to = 0; to < all; to++) {
            for (size_t i = 0; i < n; i++)
                mine[i] = said(me, to, round, i);
            shmem_putmem(room + (size_t)me * LONGEST, mine, n, to);
        }
        shmem_barrier_all();
        for (int from = 0; from < all; from++)
            for (size_t i = 0; i < n; i++)
                CHECK(room[(size_t)from * LONGEST + i] == said(from, me, round, i));
        int other = (me + 1) % all;
        for (int from = 0; from < all; from++) {
            shmem_getmem(mine, room + (size_t)from * LONGEST, n, other);
            for (size_t i = 0; i < n; i++)
                CHECK(mine[i] == said(from, other, round, i));
        }
        shmem_barrier_all();
    }
    free(mine);
}

static void atomics(long *cell, int me, int all) {
    *cell = 0;
    shmem_barrier_all();
    for (int i = 0; i < ADDS; i++) {
        long before = shmem_long_atomic_fetch_add(cell, 1, 0);
        CHECK(before >= 0 && before < (long)ADDS * all);
    }
    shmem_barrier_all();
    CHECK(shmem_long_atomic_fetch(cell, 0) == (long)ADDS * all);
    shmem_barrier_all();
    // Only one PE's swap succeeds.
    if (me == 0)
        *cell = -1;
    shmem_barrier_all();
    long was = shmem_long_atomic_compare_swap(cell, -1, me, 0);
    shmem_barrier_all();
    CHECK((was == -1) == (shmem_long_atomic_fetch(cell, 0) == me));
    shmem_barrier_all();
    // A counter without atomics, protected by a lock.
    if (me == 0)
        *cell = 0;
    shmem_barrier_all();
    for (int i = 0; i < 50; i++) {
        shmem_set_lock(&lock);
        long n = shmem_long_g(cell, 0);
        shmem_long_p(cell, n + 1, 0);
        shmem_quiet();
        shmem_clear_lock(&lock);
    }
    shmem_barrier_all();
    CHECK(shmem_long_g(cell, 0) == 50L * all);
    shmem_barrier_all();
}

static void collectives(long *from, long *to, int me, int all) {
    for (int i = 0; i < 64; i++)
        from[i] = me * 100 + i;
    shmem_barrier_all();
    shmem_long_sum_to_all(to, from, 64, 0, 0, all, work, sync_area);
    for (int i = 0; i < 64; i++)
        CHECK(to[i] == 100L * all * (all - 1) / 2 + (long)i * all);
    shmem_barrier_all();
    shmem_broadcast64(to, from, 64, 0, 0, 0, all, bcast_area);
    for (int i = 0; me != 0 && i < 64; i++)
        CHECK(to[i] == i);
    shmem_barrier_all();
    shmem_fcollect64(to, from, 64, 0, 0, all, collect_area);
    for (int pe = 0; pe < all; pe++)
        for (int i = 0; i < 64; i++)
            CHECK(to[pe * 64 + i] == pe * 100 + i);
    shmem_barrier_all();
}

int main(void) {
    for (int i = 0; i < SHMEM_REDUCE_SYNC_SIZE; i++)
        sync_area[i] = SHMEM_SYNC_VALUE;
    for (int i = 0; i < SHMEM_BCAST_SYNC_SIZE; i++)
        bcast_area[i] = SHMEM_SYNC_VALUE;
    for (int i = 0; i < SHMEM_COLLECT_SYNC_SIZE; i++)
        collect_area[i] = SHMEM_SYNC_VALUE;
    shmem_init();
    int me = shmem_my_pe(), all = shmem_n_pes();
    unsigned char *room = shmem_malloc((size_t)all * LONGEST);
    long *cell = shmem_malloc(sizeof *cell), *from = shmem_malloc(64 * sizeof *from),
         *to = shmem_malloc(64 * sizeof *to * (size_t)all);
    CHECK(all > 1 && room && cell && from && to);
    puts_and_gets(room, me, all);
    atomics(cell, me, all);
    collectives(from, to, me, all);
    if (me == 0)
        printf("%d PEs: every byte was right\n", all);
    shmem_finalize();
    return 0;
}
