/* The part of the CUDA driver's interface that the gate touches. Declared here, so that it builds anywhere. */
#ifndef ASTRARIUM_GATE_CUDA_ABI_H
#define ASTRARIUM_GATE_CUDA_ABI_H

#include <stddef.h>
#include <stdint.h>

typedef int CUresult;
typedef int CUdevice;
typedef unsigned long long CUdeviceptr;
typedef struct CUctx_st *CUcontext;
typedef struct CUstream_st *CUstream;
typedef struct CUfunc_st *CUfunction; /* or a CUkernel: both are launched alike */
typedef struct CUkern_st *CUkernel;
typedef struct CUlib_st *CUlibrary;
typedef struct CUevent_st *CUevent;
typedef struct CUgraph_st *CUgraph;
typedef struct CUgraphExec_st *CUgraphExec;
typedef struct CUgreenCtx_st *CUgreenCtx;
typedef struct CUdevResourceDesc_st *CUdevResourceDesc;

typedef struct CUlaunchAttribute {
    int id;
    char padding[4];
    char value[64];
} CUlaunchAttribute;

typedef struct CUlaunchConfig {
    unsigned grid[3], block[3], shared;
    CUstream stream;
    const CUlaunchAttribute *attributes;
    unsigned attribute_count;
} CUlaunchConfig;

/* Large enough for every version; only its SM count is looked at. */
typedef struct CUdevResource {
    int type;
    unsigned char padding[92];
    unsigned sm_count;
    unsigned char rest[512 - 100];
} CUdevResource;

enum {
    CUDA_SUCCESS = 0,
    CU_LAUNCH_ATTRIBUTE_COOPERATIVE = 2,
    CU_DEVICE_ATTRIBUTE_SMS = 16,
    CU_HOST_REGISTER_PORTABLE_MAPPED = 3,
    CU_STREAM_WAIT_VALUE_GEQ = 0,
    CU_STREAM_WAIT_VALUE_AND = 2,
    CU_DEV_RESOURCE_SM = 1,
    CU_GREEN_CTX_DEFAULT_STREAM = 1,
    CU_STREAM_NON_BLOCKING = 1,
    CU_CAPTURE_RELAXED = 2,
    CU_NOT_CAPTURING = 0,
    CU_EVENT_NO_TIMING = 2,
    CU_PER_THREAD_STREAM = 2, /* as a handle */
};

#endif
