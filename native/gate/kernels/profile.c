#define _GNU_SOURCE
#include "kernels/profile.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "policy/kinds.h"

/* A line of the profile that is about a kernel. */
typedef struct profile_row {
    char *name;
    kernel_shape shape;
    gate_work work;
} profile_row;

enum { FIELDS = 11 };
enum { FIELD_SORT = 0, FIELD_NAME = 2, FIELD_GRID, FIELD_BLOCK, FIELD_SHARED, FIELD_MEDIAN, FIELD_SMS = 9, FIELD_KIND };

static profile_row *rows;
static size_t row_count;

static int split(char *text, char *fields[FIELDS]) {
    for (int field = 0; field < FIELDS; field++) {
        fields[field] = strsep(&text, "\t\n");
        if (!fields[field]) return 0;
    }
    return 1;
}

static int three(const char *text, unsigned into[3]) {
    for (int axis = 0; axis < 3; axis++) {
        char *end = NULL;
        unsigned long size = strtoul(text, &end, 10);
        if (end == text || size > UINT_MAX || (axis < 2 && *end != ',')) return 0;
        into[axis] = (unsigned)size;
        text = end + 1;
    }
    return 1;
}

static int parsed(char *text, profile_row *into) {
    char kind[16] = "", *fields[FIELDS];
    if (!split(text, fields) || strcmp(fields[FIELD_SORT], "kernel") != 0) return 0;
    if (!three(fields[FIELD_GRID], into->shape.grid) || !three(fields[FIELD_BLOCK], into->shape.block)) return 0;
    snprintf(kind, sizeof kind, "%s", fields[FIELD_KIND]);
    into->shape.shared = (unsigned)strtoul(fields[FIELD_SHARED], NULL, 10);
    into->work.duration = strtoull(fields[FIELD_MEDIAN], NULL, 10);
    into->work.sms = (unsigned)strtoul(fields[FIELD_SMS], NULL, 10);
    into->work.kind = kind_number(kind);
    into->name = strdup(fields[FIELD_NAME]);
    return 1;
}

static void read_rows(FILE *file) {
    char *text = NULL;
    size_t capacity = 0;
    profile_row row;
    while (getline(&text, &capacity, file) >= 0) {
        if (!parsed(text, &row)) continue;
        profile_row *more = realloc(rows, (row_count + 1) * sizeof *rows);
        if (!more) break; /* what was read so far is right */
        rows = more;
        rows[row_count++] = row;
    }
    free(text);
}

void profile_read(const char *path) {
    FILE *file = fopen(path, "r");
    char first[32] = "";
    int known = file && fgets(first, sizeof first, file) && strcmp(first, "astrarium-kernels 1\n") == 0;
    if (known)
        read_rows(file);
    else
        fprintf(stderr, "astrarium gate: %s is no kernel profile; kernels are measured as they come\n", path);
    if (file) fclose(file);
}

static int is_about(const profile_row *row, const char *name, const kernel_shape *shape) {
    return memcmp(&row->shape, shape, sizeof *shape) == 0 && strcmp(row->name, name) == 0;
}

void profile_recall(const char *name, const kernel_shape *shape, gate_work *work) {
    for (size_t index = 0; index < row_count; index++)
        if (is_about(&rows[index], name, shape)) {
            *work = rows[index].work;
            return;
        }
}
