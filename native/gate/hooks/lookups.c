/* Programs that ask for addresses get ours for theirs. By address, so that a version with other arguments is never
 * taken for one of these. */
#include <pthread.h>

#include "hooks/hooks.h"

enum {
#define X(name, arguments) NUMBER_##name,
    HOOKS(X)
#undef X
        HOOK_COUNT
};

static struct {
    const void *theirs;
    void *ours;
} hooks[HOOK_COUNT];
static pthread_once_t once = PTHREAD_ONCE_INIT;

static void find_theirs(void) {
    driver();
#define X(name, arguments)                              \
    hooks[NUMBER_##name].theirs = driver_symbol(#name); \
    hooks[NUMBER_##name].ours = (void *)name;
    HOOKS(X)
#undef X
}

/* Ours for the driver's function at *theirs*, or NULL: it stays as it is. */
static void *hook_for(const void *theirs) {
    pthread_once(&once, find_theirs);
    for (int number = 0; number < HOOK_COUNT; number++)
        if (hooks[number].theirs && hooks[number].theirs == theirs) return hooks[number].ours;
    return NULL;
}

static CUresult swapped(CUresult result, void **address) {
    void *ours = result == CUDA_SUCCESS && address && *address ? hook_for(*address) : NULL;
    if (ours) *address = ours;
    return result;
}

EXPORT CUresult cuGetProcAddress(const char *symbol, void **address, int version, uint64_t flags) {
    return swapped(driver()->get_proc_4(symbol, address, version, flags), address);
}

EXPORT CUresult cuGetProcAddress_v2(const char *symbol, void **address, int version, uint64_t flags, int *status) {
    return swapped(driver()->get_proc_5(symbol, address, version, flags, status), address);
}
