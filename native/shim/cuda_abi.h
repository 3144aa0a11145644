/* What of the CUDA driver's binary interface the shim speaks: result codes, enum values, structure layouts. They are
 * facts of a published interface, written down here so that no CUDA header is needed to build. Structures that the shim
 * only passes on stay opaque. */
#ifndef GPUSHARE_CUDA_ABI_H
#define GPUSHARE_CUDA_ABI_H

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

/* Passed by value: two ints, the second a union since CUDA 13.4. */
typedef struct {
    int type, id;
} CUmemLocation;

typedef void (*CUhostFn)(void *data);
typedef void (*CUstreamCallback)(CUstream stream, CUresult status, void *data);

#define CU_DEVICE_CPU ((CUdevice) - 1)
#define CU_STREAM_LEGACY ((CUstream)0x1)
#define CU_STREAM_PER_THREAD ((CUstream)0x2)

enum {
    CUDA_SUCCESS = 0,
    CUDA_ERROR_INVALID_VALUE = 1,
    CUDA_ERROR_OUT_OF_MEMORY = 2,
    CUDA_ERROR_NOT_INITIALIZED = 3,
    CUDA_ERROR_DEINITIALIZED = 4,
    CUDA_ERROR_OPERATING_SYSTEM = 304,
    CUDA_ERROR_NOT_FOUND = 500,
    CUDA_ERROR_NOT_READY = 600,
    CUDA_ERROR_NOT_SUPPORTED = 801,
    CUDA_ERROR_STREAM_CAPTURE_IMPLICIT = 906,
};

enum {
    CU_DEVICE_ATTRIBUTE_CONCURRENT_MANAGED_ACCESS = 89,
};
enum {
    CU_EVENT_BLOCKING_SYNC = 1,
    CU_EVENT_DISABLE_TIMING = 2,
};
enum {
    CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM = 2,
};
enum {
    CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT = 2,
};
enum {
    CU_GRAPH_NODE_TYPE_KERNEL = 0,
    CU_GRAPH_NODE_TYPE_GRAPH = 4,
    CU_GRAPH_NODE_TYPE_MEM_ALLOC = 10,
};
enum {
    CUDA_GRAPH_INSTANTIATE_FLAG_UPLOAD = 2,
};
enum {
    CU_MEM_ACCESS_FLAGS_PROT_READWRITE = 3,
};
enum {
    CU_MEM_ALLOCATION_TYPE_PINNED = 1,
};
enum {
    CU_MEM_ATTACH_GLOBAL = 1,
};
enum {
    CU_MEMHOSTREGISTER_PORTABLE = 1,
};
enum {
    CU_MEM_ADVISE_SET_PREFERRED_LOCATION = 3,
    CU_MEM_ADVISE_SET_ACCESSED_BY = 5,
};
enum {
    CU_MEM_LOCATION_TYPE_DEVICE = 1,
};
enum {
    CU_STREAM_NON_BLOCKING = 1,
};
enum {
    CU_MEMORYTYPE_DEVICE = 2,
};
enum {
    CU_POINTER_ATTRIBUTE_CONTEXT = 1,
    CU_POINTER_ATTRIBUTE_MEMORY_TYPE = 2,
    CU_POINTER_ATTRIBUTE_DEVICE_POINTER = 3,
    CU_POINTER_ATTRIBUTE_HOST_POINTER = 4,
    CU_POINTER_ATTRIBUTE_IS_MANAGED = 8,
    CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL = 9,
    CU_POINTER_ATTRIBUTE_RANGE_START_ADDR = 11,
    CU_POINTER_ATTRIBUTE_RANGE_SIZE = 12,
    CU_POINTER_ATTRIBUTE_MAPPED = 13,
};
enum {
    CU_STREAM_CAPTURE_STATUS_NONE = 0,
};
enum {
    CU_STREAM_CAPTURE_MODE_RELAXED = 2,
};

typedef struct {
    unsigned grid_x, grid_y, grid_z, block_x, block_y, block_z, shared_bytes;
    CUstream stream;
    void *attributes;
    unsigned attribute_count;
} CUlaunchConfig;

typedef struct {
    CUfunction function;
    unsigned grid_x, grid_y, grid_z, block_x, block_y, block_z, shared_bytes;
    void **parameters, **extra;
    void *library_function; /* these two: in the second version only */
    CUcontext context;
} CUDA_KERNEL_NODE_PARAMS;

typedef struct {
    uint64_t pool[11];
    const void *access;
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
    unsigned grid_x, grid_y, grid_z, block_x, block_y, block_z, shared_bytes;
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

/* Also the peer form's layout: what lies between differs in name only. */
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

#endif
