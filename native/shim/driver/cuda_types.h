/* Types and structures of the CUDA driver's binary interface that the shim and the simulated driver share. The
 * definitions are facts of a published interface, written down here so that the build needs no CUDA header. Structures
 * that both only pass on stay opaque. */
#ifndef GPUSHARE_CUDA_TYPES_H
#define GPUSHARE_CUDA_TYPES_H

#include <stddef.h>
#include <stdint.h>

typedef int CUresult;
typedef int CUdevice;
typedef unsigned long long CUdeviceptr;
typedef unsigned int CUdeviceptr_v1; /* of the entry points without _v2, from before 64-bit device addresses */
typedef unsigned long long CUmemGenericAllocationHandle;
typedef struct CUctx_st *CUcontext;
typedef struct CUgreenCtx_st *CUgreenCtx;
typedef struct CUstream_st *CUstream;
typedef struct CUevent_st *CUevent;
typedef struct CUfunc_st *CUfunction;
typedef struct CUmod_st *CUmodule;
typedef struct CUlib_st *CUlibrary;
typedef struct CUkern_st *CUkernel;
typedef struct CUgraph_st *CUgraph;
typedef struct CUgraphNode_st *CUgraphNode;
typedef struct CUgraphExec_st *CUgraphExec;
typedef struct CUarray_st *CUarray;
typedef struct CUmipmappedArray_st *CUmipmappedArray;
typedef struct CUmemPoolHandle_st *CUmemoryPool;

typedef struct {
    unsigned char bytes[16];
} CUuuid;

typedef struct {
    unsigned char reserved[64];
} CUipcMemHandle;

/* Arguments of the calls that checkpoint a process. The reserved fields are zero. Source: cuda.h of CUDA 13.0. */
typedef struct {
    unsigned timeout_ms; /* 0: no timeout */
    unsigned reserved0;
    uint64_t reserved1[7];
} CUcheckpointLockArgs;
typedef struct {
    uint64_t reserved[8];
} CUcheckpointCheckpointArgs;
typedef struct {
    CUuuid old_uuid, new_uuid;
} CUcheckpointGpuPair;
typedef struct {
    CUcheckpointGpuPair *pairs;
    unsigned pair_count;
    char reserved[52];
} CUcheckpointRestoreArgs;
typedef struct {
    uint64_t reserved[8];
} CUcheckpointUnlockArgs;

/* Passed by value: two ints, the second a union since CUDA 13.4. */
typedef struct {
    int type, id;
} CUmemLocation;

typedef void (*CUhostFn)(void *data);
typedef size_t (*CUoccupancyB2DSize)(int block);
typedef void (*CUstreamCallback)(CUstream stream, CUresult status, void *data);

typedef struct {
    int type, handle_types;
    CUmemLocation location;
    void *win32_meta;
    unsigned char compression, rdma;
    unsigned short usage;
    unsigned char reserved[4];
} CUmemAllocationProp;

typedef struct {
    CUmemLocation location;
    int flags;
} CUmemAccessDesc;

typedef struct {
    int type, handle_types;
    CUmemLocation location;
    uint64_t rest[9];
} CUmemPoolProps;

typedef struct {
    unsigned grid[3], block[3], shared_bytes;
    CUstream stream;
    void *attributes;
    unsigned attribute_count;
} CUlaunchConfig;

typedef struct {
    CUfunction function;
    unsigned grid[3], block[3], shared_bytes;
    void **parameters, **extra;
    CUfunction kernel; /* these two fields: in the second version only */
    CUcontext context;
} CUDA_KERNEL_NODE_PARAMS;

typedef struct {
    CUmemPoolProps pool;
    const CUmemAccessDesc *access;
    size_t access_count, bytes;
    CUdeviceptr address;
} CUDA_MEM_ALLOC_NODE_PARAMS;

typedef struct {
    unsigned long long flags;
    CUstream stream;
    CUgraphNode failed;
    int result;
} CUDA_GRAPH_INSTANTIATE_PARAMS;

typedef struct {
    CUfunction function;
    unsigned grid[3], block[3], shared_bytes;
    CUstream stream;
    void **parameters;
} CUDA_LAUNCH_PARAMS;

typedef struct {
    size_t src_x, src_y;
    int src_type;
    const void *src_host;
    CUdeviceptr src_device;
    CUarray src_array;
    size_t src_pitch;
    size_t dst_x, dst_y;
    int dst_type;
    void *dst_host;
    CUdeviceptr dst_device;
    CUarray dst_array;
    size_t dst_pitch;
    size_t width, height; /* width in bytes */
} CUDA_MEMCPY2D;

/* Also the layout of the peer form, whose fields differ only in name. */
typedef struct {
    size_t src_x, src_y, src_z, src_level;
    int src_type;
    const void *src_host;
    CUdeviceptr src_device;
    CUarray src_array;
    void *src_context;
    size_t src_pitch, src_height;
    size_t dst_x, dst_y, dst_z, dst_level;
    int dst_type;
    void *dst_host;
    CUdeviceptr dst_device;
    CUarray dst_array;
    void *dst_context;
    size_t dst_pitch, dst_height;
    size_t width, height, depth; /* width in bytes */
} CUDA_MEMCPY3D;

typedef struct {
    int type;
    union {
        struct {
            CUdeviceptr address;
            size_t row_elements, layer_rows;
            CUmemLocation location;
        } linear;
        struct {
            CUarray array;
            size_t x, y, z;
        } array;
    };
} CUmemcpy3DOperand;

typedef struct {
    CUmemcpy3DOperand src, dst;
    size_t width, height, depth;
    int order;
    unsigned flags;
} CUDA_MEMCPY3D_BATCH_OP;

typedef struct {
    size_t width, height;
    int format;
    unsigned channels;
} CUDA_ARRAY_DESCRIPTOR;

typedef struct {
    size_t width, height, depth;
    int format;
    unsigned channels, flags;
} CUDA_ARRAY3D_DESCRIPTOR;

typedef struct {
    unsigned width, height;
    int format;
    unsigned channels;
} CUDA_ARRAY_DESCRIPTOR_v1;

typedef struct {
    unsigned width, height, depth;
    int format;
    unsigned channels, flags;
} CUDA_ARRAY3D_DESCRIPTOR_v1;

#endif
