#define _GNU_SOURCE
#include "profile.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "driver.h"
#include "kinds.h"

enum { LAUNCHES = 1 << 20, PHASE = -1 };

typedef struct line {
    char *name;
    unsigned grid[3], block[3], shared, sms;
    uint64_t duration;
    gate_kind kind;
} line;

static line *lines;
static size_t line_count;
static const char *out_path;
static char device_name[128] = "GPU"; /* asked for while the driver still answers */
static int device_sms;
static int32_t *launches;
static size_t launch_count;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

/* reading */

static int parsed(char *text, line *into) {
    char kind[16] = "";
    char *fields[11], *rest = text;
    for (int field = 0; field < 11; field++)
        if (!(fields[field] = strsep(&rest, "\t\n"))) return 0;
    unsigned *grid = into->grid, *block = into->block;
    if (strcmp(fields[0], "kernel") != 0) return 0;
    if (sscanf(fields[3], "%u,%u,%u", grid, grid + 1, grid + 2) != 3) return 0;
    if (sscanf(fields[4], "%u,%u,%u", block, block + 1, block + 2) != 3) return 0;
    into->shared = (unsigned)strtoul(fields[5], NULL, 10);
    into->duration = strtoull(fields[6], NULL, 10);
    into->sms = (unsigned)strtoul(fields[9], NULL, 10);
    snprintf(kind, sizeof kind, "%s", fields[10]);
    into->kind = kind_number(kind);
    into->name = strdup(fields[2]);
    return 1;
}

static void read_lines(FILE *file) {
    char *text = NULL;
    size_t room = 0;
    line one;
    while (getline(&text, &room, file) >= 0) {
        if (!parsed(text, &one)) continue;
        lines = realloc(lines, (line_count + 1) * sizeof *lines);
        lines[line_count++] = one;
    }
    free(text);
}

void profile_read(const char *path) {
    FILE *file = fopen(path, "r");
    char first[32] = "";
    int known = file && fgets(first, sizeof first, file) && strcmp(first, "astrarium-kernels 1\n") == 0;
    if (known)
        read_lines(file);
    else
        fprintf(stderr, "astrarium gate: %s is no kernel profile; kernels are measured as they come\n", path);
    if (file) fclose(file);
}

static int same(const line *one, const kernel *seen) {
    return one->shared == seen->shared && memcmp(one->grid, seen->grid, sizeof one->grid) == 0 &&
           memcmp(one->block, seen->block, sizeof one->block) == 0 && strcmp(one->name, seen->name) == 0;
}

void profile_recall(kernel *seen) {
    for (size_t index = 0; index < line_count; index++)
        if (same(&lines[index], seen)) {
            seen->work = (gate_work){lines[index].duration, lines[index].sms, lines[index].kind};
            return;
        }
}

/* recording */

void profile_record(const char *path) {
    out_path = strdup(path);
    launches = malloc(LAUNCHES * sizeof *launches);
}

void profile_meet_device(void) {
    CUdevice device;
    const driver_table *real = driver();
    if (!out_path || real->context_device(&device) != CUDA_SUCCESS) return;
    real->device_name(device_name, sizeof device_name, device);
    real->device_attribute(&device_sms, CU_DEVICE_ATTRIBUTE_SMS, device);
}

void profile_forget(void) {
    out_path = NULL;
    launches = NULL;
    launch_count = 0;
}

int profile_recording(void) { return out_path != NULL; }

enum { WRITE_EVERY = 1 << 13 }; /* launches: a program that is killed leaves what was known by then */

static void note(int32_t what) {
    pthread_mutex_lock(&lock);
    if (launch_count < LAUNCHES) launches[launch_count] = what;
    int due = ++launch_count % WRITE_EVERY == 0;
    pthread_mutex_unlock(&lock);
    if (due) profile_write();
}

void profile_launched(const kernel *launched) {
    if (launches && launched) note((int32_t)kernel_index(launched));
}

void profile_phase(void) {
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

static void write_kernels(FILE *file, int32_t *numbers) {
    int32_t next = 0;
    for (uint32_t index = 0; index < KERNEL_PLACES; index++) {
        const kernel *one = kernel_by_index(index);
        if (one->key < 2 || !one->launches) continue;
        numbers[index] = next++;
        fprintf(file, "kernel\t%d\t%s\t%u,%u,%u\t%u,%u,%u\t%u\t%u\t%u\t%llu\t%u\t%s\n", numbers[index], one->name,
                one->grid[0], one->grid[1], one->grid[2], one->block[0], one->block[1], one->block[2], one->shared,
                kernel_quantile(one, 0.5), kernel_quantile(one, 0.95), (unsigned long long)one->launches,
                one->work.sms, kind_name(one->work.kind));
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
    int32_t *numbers = calloc(KERNEL_PLACES, sizeof *numbers);
    fprintf(file, "astrarium-kernels 1\ndevice\t%s\t%d\n", device_name, device_sms);
    write_kernels(file, numbers);
    write_launches(file, numbers);
    free(numbers);
}

/* It appears whole: readers, and other processes of the same program, never see half of one. */
void profile_write(void) {
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
