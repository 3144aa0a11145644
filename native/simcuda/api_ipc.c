/* Handles of memory for other processes. Ordinary memory has one; unified, stream-ordered and mapped memory have
 * none. */
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "api.h"
#include "alloc.h"

/* The contents of the 64 bytes of a handle. */
struct content {
    uint64_t inode;
    int pid, file;
};

CUresult cuIpcGetMemHandle(CUipcMemHandle *handle, CUdeviceptr address) {
    struct content content = {.pid = (int)getpid()};
    SIM_ENTER();
    if (!handle)
        return CUDA_ERROR_INVALID_VALUE;
    CUresult result = alloc_share(address, &content.file, &content.inode);
    if (result)
        return result;
    memset(handle, 0, sizeof *handle);
    memcpy(handle->reserved, &content, sizeof content);
    return CUDA_SUCCESS;
}

/* The exporter's file, opened through its process. The file is gone with that process, and the inode excludes the file
 * of another process with the same number. */
CUresult cuIpcOpenMemHandle_v2(CUdeviceptr *address, CUipcMemHandle handle, unsigned flags) {
    struct content content;
    struct stat st;
    char path[64];
    struct sim_context *context;
    CUresult result = context_current(&context);
    if (result)
        return result;
    if (!address || flags != 1) /* CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS */
        return CUDA_ERROR_INVALID_VALUE;
    memcpy(&content, handle.reserved, sizeof content);
    snprintf(path, sizeof path, "/proc/%d/fd/%d", content.pid, content.file);
    int file = open(path, O_RDWR | O_CLOEXEC);
    if (file < 0)
        return CUDA_ERROR_INVALID_VALUE;
    result = fstat(file, &st) || (uint64_t)st.st_ino != content.inode ? CUDA_ERROR_INVALID_VALUE
                                                                      : alloc_open(context, file, address);
    close(file);
    return result;
}

CUresult cuIpcOpenMemHandle(CUdeviceptr *address, CUipcMemHandle handle, unsigned flags) {
    return cuIpcOpenMemHandle_v2(address, handle, flags);
}

CUresult cuIpcCloseMemHandle(CUdeviceptr address) {
    struct sim_context *context;
    CUresult result = context_current(&context);
    if (result || (result = context_synchronize(context)))
        return result;
    return alloc_close(address);
}
