/* The program's own virtual-memory management in the mode "swap": its physical memory is blocks of the shim, which
 * have handles of the shim. Memory that other processes or devices use stays on the device. Requests for memory that a
 * block cannot replace go to the driver unchanged: see hooks/vmm_and_arrays.c. */
#include "memory/swap/blocks.h"

#include <stdlib.h>
#include <unistd.h>

#define OURS (1ull << 62) /* the driver's handles are addresses */

static struct mapping **mappings; /* of the program, in the order of their addresses */
static uint64_t count, room;

/* These modules register memory of the device by its address, without a call to CUDA. Such memory cannot move. */
static bool has_module_for_rdma(void) {
    static const char *const modules[] = {"/sys/module/nvidia_peermem", "/sys/module/nv_peer_mem",
                                          "/sys/module/nvidia_fs", "/sys/module/gdrdrv"};
    for (size_t i = 0; i < sizeof modules / sizeof modules[0]; i++)
        if (access(modules[i], F_OK) == 0)
            return true;
    return false;
}

/* Only the driver can map a pool of tiles, the usage of memory for sparse arrays. */
bool swap_manages(const CUmemAllocationProp *properties, unsigned long long flags) {
    if (shim.mode->number != GPUSHARE_MEMORY_SWAP || properties->type != CU_MEM_ALLOCATION_TYPE_PINNED ||
        properties->location.type != CU_MEM_LOCATION_TYPE_DEVICE || properties->location.id < 0 ||
        properties->location.id >= shim.device_count || properties->usage || flags)
        return false;
    if (!properties->rdma || !has_module_for_rdma())
        return true;
    log_once(LOG_INFO, "keep memory for GPUDirect RDMA on its device, because a module of this host may register it");
    return false;
}

static struct block *block_of(uint64_t name) {
    struct entry entry;
    if (!(name & OURS) || !ledger_find(LEDGER_HANDLES, name, &entry))
        return NULL;
    return (struct block *)(uintptr_t)entry.physical_or_generation;
}

