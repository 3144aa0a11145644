/* The part of the CUDA driver's binary interface that the simulated driver uses besides the types of `cuda_types.h`:
 * result codes and enum values. */
#ifndef SIMCUDA_CUDA_ABI_H
#define SIMCUDA_CUDA_ABI_H

/* The handles of the interface point to the driver's own objects. */
#define CUctx_st sim_context
#define CUstream_st sim_stream
#define CUevent_st sim_event
#define CUfunc_st sim_function
#define CUmod_st sim_module
#define CUgraph_st sim_graph
#define CUgraphNode_st sim_command
#define CUgraphExec_st sim_graph_exec
#define CUarray_st sim_array
#define CUmemPoolHandle_st sim_pool
#define CUgreenCtx_st sim_green
#define CUuserObject_st sim_user_object
#include "../../shim/driver/cuda_types.h"

#define SIM_DRIVER_VERSION 13000

typedef uint64_t CUgraphConditionalHandle;
typedef struct CUuserObject_st *CUuserObject;
typedef void *CUlogsCallbackHandle;

typedef struct {
    char reserved[64];
} CUipcEventHandle;

#define CU_STREAM_LEGACY ((CUstream)0x1)
#define CU_STREAM_PER_THREAD ((CUstream)0x2)
#define CU_STREAM_NON_BLOCKING 0x1

#define CU_EVENT_DISABLE_TIMING 0x2
#define CU_EVENT_INTERPROCESS 0x4

#define CU_MODULE_EAGER_LOADING 1
#define CU_MODULE_LAZY_LOADING 2

#define CU_LAUNCH_PARAM_END ((void *)0x0)
#define CU_LAUNCH_PARAM_BUFFER_POINTER ((void *)0x1)
#define CU_LAUNCH_PARAM_BUFFER_SIZE ((void *)0x2)

/* Results: name, value, text of cuGetErrorString. */
#define SIM_RESULTS(X)                                                                                                 \
    X(CUDA_SUCCESS, 0, "no error")                                                                                     \
    X(CUDA_ERROR_INVALID_VALUE, 1, "invalid argument")                                                                 \
    X(CUDA_ERROR_OUT_OF_MEMORY, 2, "out of memory")                                                                    \
    X(CUDA_ERROR_NOT_INITIALIZED, 3, "initialization error")                                                           \
    X(CUDA_ERROR_DEINITIALIZED, 4, "driver shutting down")                                                             \
    X(CUDA_ERROR_NO_DEVICE, 100, "no CUDA-capable device is detected")                                                 \
    X(CUDA_ERROR_INVALID_DEVICE, 101, "invalid device ordinal")                                                        \
    X(CUDA_ERROR_INVALID_IMAGE, 200, "device kernel image is invalid")                                                 \
    X(CUDA_ERROR_INVALID_CONTEXT, 201, "invalid device context")                                                       \
    X(CUDA_ERROR_NO_BINARY_FOR_GPU, 209, "no kernel image is available for execution on the device")                   \
    X(CUDA_ERROR_MAP_FAILED, 205, "mapping of buffer object failed")                                                   \
    X(CUDA_ERROR_UNSUPPORTED_LIMIT, 215, "limit is not supported on this architecture")                                \
    X(CUDA_ERROR_CONTEXT_ALREADY_IN_USE, 216, "exclusive-thread device already in use by a different thread")          \
    X(CUDA_ERROR_PEER_ACCESS_UNSUPPORTED, 217, "peer access is not supported between these two devices")               \
    X(CUDA_ERROR_INVALID_PTX, 218, "a PTX JIT compilation failed")                                                     \
    X(CUDA_ERROR_FILE_NOT_FOUND, 301, "file not found")                                                                \
    X(CUDA_ERROR_OPERATING_SYSTEM, 304, "OS call failed or operation not supported on this OS")                        \
    X(CUDA_ERROR_INVALID_HANDLE, 400, "invalid resource handle")                                                       \
    X(CUDA_ERROR_ILLEGAL_STATE, 401, "the operation cannot be performed in the present state")                         \
    X(CUDA_ERROR_NOT_FOUND, 500, "named symbol not found")                                                             \
    X(CUDA_ERROR_NOT_READY, 600, "device not ready")                                                                   \
    X(CUDA_ERROR_ILLEGAL_ADDRESS, 700, "an illegal memory access was encountered")                                     \
    X(CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES, 701, "too many resources requested for launch")                              \
    X(CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED, 704, "peer access is already enabled")                                   \
    X(CUDA_ERROR_PEER_ACCESS_NOT_ENABLED, 705, "peer access has not been enabled")                                     \
    X(CUDA_ERROR_PRIMARY_CONTEXT_ACTIVE, 708, "primary context active")                                                \
    X(CUDA_ERROR_CONTEXT_IS_DESTROYED, 709, "context is destroyed")                                                    \
    X(CUDA_ERROR_TOO_MANY_PEERS, 711, "peer mapping resources exhausted")                                              \
    X(CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED, 712, "part or all of the memory is already mapped")                   \
    X(CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED, 713, "pointer does not correspond to a registered memory region")         \
    X(CUDA_ERROR_MISALIGNED_ADDRESS, 716, "misaligned address")                                                        \
    X(CUDA_ERROR_LAUNCH_FAILED, 719, "unspecified launch failure")                                                     \
    X(CUDA_ERROR_NOT_PERMITTED, 800, "operation not permitted")                                                        \
    X(CUDA_ERROR_NOT_SUPPORTED, 801, "operation not supported")                                                        \
    X(CUDA_ERROR_SYSTEM_NOT_READY, 802, "system not yet initialized")                                                  \
    X(CUDA_ERROR_SYSTEM_DRIVER_MISMATCH, 803, "system has unsupported display driver / cuda driver combination")       \
    X(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, 900, "operation not permitted when stream is capturing")                  \
    X(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, 901, "operation failed due to a previous error during capture")           \
    X(CUDA_ERROR_STREAM_CAPTURE_MERGE, 902, "operation would result in a merge of separate capture sequences")         \
    X(CUDA_ERROR_STREAM_CAPTURE_UNMATCHED, 903, "capture was not ended in the same stream as it began")                \
    X(CUDA_ERROR_STREAM_CAPTURE_UNJOINED, 904, "capturing stream has unjoined work")                                   \
    X(CUDA_ERROR_STREAM_CAPTURE_ISOLATION, 905, "dependency created on uncaptured work in another stream")             \
    X(CUDA_ERROR_STREAM_CAPTURE_IMPLICIT, 906,                                                                         \
      "operation would make the legacy stream depend on a capturing blocking stream")                                  \
    X(CUDA_ERROR_CAPTURED_EVENT, 907, "operation not permitted on an event last recorded in a capturing stream")       \
    X(CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD, 908, "attempt to terminate a thread-local capture from another thread")  \
    X(CUDA_ERROR_TIMEOUT, 909, "wait operation timed out")                                                             \
    X(CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE, 910, "the graph update was not performed because it included changes")     \
    X(CUDA_ERROR_INVALID_RESOURCE_TYPE, 914, "invalid resource type")                                                  \
    X(CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION, 915, "invalid resource configuration")                                \
    X(CUDA_ERROR_UNKNOWN, 999, "unknown error")

