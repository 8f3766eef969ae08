#include "graphs.h"

#include <pthread.h>
#include <string.h>

/* Of the capture that is under way, and of the last one that ended: the next graph is made of it. */
typedef struct content {
    uint64_t durations[GATE_KINDS];
    double sm_time; /* SMs filled, by time */
} content;

static content open, closed;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

void graph_captures(const kernel *captured) {
    if (!captured) return;
    pthread_mutex_lock(&lock);
    open.durations[captured->work.kind] += captured->work.duration;
    open.sm_time += (double)captured->work.duration * captured->work.sms;
    pthread_mutex_unlock(&lock);
}

void graph_captured(void) {
    pthread_mutex_lock(&lock);
    closed = open;
    memset(&open, 0, sizeof open);
    pthread_mutex_unlock(&lock);
}

/* Its kind is that of most of its time, its size the mean over its time. How long it takes is measured. */
static gate_work work_of(const content *of) {
    gate_work work = {0};
    uint64_t total = 0;
    for (uint32_t kind = 0; kind < GATE_KINDS; kind++) {
        total += of->durations[kind];
        if (of->durations[kind] > of->durations[work.kind]) work.kind = kind;
    }
    work.sms = total ? (uint32_t)(of->sm_time / (double)total) : 0;
    return work;
}

void graph_instantiated(CUgraphExec graph) {
    kernel *place = kernel_of_graph(graph);
    pthread_mutex_lock(&lock);
    gate_work work = work_of(&closed);
    pthread_mutex_unlock(&lock);
    if (!place || !work.sms) return;
    place->work.kind = work.kind;
    place->work.sms = work.sms;
}
