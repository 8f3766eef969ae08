#define _GNU_SOURCE
#include "kernels/recording.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "driver/driver.h"
#include "policy/kinds.h"

enum { LAUNCHES = 1 << 20, PHASE = -1 };

static const char *out_path;
static char device_name[128] = "GPU";
static int device_sms;
static int32_t *launches; /* numbers of kernels in the table, and PHASE */
static size_t launch_count;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

void recording_begin(const char *path) {
    out_path = strdup(path);
    launches = malloc(LAUNCHES * sizeof *launches);
}

void recording_meet_device(void) {
    CUdevice device;
    const driver_table *real = driver();
    if (!out_path || real->context_device(&device) != CUDA_SUCCESS) return;
    real->device_name(device_name, sizeof device_name, device);
    real->device_attribute(&device_sms, CU_DEVICE_ATTRIBUTE_SMS, device);
}

void recording_forget(void) {
    out_path = NULL;
    launches = NULL;
    launch_count = 0;
}

int recording_is_on(void) { return out_path != NULL; }

enum { WRITE_EVERY = 1 << 13 }; /* launches: a program that is killed leaves what was known by then */

static void note(int32_t what) {
    pthread_mutex_lock(&lock);
    if (launch_count < LAUNCHES) launches[launch_count] = what;
    int due = ++launch_count % WRITE_EVERY == 0;
    pthread_mutex_unlock(&lock);
    if (due) recording_write();
}

void recording_launched(const kernel *launched) {
    if (launches && launched) note((int32_t)kernel_index(launched));
}

void recording_phase(void) {
    if (launches) note(PHASE);
}

/* writing */

/* The shortest sequence that the last quarter of all launches repeats: an iteration. 0 where there is none. An
 * iteration may itself end in launches that are all alike. */
static size_t period(const int32_t *order, size_t count) {
    for (size_t length = 2; length <= count / 3; length++) {
        size_t span = count / 4 > 2 * length ? count / 4 : 2 * length;
        const int32_t *last = order + count - span;
        if (memcmp(last, last - length, span * sizeof *order) == 0) return length;
    }
    return 0;
}

static void write_kernel(FILE *file, int32_t number, const kernel *known) {
    const unsigned *grid = known->shape.grid, *block = known->shape.block;
    fprintf(file, "kernel\t%d\t%s\t%u,%u,%u\t%u,%u,%u\t%u\t%u\t%u\t%llu\t%u\t%s\n", number, known->name, grid[0],
            grid[1], grid[2], block[0], block[1], block[2], known->shape.shared, kernel_quantile(known, 0.5),
            kernel_quantile(known, 0.95), (unsigned long long)known->launches, known->work.sms,
            kind_name(known->work.kind));
}

static void write_kernels(FILE *file, int32_t *numbers) {
    int32_t next = 0;
    for (uint32_t index = 0; index < KERNEL_CAPACITY; index++) {
        const kernel *known = kernel_by_index(index);
        if (!known || !known->launches) continue;
        numbers[index] = next++;
        write_kernel(file, numbers[index], known);
    }
}

/* Where the next phase begins; that of the next iteration is not told. */
static void write_phases(FILE *file, const int32_t *order, size_t length) {
    size_t position = 0;
    for (size_t at = 0; at + 1 < length; at++) {
        if (order[at] == PHASE && position)
            fprintf(file, "phase\t%zu\n", position);
        else if (order[at] != PHASE)
            position++;
    }
}

static void write_launches(FILE *file, const int32_t *numbers) {
    size_t count = launch_count < LAUNCHES ? launch_count : LAUNCHES;
    size_t length = period(launches, count);
    const int32_t *order = launches + count - length;
    if (!length) return;
    fputs("launches\t", file);
    for (size_t at = 0, first = 1; at < length; at++) {
        if (order[at] == PHASE) continue;
        fprintf(file, first ? "%d" : " %d", numbers[order[at]]);
        first = 0;
    }
    fputc('\n', file);
    write_phases(file, order, length);
}

static void write_all(FILE *file) {
    int32_t *numbers = calloc(KERNEL_CAPACITY, sizeof *numbers);
    fprintf(file, "astrarium-kernels 1\ndevice\t%s\t%d\n", device_name, device_sms);
    write_kernels(file, numbers);
    write_launches(file, numbers);
    free(numbers);
}

/* It appears whole: readers, and other processes of the same program, never see half of one. */
void recording_write(void) {
    static pthread_mutex_t writing = PTHREAD_MUTEX_INITIALIZER;
    char draft[4096];
    if (!out_path || snprintf(draft, sizeof draft, "%s.%d", out_path, (int)getpid()) >= (int)sizeof draft) return;
    pthread_mutex_lock(&writing);
    FILE *file = fopen(draft, "w");
    if (file) {
        write_all(file);
        fclose(file);
        rename(draft, out_path);
    }
    pthread_mutex_unlock(&writing);
}