enum {
#define X(name, value, text) name = value,
    SIM_RESULTS(X)
#undef X
};

enum { CU_MEMORYTYPE_HOST = 1, CU_MEMORYTYPE_DEVICE = 2, CU_MEMORYTYPE_ARRAY = 3, CU_MEMORYTYPE_UNIFIED = 4 };
enum { CU_MEM_ATTACH_GLOBAL = 1, CU_MEM_ATTACH_HOST = 2, CU_MEM_ATTACH_SINGLE = 4 };
enum { CU_MEM_LOCATION_DEVICE = 1, CU_MEM_LOCATION_HOST = 2, CU_MEM_LOCATION_NUMA = 3, CU_MEM_LOCATION_NUMA_HERE = 4 };
enum { CU_MEM_ALLOCATION_PINNED = 1, CU_MEM_ALLOCATION_MANAGED };
enum { CU_MEM_HANDLE_POSIX_FD = 1 };
enum { CU_MEM_ACCESS_NONE, CU_MEM_ACCESS_READ, CU_MEM_ACCESS_READWRITE = 3 };
enum { CU_DEVICE_CPU = -1, CU_DEVICE_INVALID = -2 };
enum { CU_CAPTURE_GLOBAL, CU_CAPTURE_THREAD_LOCAL, CU_CAPTURE_RELAXED };
enum { CU_CAPTURE_ADD_DEPENDENCIES, CU_CAPTURE_SET_DEPENDENCIES };
enum { CU_CAPTURE_NONE, CU_CAPTURE_ACTIVE, CU_CAPTURE_INVALIDATED };
enum { CU_PROCESS_RUNNING, CU_PROCESS_LOCKED, CU_PROCESS_CHECKPOINTED, CU_PROCESS_FAILED };
enum { CU_WAIT_GEQ, CU_WAIT_EQ, CU_WAIT_AND, CU_WAIT_NOR };

enum {
    CU_ADVISE_SET_READ_MOSTLY = 1,
    CU_ADVISE_UNSET_READ_MOSTLY,
    CU_ADVISE_SET_PREFERRED,
    CU_ADVISE_UNSET_PREFERRED,
    CU_ADVISE_SET_ACCESSED_BY,
    CU_ADVISE_UNSET_ACCESSED_BY,
};

enum { CU_CTX_COREDUMP_ENABLE = 0x20, CU_CTX_USER_COREDUMP_ENABLE = 0x40 };