static uint64_t above(CUdeviceptr address) {
    uint64_t low = 0, high = count;
    while (low < high) {
        uint64_t middle = (low + high) / 2;
        if (mappings[middle]->address <= address)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

struct mapping *swap_mapping_at(CUdeviceptr address) {
    uint64_t at = above(address);
    return at && address - mappings[at - 1]->address < mappings[at - 1]->bytes ? mappings[at - 1] : NULL;
}

bool swap_owns_handle(uint64_t name) {
    return (name & OURS) != 0;
}

/* Return the index of the first mapping that ends above the address. */
static uint64_t first_above(CUdeviceptr address) {
    return above(address) - (swap_mapping_at(address) != NULL);
}

static bool reaches(uint64_t index, CUdeviceptr address, uint64_t bytes) {
    return index < count && (mappings[index]->address <= address || mappings[index]->address - address < bytes);
}

bool swap_owns_range(CUdeviceptr address, uint64_t bytes) {
    pthread_mutex_lock(&residency_lock);
    bool known = swap_allocation_within(address, bytes) || reaches(first_above(address), address, bytes);
    pthread_mutex_unlock(&residency_lock);
    return known;
}

static void finish(struct block *block) {
    uint64_t bytes = block->bytes;
    if (block->program_references || block->mappings)
        return;
    if (block->program_handle) {
        struct entry gone;
        ledger_remove(LEDGER_HANDLES, block->program_handle, &gone);
    }
    block_destroy(block);
    account_release(bytes, false);
}

CUresult swap_create(CUmemGenericAllocationHandle *handle, size_t bytes, const CUmemAllocationProp *properties) {
    static _Atomic uint64_t serial;
    struct block *block;
    if (bytes % GRANULE_BYTES)
        return CUDA_ERROR_INVALID_VALUE;
    if (!reserve_memory(bytes, false))
        return CUDA_ERROR_OUT_OF_MEMORY;
    pthread_mutex_lock(&residency_lock);
    CUresult result = block_create(bytes, properties, bytes, &block);
    if (result == CUDA_SUCCESS) {
        block->program_handle = OURS | atomic_fetch_add(&serial, 1);
        block->program_references = 1;
        struct entry entry = {.key = block->program_handle,
                              .bytes = bytes,
                              .kind = MEMORY_SWAPPED,
                              .physical_or_generation = (uint64_t)(uintptr_t)block};
        if (!ledger_add(LEDGER_HANDLES, &entry)) {
            block->program_references = 0;
            block->program_handle = 0;
            block_destroy(block);
            result = CUDA_ERROR_OUT_OF_MEMORY;
        } else {
            *handle = block->program_handle;
        }
    }
    pthread_mutex_unlock(&residency_lock);
    if (result != CUDA_SUCCESS)
        account_release(bytes, false);
    return result;
}

CUresult swap_release(CUmemGenericAllocationHandle handle) {
    CUresult result = CUDA_ERROR_INVALID_VALUE;
    pthread_mutex_lock(&residency_lock);
    struct block *block = block_of(handle);
    if (block && block->program_references) {
        block->program_references--;
        finish(block);
        result = CUDA_SUCCESS;
    }
    pthread_mutex_unlock(&residency_lock);
    return result;
}

CUmemGenericAllocationHandle swap_driver_handle(CUmemGenericAllocationHandle handle) {
    pthread_mutex_lock(&residency_lock);
    struct block *block = block_of(handle);
    CUmemGenericAllocationHandle found = block ? block->handle : 0;
    pthread_mutex_unlock(&residency_lock);
    return found;
}

void swap_pin_handle(CUmemGenericAllocationHandle handle) {
    pthread_mutex_lock(&residency_lock);
    struct block *block = block_of(handle);
    if (block)
        block_pin(block);
    pthread_mutex_unlock(&residency_lock);
}

/* The addresses are reserved together, and have no memory. */
static bool are_free(CUdeviceptr address, uint64_t bytes) {
    CUdeviceptr start;
    size_t size;
    unsigned type;
    return !swap_allocation_within(address, bytes) && !reaches(first_above(address), address, bytes) &&
           REAL(cuPointerGetAttribute)(&start, CU_POINTER_ATTRIBUTE_RANGE_START_ADDR, address) == CUDA_SUCCESS &&
           REAL(cuPointerGetAttribute)(&size, CU_POINTER_ATTRIBUTE_RANGE_SIZE, address) == CUDA_SUCCESS &&
           address - start <= size && bytes <= size - (address - start) &&
           REAL(cuPointerGetAttribute)(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, address) != CUDA_SUCCESS;
}

/* The driver maps whole memory only (tests/driver_facts/test_vmm.py). */
static bool is_valid_map(CUdeviceptr address, size_t bytes, size_t offset, const struct block *block) {
    return address % GRANULE_BYTES == 0 && bytes == block->bytes && !offset && are_free(address, bytes);
}

static bool has_room(void) {
    if (count < room)
        return true;
    uint64_t wanted = room ? 2 * room : 64;
    struct mapping **grown = realloc(mappings, wanted * sizeof *grown);
    if (!grown)
        return false;
    mappings = grown;
    room = wanted;
    return true;
}

/* The driver has no flags yet. */
CUresult swap_map(CUdeviceptr address, size_t bytes, size_t offset, CUmemGenericAllocationHandle handle,
                  unsigned long long flags) {
    pthread_mutex_lock(&residency_lock);
    struct block *block = block_of(handle);
    CUresult result = CUDA_ERROR_INVALID_VALUE;
    struct mapping *made = NULL;
    if (block && block->program_references && !flags)
        result = !has_room() ? CUDA_ERROR_OUT_OF_MEMORY
                 : block->handle || is_valid_map(address, bytes, offset, block)
                     ? block_map(block, address, bytes, offset, &made)
                     : CUDA_ERROR_NOT_READY;
    if (result == CUDA_SUCCESS) {
        uint64_t at = above(address);
        for (uint64_t i = count++; i > at; i--)
            mappings[i] = mappings[i - 1];
        mappings[at] = made;
    }
    pthread_mutex_unlock(&residency_lock);
    return result;
}

/* Find the mappings that fill the range exactly, from index *first on. Return their number; 0: they do not. */
static uint64_t filling(CUdeviceptr address, size_t bytes, uint64_t *first) {
    CUdeviceptr at = address;
    uint64_t index = above(address);
    *first = index - 1;
    if (!index || mappings[*first]->address != address)
        return 0;
    for (index = *first; index < count && at < address + bytes && mappings[index]->address == at; index++)
        at += mappings[index]->bytes;
    return at == address + bytes ? index - *first : 0;
}

static CUresult unmap_at(uint64_t index) {
    struct block *block = mappings[index]->block;
    CUresult result = block_unmap(mappings[index]);
    if (result != CUDA_SUCCESS)
        return result;
    for (uint64_t at = index; at + 1 < count; at++)
        mappings[at] = mappings[at + 1];
    count--;
    finish(block);
    return result;
}

/* Let the driver answer for a range that these mappings do not fill. Drivers differ: an H200 unmaps the mappings of a
 * larger range, which the documentation excludes (tests/driver_facts/test_vmm.py). */
static CUresult request_unmap(CUdeviceptr address, size_t bytes) {
    uint64_t first = first_above(address);
    for (uint64_t i = first; reaches(i, address, bytes); i++)
        if (!mappings[i]->is_mapped)
            return CUDA_ERROR_NOT_READY;
    CUresult result = REAL(cuMemUnmap)(address, bytes);
    while (result == CUDA_SUCCESS && reaches(first, address, bytes)) {
        mappings[first]->is_mapped = mappings[first]->has_access = false;
        unmap_at(first);
    }
    return result;
}

/* Memory of cuMemAlloc is no mapping of the program. */
CUresult swap_unmap(CUdeviceptr address, size_t bytes) {
    uint64_t first, found;
    CUresult result = CUDA_SUCCESS;
    pthread_mutex_lock(&residency_lock);
    found = filling(address, bytes, &first);
    if (!found)
        result = swap_allocation_within(address, bytes) ? CUDA_ERROR_INVALID_VALUE : request_unmap(address, bytes);
    for (uint64_t i = 0; i < found && result == CUDA_SUCCESS; i++)
        result = unmap_at(first);
    pthread_mutex_unlock(&residency_lock);
    return result;
}

static bool is_valid_access(const struct mapping *mapping, const CUmemAccessDesc *access, size_t wanted) {
    CUdevice home = mapping->block->properties.location.id;
    for (size_t i = 0; access && i < wanted; i++) {
        int flags = access[i].flags, possible = access[i].location.id == home;
        if (access[i].location.type != CU_MEM_LOCATION_TYPE_DEVICE ||
            (flags != CU_MEM_ACCESS_FLAGS_PROT_NONE && flags != CU_MEM_ACCESS_FLAGS_PROT_READ &&
             flags != CU_MEM_ACCESS_FLAGS_PROT_READWRITE))
            return false;
        if (!possible)
            REAL(cuDeviceCanAccessPeer)(&possible, access[i].location.id, home);
        if (!possible)
            return false;
    }
    return access && wanted;
}

/* Let the driver answer a call that it may refuse. A part of a mapping with access of its own stays on the device. */
static CUresult request_access(CUdeviceptr address, size_t bytes, const CUmemAccessDesc *access, size_t wanted) {
    uint64_t first = first_above(address);
    for (uint64_t i = first; reaches(i, address, bytes); i++)
        if (!mappings[i]->is_mapped)
            return CUDA_ERROR_NOT_READY;
    CUresult result = REAL(cuMemSetAccess)(address, bytes, access, wanted);
    for (uint64_t i = first; reaches(i, address, bytes) && result == CUDA_SUCCESS; i++)
        if (mappings[i]->address < address || mappings[i]->address - address + mappings[i]->bytes > bytes)
            block_pin(mappings[i]->block);
        else
            result = mapping_access(mappings[i], access, wanted);
    return result;
}

CUresult swap_access(CUdeviceptr address, size_t bytes, const CUmemAccessDesc *access, size_t wanted) {
    uint64_t first, found;
    CUresult result = CUDA_SUCCESS;
    pthread_mutex_lock(&residency_lock);
    found = filling(address, bytes, &first);
    bool is_valid = found != 0;
    for (uint64_t i = 0; i < found && is_valid; i++)
        is_valid = is_valid_access(mappings[first + i], access, wanted);
    if (!is_valid)
        result = request_access(address, bytes, access, wanted);
    for (uint64_t i = 0; i < found && is_valid && result == CUDA_SUCCESS; i++)
        result = mapping_access(mappings[first + i], access, wanted);
    pthread_mutex_unlock(&residency_lock);
    return result;
}

CUresult swap_retain(CUmemGenericAllocationHandle *handle, CUdeviceptr address) {
    pthread_mutex_lock(&residency_lock);
    struct mapping *mapping = swap_mapping_at(address);
    if (mapping) {
        mapping->block->program_references++;
        *handle = mapping->block->program_handle;
    }
    pthread_mutex_unlock(&residency_lock);
    return mapping ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult swap_properties(CUmemAllocationProp *properties, CUmemGenericAllocationHandle handle) {
    pthread_mutex_lock(&residency_lock);
    struct block *block = block_of(handle);
    if (block && properties)
        *properties = block->properties;
    pthread_mutex_unlock(&residency_lock);
    return block && properties ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

void swap_vmm_after_fork(void) {
    mappings = NULL;
    count = room = 0;
}
