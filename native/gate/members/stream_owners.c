#include "members/stream_owners.h"

#include <string.h>

#include "board/atomics.h"

enum { CAPACITY = 256, PROBES = 16 };

static struct {
    uintptr_t key; /* the stream + 1; 0: a free entry */
    int place;
} owners[CAPACITY];

static uintptr_t key_of(CUstream stream) { return (uintptr_t)stream + 1; }
static unsigned slot(uintptr_t key, unsigned step) { return (unsigned)((key >> 4) + step) % CAPACITY; }

void stream_owners_remember(CUstream stream, int place) {
    uintptr_t key = key_of(stream);
    for (unsigned step = 0; step < PROBES; step++) {
        unsigned at = slot(key, step);
        if (owners[at].key && owners[at].key != key) continue;
        owners[at].place = place;
        STORE(owners[at].key, key);
        return;
    }
}

int stream_owners_find(CUstream stream, int otherwise) {
    uintptr_t key = key_of(stream);
    for (unsigned step = 0; step < PROBES; step++) {
        unsigned at = slot(key, step);
        if (LOAD(owners[at].key) == key) return owners[at].place;
    }
    return otherwise;
}

void stream_owners_forget_stream(CUstream stream, int instead) {
    uintptr_t key = key_of(stream);
    for (unsigned step = 0; step < PROBES; step++)
        if (owners[slot(key, step)].key == key) owners[slot(key, step)].place = instead;
}

void stream_owners_forget_place(int place, int instead) {
    for (int at = 0; at < CAPACITY; at++)
        if (owners[at].key && owners[at].place == place) owners[at].place = instead;
}

void stream_owners_forget_all(void) { memset(owners, 0, sizeof owners); }
