/* The mode "swap" for the folders above: the mode, and the program's virtual-memory management. */
#ifndef GPUSHARE_SWAP_H
#define GPUSHARE_SWAP_H

#include "memory/account/mode.h"

#pragma GCC visibility push(hidden)

extern const struct memory_mode mode_swap;

#define GRANULE_BYTES (2ull << 20) /* the driver's granularity, for every device so far */
#define MAX_ACCESSES 16 /* devices with access to a mapping; with more of them the memory stays on its device */

/* The answers to queries of an address, which do not depend on the place of the memory. */
struct swap_pointer {
    CUdeviceptr base; /* of the allocation or mapping */
    uint64_t bytes;
    uint64_t buffer_id, block_id;
    CUcontext context; /* NULL for a mapping */
    CUmemoryPool pool; /* that the program asked; NULL: none */
    CUdevice device;
    uint64_t handle_types;
    CUmemAccessDesc access[MAX_ACCESSES];
    int access_count;
    bool is_mapping; /* the program's own */
    bool is_unused;  /* the shim has memory there, but no allocation of the program has that byte */
};

bool swap_find_pointer(CUdeviceptr address, struct swap_pointer *found); /* false: the address is not of this mode */
void swap_drop_context(CUcontext context);                               /* under residency_lock */
bool swap_lacks_context(void); /* some memory stays on its device, because its context has ended */
/* Let the context move memory of its device that has no context; under residency_lock. */
void swap_offer_context(CUcontext context);
void swap_after_fork(void);
bool swap_manages(const CUmemAllocationProp *properties, unsigned long long flags); /* the shim moves such memory */
bool swap_owns_handle(uint64_t handle);
bool swap_owns_range(CUdeviceptr address, uint64_t bytes); /* some address of it has memory of this mode */
CUresult swap_create(CUmemGenericAllocationHandle *handle, size_t bytes, const CUmemAllocationProp *properties);
CUresult swap_release(CUmemGenericAllocationHandle handle);
/* CUDA_ERROR_NOT_READY: only the driver can answer, and the memory is not there. The call is repeated inside the gate,
 * where all memory is. */
CUresult swap_unmap(CUdeviceptr address, size_t bytes);
CUresult swap_map(CUdeviceptr address, size_t bytes, size_t offset, CUmemGenericAllocationHandle handle,
                  unsigned long long flags);
CUresult swap_access(CUdeviceptr address, size_t bytes, const CUmemAccessDesc *access, size_t count);
CUresult swap_retain(CUmemGenericAllocationHandle *handle, CUdeviceptr address);
/* For calls that let other processes or devices use memory. The caller is inside the gate, so the memory is on the
 * device, and stays there from the pin to its end. */
CUmemGenericAllocationHandle swap_driver_handle(CUmemGenericAllocationHandle handle); /* 0: there is none */
void swap_pin_handle(CUmemGenericAllocationHandle handle);
void swap_pin_range(CUdeviceptr address, uint64_t bytes);
CUresult swap_properties(CUmemAllocationProp *properties, CUmemGenericAllocationHandle handle);
/* Give a device access to allocations on the device `home`: a context `from` may use memory of the context `to`. Without
 * `from` the device may use memory of the pool `to`. */
CUresult swap_grant(const void *from, const void *to, CUdevice device, CUdevice home);
void swap_withdraw(const void *from, const void *to, CUdevice device);
void swap_drop_pool(CUmemoryPool pool);

#pragma GCC visibility pop

#endif
