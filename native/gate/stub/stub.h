/* A driver without a GPU, for tests: libcuda.so.1 with a virtual clock.
 *
 * Work goes into the queue of its stream. It is done at once (automatic), or when the test says so. Nothing
 * runs by itself: there is no thread, and time passes only as work is done. Work behind a fence that is closed
 * stays where it is until a later call finds it open; who synchronizes waits for that. Device memory is host
 * memory.
 *
 * The types stand for those of cuda.h, with the same layout; no CUDA header is needed. What the test calls
 * is in control.c and log.c. Must be linked with -Bsymbolic, as the real driver is: its own calls stay its own.
 */
#ifndef ASTRARIUM_GATE_STUB_H
#define ASTRARIUM_GATE_STUB_H

#include <stddef.h>
#include <stdint.h>

#define EXPORT __attribute__((visibility("default")))

/* ---- the driver's types */

typedef int CUresult;
typedef int CUdevice;
typedef uint64_t CUdeviceptr;
typedef struct stub_stream *CUstream;
typedef struct stub_event *CUevent;
typedef struct stub_function *CUfunction;
typedef struct stub_function *CUkernel; /* a handle of its own kind: see `library` below */
typedef struct stub_graph *CUgraph;
typedef struct stub_graph *CUgraphExec;
typedef struct stub_library *CUlibrary;
typedef struct stub_context *CUcontext;
typedef struct stub_context *CUgreenCtx;
typedef struct stub_resource_list *CUdevResourceDesc;

enum {
    CUDA_SUCCESS = 0,
    CUDA_ERROR_INVALID_VALUE = 1,
    CUDA_ERROR_OUT_OF_MEMORY = 2,
    CUDA_ERROR_NOT_INITIALIZED = 3,
    CUDA_ERROR_INVALID_DEVICE = 101,
    CUDA_ERROR_INVALID_CONTEXT = 201,
    CUDA_ERROR_INVALID_HANDLE = 400,
    CUDA_ERROR_ILLEGAL_STATE = 401,
    CUDA_ERROR_NOT_FOUND = 500,
    CUDA_ERROR_NOT_READY = 600,
    CUDA_ERROR_ALREADY_REGISTERED = 712,
    CUDA_ERROR_NOT_REGISTERED = 713,
    CUDA_ERROR_CAPTURE_UNSUPPORTED = 900,
    CUDA_ERROR_CAPTURE_INVALIDATED = 901,
    CUDA_ERROR_CAPTURE_UNJOINED = 904,
    CUDA_ERROR_CAPTURE_IMPLICIT = 906,
};

#define STREAM_LEGACY ((CUstream)1)
#define STREAM_PER_THREAD ((CUstream)2)

enum { STREAM_NON_BLOCKING = 1, EVENT_DISABLE_TIMING = 2 };
enum { CAPTURE_GLOBAL, CAPTURE_THREAD_LOCAL, CAPTURE_RELAXED };
enum { NOT_CAPTURING, CAPTURING, CAPTURE_BROKEN };

typedef struct CUlaunchConfig {
    unsigned gridDimX, gridDimY, gridDimZ, blockDimX, blockDimY, blockDimZ, sharedMemBytes;
    CUstream hStream;
    void *attrs;
    unsigned numAttrs;
} CUlaunchConfig;

typedef struct CUdevResource {
    unsigned type;
    unsigned char padding[92];
    union {
        struct {
            unsigned smCount, minSmPartitionSize, smCoscheduledAlignment, flags;
        } sm;
        unsigned char oversize[40];
    };
    struct CUdevResource *nextResource;
} CUdevResource;

/* ---- what lies behind the handles */

enum { STUB_SMS = 132 };

/* A wait is for an event, a fence for a word in memory. */
typedef enum stub_kind {
    STUB_KERNEL,
    STUB_GRAPH,
    STUB_COPY,
    STUB_WRITE,
    STUB_RECORD,
    STUB_WAIT,
    STUB_FENCE,
    STUB_KINDS
} stub_kind;

/* One entry in a stream's queue, or a node of a graph. */
typedef struct stub_work {
    stub_kind kind;
    struct stub_work *next;
    uint64_t queued;   /* when it was launched; */
    uint64_t duration; /* on the virtual clock, in nanoseconds */
    CUfunction function;
    CUgraph graph;
    CUevent event;
    uint64_t record; /* of the event: the how-manieth */
    void *to;
    const void *from;
    size_t bytes;
    uint32_t value;
    unsigned flags;
} stub_work;