enum {
    CU_RANGE_READ_MOSTLY = 1,
    CU_RANGE_PREFERRED,
    CU_RANGE_ACCESSED_BY,
    CU_RANGE_LAST_PREFETCH,
    CU_RANGE_PREFERRED_TYPE,
    CU_RANGE_PREFERRED_ID,
    CU_RANGE_LAST_PREFETCH_TYPE,
    CU_RANGE_LAST_PREFETCH_ID,
};

enum {
    CU_POINTER_CONTEXT = 1,
    CU_POINTER_MEMORY_TYPE,
    CU_POINTER_DEVICE_POINTER,
    CU_POINTER_HOST_POINTER,
    CU_POINTER_SYNC_MEMOPS = 6,
    CU_POINTER_BUFFER_ID,
    CU_POINTER_IS_MANAGED,
    CU_POINTER_DEVICE_ORDINAL,
    CU_POINTER_IPC_CAPABLE,
    CU_POINTER_RANGE_START,
    CU_POINTER_RANGE_SIZE,
    CU_POINTER_MAPPED,
    CU_POINTER_HANDLE_TYPES,
    CU_POINTER_RDMA_CAPABLE,
    CU_POINTER_ACCESS_FLAGS,
    CU_POINTER_POOL,
    CU_POINTER_MAPPING_SIZE,
    CU_POINTER_MAPPING_BASE,
    CU_POINTER_BLOCK_ID,
};

enum {
    CU_NODE_KERNEL,
    CU_NODE_MEMCPY,
    CU_NODE_MEMSET,
    CU_NODE_HOST,
    CU_NODE_GRAPH,
    CU_NODE_EMPTY,
    CU_NODE_WAIT_EVENT,
    CU_NODE_EVENT_RECORD,
    CU_NODE_MEM_ALLOC = 10,
    CU_NODE_MEM_FREE,
    CU_NODE_BATCH_MEM_OP,
    CU_NODE_CONDITIONAL,
};
enum { CU_COND_IF, CU_COND_WHILE, CU_COND_SWITCH };
#define CU_COND_ASSIGN_DEFAULT 1u
enum {
    CU_UPDATE_SUCCESS,
    CU_UPDATE_ERROR,
    CU_UPDATE_TOPOLOGY_CHANGED,
    CU_UPDATE_NODE_TYPE_CHANGED,
    CU_UPDATE_NOT_SUPPORTED = 6
};
enum { CU_GRAPH_MEM_USED, CU_GRAPH_MEM_USED_HIGH, CU_GRAPH_MEM_RESERVED, CU_GRAPH_MEM_RESERVED_HIGH };
#define CU_USER_OBJECT_NO_SYNC 1
#define CU_GRAPH_USER_OBJECT_MOVE 1
#define CU_INSTANTIATE_UPLOAD 2
#define CU_INSTANTIATE_FLAGS 15

enum {
    CU_AD_FORMAT_UNSIGNED_INT8 = 1,
    CU_AD_FORMAT_UNSIGNED_INT16,
    CU_AD_FORMAT_UNSIGNED_INT32,
    CU_AD_FORMAT_SIGNED_INT8 = 8,
    CU_AD_FORMAT_SIGNED_INT16,
    CU_AD_FORMAT_SIGNED_INT32,
    CU_AD_FORMAT_HALF = 16,
    CU_AD_FORMAT_FLOAT = 32,
};

enum { CU_PROC_LEGACY = 1, CU_PROC_PER_THREAD = 2 };
enum { CU_PROC_FOUND, CU_PROC_NOT_FOUND, CU_PROC_VERSION_TOO_OLD };

/* As in CUDA 13; CUDA 12 has the first field of `sm` only. */
enum { CU_DEV_RESOURCE_SM = 1 };
typedef struct CUdevResource {
    int type;
    struct {
        unsigned device; /* and 1; 0: no resource of this driver */
        unsigned split;  /* number of the split that made the resource; 0: none */
        unsigned char unused[84];
    } internal;
    union {
        struct {
            unsigned count, min_partition, alignment, flags;
        } sm;
        unsigned char room[40];
    };
    struct CUdevResource *next;
} CUdevResource;
typedef struct sim_resources *CUdevResourceDesc;

typedef struct {
    unsigned devices;
    size_t bytes;
    unsigned long long handle_types, flags;
} CUmulticastObjectProp;

typedef struct {
    unsigned count, coscheduled, preferred_coscheduled, flags, locality_domain, reserved[11];
} CU_DEV_SM_RESOURCE_GROUP_PARAMS;

typedef struct {
    CUhostFn function;
    void *data;
} CUDA_HOST_NODE_PARAMS;

typedef struct {
    CUdeviceptr dst;
    size_t pitch;
    unsigned value, element;
    size_t width, height; /* width in elements */
} CUDA_MEMSET_NODE_PARAMS;

typedef struct {
    CUgraphConditionalHandle handle;
    int type;
    unsigned size;
    CUgraph *graphs; /* out: the bodies */
    CUcontext context;
} CUDA_CONDITIONAL_NODE_PARAMS;

typedef struct {
    int result;
    CUgraphNode node, from;
} CUgraphExecUpdateResultInfo;

#endif
