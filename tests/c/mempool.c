/*
 * libmempool.so by the names that FreeFlow's libraries declare: what a program does with it, calls
 * that no program should make, and two threads on one pool. Every byte of a block is looked at.
 */
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "check.h"

/* As FreeFlow's headers have them, with parameters where they have none. */
extern void *mempool_create(void);
extern void *mempool_insert(void *pool, uint32_t key);
extern void *mempool_get(void *pool, uint32_t key);
extern void mempool_del(void *pool, uint32_t key);
extern void mempool_destroy(void *pool);
extern void *memqueue_create(void);
extern void *memqueue_get_new_head(void *queue);
extern void *memqueue_get_tail(void *queue);
extern void memqueue_del_tail(void *queue);
extern void memqueue_destroy(void *queue);

#define BLOCK 32
#define MOST 10240u

static const unsigned char zeroes[BLOCK];

static void fill(void *block, uint32_t key)
{
	memset(block, (int)(key * 37 + 11), BLOCK);
	memcpy(block, &key, sizeof key);
}

static int is_filled(const void *block, uint32_t key)
{
	unsigned char want[BLOCK];

	fill(want, key);
	return block && memcmp(block, want, BLOCK) == 0;
}

static void full_pool(void)
{
	void *pool = mempool_create(), *first, *again;

	CHECK(pool);
	CHECK(!mempool_get(pool, 7));
	for (uint32_t n = 0; n < MOST; n++) {
		void *block = mempool_insert(pool, n * 0x01000193u);

		CHECK(block && (uintptr_t)block % 8 == 0);
		CHECK(memcmp(block, zeroes, BLOCK) == 0);
		fill(block, n);
	}
	CHECK(!mempool_insert(pool, UINT32_MAX));
	first = mempool_get(pool, 0);
	CHECK(mempool_insert(pool, 0) == first && is_filled(first, 0));
	for (uint32_t n = 0; n < MOST; n++)
		CHECK(is_filled(mempool_get(pool, n * 0x01000193u), n));
	mempool_del(pool, 0);
	mempool_del(pool, 0);
	mempool_del(pool, UINT32_MAX);
	CHECK(!mempool_get(pool, 0));
	again = mempool_insert(pool, UINT32_MAX);
	CHECK(again && memcmp(again, zeroes, BLOCK) == 0);
	/* Who writes to what it has deleted hits another block at most. */
	memset(first, 0xff, BLOCK);
	for (uint32_t n = 1; n < MOST; n++)
		CHECK(is_filled(mempool_get(pool, n * 0x01000193u), n));
	CHECK(!mempool_insert(pool, 0));
	mempool_destroy(pool);
	mempool_destroy(pool);
	CHECK(!mempool_get(pool, 1 * 0x01000193u));
}

static void queue(void)
{
	void *q = memqueue_create();

	CHECK(q && !memqueue_get_tail(q));
	memqueue_del_tail(q);
	for (uint32_t round = 0; round < 3; round++) {
		for (uint32_t n = 0; n < MOST; n++) {
			void *block = memqueue_get_new_head(q);

			CHECK(block && memcmp(block, zeroes, BLOCK) == 0);
			fill(block, n + round);
		}
		CHECK(!memqueue_get_new_head(q));
		for (uint32_t n = 0; n < MOST; n++) {
			CHECK(is_filled(memqueue_get_tail(q), n + round));
			memqueue_del_tail(q);
		}
		CHECK(!memqueue_get_tail(q));
	}
	memqueue_destroy(q);
	memqueue_destroy(q);
	CHECK(!memqueue_get_new_head(q));
}

static void strangers(void)
{
	static char text[BLOCK];
	void *none[] = { NULL, text, (void *)-1, (void *)1, (void *)2, (void *)3, &none };

	for (size_t i = 0; i < sizeof none / sizeof *none; i++) {
		CHECK(!mempool_insert(none[i], 1) && !mempool_get(none[i], 1));
		mempool_del(none[i], 1);
		mempool_destroy(none[i]);
		CHECK(!memqueue_get_new_head(none[i]) && !memqueue_get_tail(none[i]));
		memqueue_del_tail(none[i]);
		memqueue_destroy(none[i]);
	}
}

struct worker {
	void *pool;
	uint32_t number;
};

/* Keys of its own, whose bytes are its own, and one that all have. */
static void *work(void *argument)
{
	const struct worker *w = argument;

	for (uint32_t round = 0; round < 200; round++) {
		for (uint32_t n = 0; n < 100; n++)
			fill(mempool_insert(w->pool, n * 2 + w->number), n + round);
		CHECK(mempool_insert(w->pool, 1000));
		mempool_del(w->pool, 1000);
		for (uint32_t n = 0; n < 100; n++)
			CHECK(is_filled(mempool_get(w->pool, n * 2 + w->number), n + round));
		for (uint32_t n = 0; n < 100; n++)
			mempool_del(w->pool, n * 2 + w->number);
	}
	return NULL;
}

static void threads(void)
{
	void *pool = mempool_create();
	struct worker workers[] = { { pool, 0 }, { pool, 1 } };
	pthread_t ids[2];

	for (int i = 0; i < 2; i++)
		CHECK(!pthread_create(&ids[i], NULL, work, &workers[i]));
	for (int i = 0; i < 2; i++)
		CHECK(!pthread_join(ids[i], NULL));
	for (uint32_t n = 0; n < 1001; n++)
		CHECK(!mempool_get(pool, n));
	mempool_destroy(pool);
}

/* One thread uses what the other destroys. */
static void *use(void *queue)
{
	for (int i = 0; i < 100000; i++) {
		memqueue_get_new_head(queue);
		memqueue_get_tail(queue);
		memqueue_del_tail(queue);
	}
	return NULL;
}

static void destroyed_meanwhile(void)
{
	void *q = memqueue_create();
	pthread_t id;

	CHECK(!pthread_create(&id, NULL, use, q));
	memqueue_destroy(q);
	CHECK(!pthread_join(id, NULL));
	CHECK(!memqueue_get_tail(q));
}

static void too_many(void)
{
	void *all[1000];
	size_t n = 0;

	while (n < 1000 && (all[n] = mempool_create()))
		n++;
	CHECK(n >= 200 && n < 1000);
	while (n--)
		mempool_destroy(all[n]);
}

int main(void)
{
	full_pool();
	queue();
	strangers();
	threads();
	destroyed_meanwhile();
	too_many();
	/* Fewer, where the environment says so; nonsense there says nothing. */
	setenv("GDRC_MEMPOOL_ENTRIES", "1", 1);
	void *small = mempool_create();
	CHECK(mempool_insert(small, 5) && !mempool_insert(small, 6));
	setenv("GDRC_MEMPOOL_ENTRIES", "4000000000", 1);
	void *usual = memqueue_create();
	CHECK(memqueue_get_new_head(usual) && memqueue_get_new_head(usual));
	mempool_destroy(small);
	memqueue_destroy(usual);
	puts("ok");
	return 0;
}
