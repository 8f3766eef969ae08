/* A CUDA driver without a GPU: what is copied is copied at once, a graph negates what it reads, and streams take time by a
   clock that a test sets. Calls are written down in the order in which they are made. A graph that fails with an error of
   700 or more takes the context with it: that error is told when its time has come, and by every call from then on. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef long long Time;
typedef struct { Time free; const char *name; } Stream;
typedef struct { Time at; int recorded; } Event;
typedef struct { const signed char *from; signed char *to; size_t bytes; Time takes; int fails; } Graph;

enum { FAILED = 1, NOT_READY = 600, STICKY = 700, LONGEST_LOG = 1 << 16 };

static Time now, lost_at;
static int lost; /* the error that the context is lost by, from lost_at on */
static char said[LONGEST_LOG];

void fake_set_time(Time time) { now = time; }
void fake_recover(void) { lost = 0; }
static int context_error(void) { return lost && now >= lost_at ? lost : 0; }
const char *fake_log(void) { return said; }
void fake_forget(void) { said[0] = 0; }

static void say(const char *what, const Stream *stream, size_t bytes) {
    size_t length = strlen(said);
    snprintf(said + length, sizeof said - length, "%s %s %zu\n", stream->name, what, bytes);
}

static int spend(Stream *stream, Time time) {
    stream->free = (stream->free > now ? stream->free : now) + time;
    return 0;
}

int cuCtxGetCurrent(void **context) { return *context = said, 0; }
int cuCtxSetCurrent(void *context) { return context == said ? 0 : FAILED; }

static int copy(const char *what, void *to, const void *from, size_t bytes, Stream *stream) {
    memcpy(to, from, bytes);
    return say(what, stream, bytes), spend(stream, 0);
}
int cuMemcpyHtoDAsync_v2(unsigned long long to, const void *from, size_t bytes, Stream *stream) {
    return copy("in", (void *)to, from, bytes, stream);
}
int cuMemcpyDtoHAsync_v2(void *to, unsigned long long from, size_t bytes, Stream *stream) {
    return copy("out", to, (const void *)from, bytes, stream);
}
int cuMemcpyDtoDAsync_v2(unsigned long long to, unsigned long long from, size_t bytes, Stream *stream) {
    return copy("within", (void *)to, (const void *)from, bytes, stream);
}
int cuMemsetD8Async(unsigned long long to, unsigned char value, size_t bytes, Stream *stream) {
    memset((void *)to, value, bytes);
    return say("clear", stream, bytes), spend(stream, 0);
}

int cuGraphLaunch(Graph *graph, Stream *stream) {
    if (context_error()) return lost;
    if (graph->fails && graph->fails < STICKY) return graph->fails;
    if (graph->fails) {
        spend(stream, graph->takes);
        return lost = graph->fails, lost_at = stream->free, 0;
    }
    for (size_t i = 0; i < graph->bytes; ++i) graph->to[i] = (signed char)-graph->from[i];
    return say("graph", stream, graph->bytes), spend(stream, graph->takes);
}
int cuStreamSynchronize(Stream *stream) { return stream->free > now ? (now = stream->free, 0) : 0; }
int cuStreamWaitEvent(Stream *stream, Event *event, unsigned flags) {
    if (flags || !event->recorded) return FAILED;
    if (event->at > stream->free) stream->free = event->at;
    return say("follow", stream, 0), 0;
}

int cuEventCreate(Event **event, unsigned flags) {
    (void)flags;
    return (*event = calloc(1, sizeof **event)) ? 0 : FAILED;
}
int cuEventDestroy_v2(Event *event) { return free(event), 0; }
int cuEventRecord(Event *event, Stream *stream) {
    spend(stream, 0);
    event->at = stream->free, event->recorded = 1;
    return 0;
}
int cuEventQuery(Event *event) {
    if (context_error()) return lost;
    return event->recorded && event->at > now ? NOT_READY : 0;
}
int cuEventSynchronize(Event *event) { return event->at > now ? (now = event->at, 0) : 0; }
int cuEventElapsedTime(float *milliseconds, Event *first, Event *second) {
    if (!first->recorded || !second->recorded) return FAILED;
    if (first->at > now || second->at > now) return NOT_READY;
    return *milliseconds = (float)(second->at - first->at) / 1e6f, 0;
}
int cuGetErrorString(int error, const char **text) { return *text = error == FAILED ? "the fake GPU failed" : error == 710 ? "device-side assert triggered" : 0, 0; }

/* Of the primary context, which one GPU has. */
int cuDeviceGetCount(int *count) { return *count = 1, 0; }
int cuDevicePrimaryCtxGetState(int device, unsigned *flags, int *active) { return *flags = 0, *active = device == 0, 0; }
int cuDevicePrimaryCtxRetain(void **context, int device) { return *context = said, device; }
int cuDevicePrimaryCtxRelease_v2(int device) { return device; }
int cuCtxPushCurrent_v2(void *context) { return context != said; }
int cuCtxPopCurrent_v2(void **context) { return *context = said, 0; }
int cuCtxSynchronize(void) { return context_error(); }
