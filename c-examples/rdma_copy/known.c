// SPDX-License-Identifier: MIT OR Apache-2.0
/* The client's table of answers: open addressing, twice as many places as entries. */
#include "copy.h"

#include <errno.h>
#include <stdlib.h>

static struct answer *place_of(const struct known *k, uint64_t hash, uint64_t size, uint64_t mtime)
{
    for (size_t i = (size_t)hash & (k->capacity - 1);; i = (i + 1) & (k->capacity - 1)) {
        struct answer *a = &k->table[i];
        if (!a->type || (a->hash == hash && a->size == size && a->mtime == mtime))
            return a;
    }
}

int known_add(struct known *k, const struct answer *a)
{
    if (2 * (k->count + 1) > k->capacity) {
        struct known larger = { .capacity = k->capacity ? 2 * k->capacity : 1024 };
        larger.table = calloc(larger.capacity, sizeof *larger.table);
        if (!larger.table)
            return -ENOMEM;
        for (size_t i = 0; i < k->capacity; i++)
            if (k->table[i].type)
                *place_of(&larger, k->table[i].hash, k->table[i].size, k->table[i].mtime) =
                    k->table[i];
        larger.count = k->count;
        free(k->table);
        *k = larger;
    }
    struct answer *at = place_of(k, a->hash, a->size, a->mtime);
    k->count += !at->type;
    *at = *a;
    return 0;
}

const struct answer *known_find(const struct known *k, uint64_t hash, uint64_t size, uint64_t mtime)
{
    const struct answer *a = k->capacity ? place_of(k, hash, size, mtime) : NULL;
    return a && a->type ? a : NULL;
}

void known_free(struct known *k)
{
    free(k->table);
    *k = (struct known){ 0 };
}
