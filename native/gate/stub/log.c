/* The log of calls: how often each was made, its latest arguments, and the order of launches. */
#include <stdlib.h>
#include <string.h>

#include "stub.h"

enum { NAMES = 128, ARGUMENTS = 10, LAUNCHES = 65536 };

static struct entry {
    const char *call;
    uint64_t count, last[ARGUMENTS];
} entries[NAMES];

static CUfunction launches[LAUNCHES];
static uint64_t launch_count;

static struct entry *entry_of(const char *call) {
    for (int index = 0; index < NAMES; index++)
        if (!entries[index].call || strcmp(entries[index].call, call) == 0) return &entries[index];
    abort(); /* the stub has fewer calls than that */
}

void stub_note(const char *call, const uint64_t *arguments, int count) {
    struct entry *entry = entry_of(call);
    entry->call = call;
    entry->count++;
    memcpy(entry->last, arguments, sizeof *arguments * (size_t)count);
}

void stub_remember_launch(CUfunction function) { launches[launch_count++ % LAUNCHES] = function; }

/* How often a function of this exact name was called, with its suffix. */
EXPORT uint64_t stub_calls(const char *call) {
    stub_lock();
    uint64_t count = entry_of(call)->count;
    stub_unlock();
    return count;
}

/* The arguments of the latest such call, by number, without those that it only writes to. */
EXPORT uint64_t stub_last(const char *call, int argument) {
    stub_lock();
    uint64_t value = entry_of(call)->last[argument];
    stub_unlock();
    return value;
}

/* So many kernels were launched outside of captures; the name of one of them; NULL past the end. */
EXPORT uint64_t stub_launches(void) {
    stub_lock();
    uint64_t count = launch_count;
    stub_unlock();
    return count;
}

EXPORT const char *stub_launch(uint64_t index) {
    stub_lock();
    const char *name = index < launch_count ? launches[index % LAUNCHES]->name : NULL;
    stub_unlock();
    return name;
}
