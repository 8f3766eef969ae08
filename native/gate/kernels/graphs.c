#include "kernels/graphs.h"

#include <pthread.h>
#include <string.h>

/* Of the capture that is under way, and of the last one that ended: the next graph is made of it. */
typedef struct content {
    uint64_t durations[GATE_KINDS];
    double sm_time; /* SMs filled, by time */
} content;

static content open, closed;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static int captures; /* that are under way */

void graph_capture_begins(void) { __atomic_add_fetch(&captures, 1, __ATOMIC_ACQ_REL); }
void graph_capture_ends(void) { __atomic_sub_fetch(&captures, 1, __ATOMIC_ACQ_REL); }
int graph_capturing(void) { return __atomic_load_n(&captures, __ATOMIC_ACQUIRE) > 0; }

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
static gate_work work_of(const content *graph) {
    gate_work work = {0};
    uint64_t total = 0;
    for (uint32_t kind = 0; kind < GATE_KINDS; kind++) {
        total += graph->durations[kind];
        if (graph->durations[kind] > graph->durations[work.kind]) work.kind = kind;
    }
    work.sms = total ? (uint32_t)(graph->sm_time / (double)total) : 0;
    return work;
}

void graph_instantiated(CUgraphExec graph) {
    kernel *known = kernel_of_graph(graph);
    pthread_mutex_lock(&lock);
    gate_work work = work_of(&closed);
    pthread_mutex_unlock(&lock);
    if (!known || !work.sms) return;
    known->work.kind = work.kind;
    known->work.sms = work.sms;
}
