/*
 * An MPI program that checks every byte: a ring of messages of all sizes, from any source in any
 * order, one-sided puts and atomics, collectives. The library copies small messages and sends large
 * ones by RDMA; it chooses the limit.
 */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define LARGEST (8 << 20)

static int rank, ranks;

static void check(int ok, const char *what)
{
	if (!ok) {
		fprintf(stderr, "rank %d: wrong: %s\n", rank, what);
		MPI_Abort(MPI_COMM_WORLD, 1);
	}
}

/* The data that rank `from` sends: no two messages are equal, and none equals itself shifted. */
static void fill(unsigned char *at, size_t len, unsigned from, unsigned salt)
{
	unsigned x = from * 2654435761u + salt * 40503u + (unsigned)len + 1;

	for (size_t i = 0; i < len; i++) {
		x = x * 1664525u + 1013904223u;
		at[i] = (unsigned char)(x >> 24);
	}
}

static void ring(unsigned char *out, unsigned char *in, unsigned char *want)
{
    static const size_t sizes[] = { 0,    1,    8,     100,    1000,    4096,
                                    8192, 8193, 65536, 262144, 1000003, LARGEST };
    int right = (rank + 1) % ranks, left = (rank + ranks - 1) % ranks;

    for (size_t i = 0; i < sizeof(sizes) / sizeof(*sizes); i++) {
        for (unsigned round = 0; round < 3; round++) {
            MPI_Status status;
            int n;

            fill(out, sizes[i], (unsigned)rank, round);
            fill(want, sizes[i], (unsigned)left, round);
            memset(in, 0, sizes[i]);
            MPI_Sendrecv(out, (int)sizes[i], MPI_BYTE, right, (int)round, in, LARGEST, MPI_BYTE,
                         left, (int)round, MPI_COMM_WORLD, &status);
            MPI_Get_count(&status, MPI_BYTE, &n);
            check((size_t)n == sizes[i], "length of a message");
            check(memcmp(in, want, sizes[i]) == 0, "bytes of a message");
        }
	}
}

/* Many messages at once, received in the reverse order of their sending. */
static void many(void)
{
	enum { N = 64, LEN = 20000 };
	int right = (rank + 1) % ranks, left = (rank + ranks - 1) % ranks;
	unsigned char *out = malloc(N * LEN), *in = calloc(N, LEN), *want = malloc(LEN);
	MPI_Request all[2 * N];

	check(out && in && want, "memory");
	for (int i = 0; i < N; i++)
		fill(out + i * LEN, LEN, (unsigned)rank, 1000u + (unsigned)i);
	for (int i = N - 1; i >= 0; i--)
		MPI_Irecv(in + i * LEN, LEN, MPI_BYTE, left, 100 + i, MPI_COMM_WORLD, &all[i]);
	for (int i = 0; i < N; i++)
		MPI_Isend(out + i * LEN, LEN, MPI_BYTE, right, 100 + i, MPI_COMM_WORLD, &all[N + i]);
	MPI_Waitall(2 * N, all, MPI_STATUSES_IGNORE);
	for (int i = 0; i < N; i++) {
		fill(want, LEN, (unsigned)left, 1000u + (unsigned)i);
		check(memcmp(in + i * LEN, want, LEN) == 0, "one of many messages");
	}
	free(out);
	free(in);
	free(want);
}

static void collectives(void)
{
	enum { N = 200000 };
	long *mine = malloc(N * sizeof(long)), *sum = malloc(N * sizeof(long));
	long pair = (long)ranks * (ranks - 1) / 2;

	check(mine && sum, "memory");
	for (int len = 1; len <= N; len = len < N && len * 20 > N ? N : len * 20) {
		for (int i = 0; i < len; i++)
			mine[i] = (long)rank * i + i;
		MPI_Allreduce(mine, sum, len, MPI_LONG, MPI_SUM, MPI_COMM_WORLD);
		for (int i = 0; i < len; i++)
			check(sum[i] == pair * i + (long)ranks * i, "sum");
		if (len == N)
			break;
	}
	for (int root = 0; root < ranks; root++) {
		for (int i = 0; i < N; i++)
			mine[i] = rank == root ? (long)root * 7 + i : -1;
		MPI_Bcast(mine, N, MPI_LONG, root, MPI_COMM_WORLD);
		for (int i = 0; i < N; i++)
			check(mine[i] == (long)root * 7 + i, "broadcast");
	}
	for (int i = 0; i < ranks * 1000; i++)
		mine[i] = (long)rank * 1000000 + i;
	MPI_Alltoall(mine, 1000, MPI_LONG, sum, 1000, MPI_LONG, MPI_COMM_WORLD);
	for (int r = 0; r < ranks; r++)
		for (int i = 0; i < 1000; i++)
			check(sum[r * 1000 + i] == (long)r * 1000000 + rank * 1000 + i, "all to all");
	MPI_Barrier(MPI_COMM_WORLD);
	free(mine);
	free(sum);
}

static void one_sided(void)
{
	enum { N = 1000, ADDS = 100 };
	long *window, one = 1, block[N];
	MPI_Win win;

        MPI_Win_allocate((MPI_Aint)((ranks * N + 1) * (int)sizeof(long)), sizeof(long),
                         MPI_INFO_NULL, MPI_COMM_WORLD, &window, &win);
        memset(window, 0, (size_t)(ranks * N + 1) * sizeof(long));
	MPI_Win_fence(0, win);
	for (int i = 0; i < N; i++)
		block[i] = (long)rank * N + i;
	for (int r = 0; r < ranks; r++)
		MPI_Put(block, N, MPI_LONG, r, (MPI_Aint)rank * N, N, MPI_LONG, win);
	for (int i = 0; i < ADDS; i++)
		MPI_Accumulate(&one, 1, MPI_LONG, 0, (MPI_Aint)ranks * N, 1, MPI_LONG, MPI_SUM, win);
	MPI_Win_fence(0, win);
	for (int i = 0; i < ranks * N; i++)
		check(window[i] == i, "put");
	if (rank == 0)
		check(window[ranks * N] == (long)ranks * ADDS, "accumulate");
	MPI_Win_free(&win);
}

int main(int argc, char **argv)
{
	unsigned char *buffers = malloc(3u * LARGEST);

	MPI_Init(&argc, &argv);
	MPI_Comm_rank(MPI_COMM_WORLD, &rank);
	MPI_Comm_size(MPI_COMM_WORLD, &ranks);
	check(buffers != NULL && ranks > 1, "two ranks at least, and memory");
	ring(buffers, buffers + LARGEST, buffers + 2 * (size_t)LARGEST);
	many();
	collectives();
	one_sided();
	if (rank == 0)
		printf("ok %d ranks\n", ranks);
	MPI_Finalize();
	free(buffers);
	return 0;
}
