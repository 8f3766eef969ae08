#define _GNU_SOURCE
#include "admission/gil.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stddef.h>

static int (*initialized)(void), (*held)(void);
static void *(*save)(void);
static void (*restore)(void *);
static pthread_once_t once = PTHREAD_ONCE_INIT;

static void look_up(void) {
    initialized = (int (*)(void))dlsym(RTLD_DEFAULT, "Py_IsInitialized");
    held = (int (*)(void))dlsym(RTLD_DEFAULT, "PyGILState_Check");
    save = (void *(*)(void))dlsym(RTLD_DEFAULT, "PyEval_SaveThread");
    restore = (void (*)(void *))dlsym(RTLD_DEFAULT, "PyEval_RestoreThread");
}

void *gil_release(void) {
    pthread_once(&once, look_up);
    if (!initialized || !held || !save || !restore) return NULL;
    return initialized() && held() ? save() : NULL;
}

void gil_restore(void *state) {
    if (state) restore(state);
}
