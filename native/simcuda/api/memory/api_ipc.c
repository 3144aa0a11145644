/* Handles of memory and events for other processes. Ordinary memory and interprocess events have handles; unified,
 * stream-ordered and mapped memory have none. */
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/exports.h"
#include "context/context.h"
#include "memory/alloc.h"
#include "work/engine.h"

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

/* Open the exporter's file through its process. The file is gone with that process, and the inode excludes the file of
 * another process with the same number. -1: it is gone. */
static int open_exported(const void *reserved) {
    struct content content;
    struct stat st;
    char path[64];
    memcpy(&content, reserved, sizeof content);
    snprintf(path, sizeof path, "/proc/%d/fd/%d", content.pid, content.file);
    int file = open(path, O_RDWR | O_CLOEXEC);
    if (file >= 0 && (fstat(file, &st) || (uint64_t)st.st_ino != content.inode)) {
        close(file);
        file = -1;
    }
    return file;
}

CUresult cuIpcOpenMemHandle_v2(CUdeviceptr *address, CUipcMemHandle handle, unsigned flags) {
    struct sim_context *context;
    CUresult result = context_current(&context);
    if (result)
        return result;
    if (!address || flags != 1) /* CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS */
        return CUDA_ERROR_INVALID_VALUE;
    int file = open_exported(handle.reserved);
    if (file < 0)
        return CUDA_ERROR_INVALID_VALUE;
    result = alloc_open(context, file, address);
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

CUresult cuIpcGetEventHandle(CUipcEventHandle *handle, CUevent event) {
    struct stat st;
    SIM_ENTER();
    if (!handle || !sim_is_object(event) || event->magic != MAGIC_EVENT || event->file < 0)
        return handle ? CUDA_ERROR_INVALID_HANDLE : CUDA_ERROR_INVALID_VALUE;
    if (fstat(event->file, &st))
        return CUDA_ERROR_OPERATING_SYSTEM;
    struct content content = {.inode = st.st_ino, .pid = (int)getpid(), .file = event->file};
    memset(handle, 0, sizeof *handle);
    memcpy(handle->reserved, &content, sizeof content);
    return CUDA_SUCCESS;
}

CUresult cuIpcOpenEventHandle(CUevent *event, CUipcEventHandle handle) {
    struct sim_context *context;
    CUresult result = context_current(&context);
    if (result)
        return result;
    int file = event ? open_exported(handle.reserved) : -1;
    if (file < 0)
        return CUDA_ERROR_INVALID_VALUE;
    result = event_import(context, file, event);
    close(file);
    return result;
}
