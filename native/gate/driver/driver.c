#define _GNU_SOURCE
#include "driver/driver.h"

#include <dlfcn.h>
#include <pthread.h>

static driver_table table;
static void *handle;
static pthread_once_t once = PTHREAD_ONCE_INIT;

static void resolve(void) {
    handle = dlopen("libcuda_gate_real.so", RTLD_NOLOAD | RTLD_NOW);
#define X(name, symbol, arguments) table.name = (CUresult(*) arguments)driver_symbol(symbol);
    DRIVER_FUNCTIONS(X)
#undef X
}

void *driver_symbol(const char *name) { return handle ? dlsym(handle, name) : NULL; }

const driver_table *driver(void) {
    pthread_once(&once, resolve);
    return &table;
}