typedef struct stub_queue {
    stub_work *first, *last;
} stub_queue;

typedef struct stub_capture {
    CUstream origin;
    int mode, broken, ended;
    stub_queue nodes;
} stub_capture;

struct stub_stream {
    uint32_t magic;
    struct stub_stream *next; /* of all streams */
    unsigned flags, sms;
    int priority;
    stub_queue queue;
    uint64_t clock; /* when its latest work ended */
    stub_capture *capture;
};

struct stub_event {
    uint32_t magic;
    unsigned flags;
    uint64_t recorded, done; /* how many records were asked for, and how many have happened */
    uint64_t time;           /* of the latest that happened */
    CUstream stream;         /* of the latest asked for */
    stub_capture *capture;   /* ... where it went into a graph */
};

struct stub_function {
    uint32_t magic;
    struct stub_library *library;   /* a CUkernel of it, not a CUfunction */
    struct stub_function *function; /* of a CUkernel */
    struct stub_function *next;     /* in the library */
    char name[256];
    int registers, threads, shared;
    uint64_t duration, runs;
};

struct stub_library {
    uint32_t magic;
    unsigned count;
    struct stub_function *kernels; /* the newest first */
};

struct stub_graph {
    uint32_t magic;
    stub_queue nodes;
    int executable;
};

struct stub_context {
    uint32_t magic;
    unsigned sms;
};

/* ---- the files, from the ground up: each calls only those above it here */

/* ---- queues.c: the device, and one lock around every call */
void stub_lock(void); /* automatic work that can be done is done first */
void stub_unlock(void);
#define LOCKED(expression)               \
    do {                                 \
        stub_lock();                     \
        CUresult result_ = (expression); \
        stub_unlock();                   \
        return result_;                  \
    } while (0)

extern int stub_is_automatic;
extern uint64_t stub_now;
extern uint64_t stub_done[STUB_KINDS]; /* how many of each kind the device has done, those of graphs too */
CUstream stub_stream_new(unsigned flags, int priority, unsigned sms);
CUresult stub_submit(CUstream stream, stub_work work); /* into the queue, or into the graph being captured */
void stub_append(stub_queue *queue, stub_work work);
void stub_step(CUstream stream);
void stub_finish(CUstream stream); /* all of its work */
void stub_finish_all(void);
int stub_run_some(CUstream stream, int count);
int stub_run_entries(CUstream stream, int count);
void stub_run_until_now(void);
void stub_run_what_can(void); /* all that waits for nothing outside of the streams */
void stub_leave_capture(const stub_capture *capture); /* all streams that have joined it */

/* ---- log.c */
void stub_note(const char *call, const uint64_t *arguments, int count);
#define NOTE(call, ...) \
    stub_note(call, (uint64_t[]){__VA_ARGS__}, (int)(sizeof((uint64_t[]){__VA_ARGS__}) / sizeof(uint64_t)))
#define NUMBER(pointer) ((uint64_t)(uintptr_t)(pointer))
void stub_remember_launch(CUfunction function); /* in the order of launches */

/* A call that takes a `stream` has a twin, to which NULL means the thread's own stream. Both do do_NAME. */
#define TWINS(name, suffix, parameters, ...)                                   \
    EXPORT CUresult name parameters { LOCKED(do_##name(#name, __VA_ARGS__)); } \
    EXPORT CUresult name##suffix parameters {                                  \
        if (!stream) stream = STREAM_PER_THREAD;                               \
        LOCKED(do_##name(#name #suffix, __VA_ARGS__));                         \
    }

/* ---- device.c */
CUresult stub_ready(void); /* initialized, and the thread has a context; else the error */
CUcontext stub_current(void);

/* ---- stream_handles.c */
extern uint64_t stub_stale_count; /* uses of streams that were destroyed: the real driver might crash */
CUresult stub_stream_of(CUstream stream, CUstream *found);

/* ---- capture.c */
CUresult stub_unsafe_call(void); /* the error of a call that a capture forbids, which it breaks */

/* ---- events.c */
extern uint64_t stub_record_ns; /* how long a record takes */

/* ---- memory.c */
extern uint64_t stub_copy_bytes_per_us;

/* ---- streams.c, graphs.c, launches.c and procs.c are the driver's calls; control.c is what a test says */

#define IS(handle, word) ((handle) && (handle)->magic == (word))
enum { STREAM_MAGIC = 0x5712ea30, EVENT_MAGIC, FUNCTION_MAGIC, LIBRARY_MAGIC, GRAPH_MAGIC, CONTEXT_MAGIC };

#endif
