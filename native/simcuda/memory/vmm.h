/* Virtual memory management: physical memory, its mappings in reserved ranges, and multicast objects. */
#ifndef SIMCUDA_VMM_H
#define SIMCUDA_VMM_H

#include "machine/machine.h"
#include "memory/alloc.h"

#define VMM_GRANULARITY MACHINE_BLOCK

static inline int vmm_is_granular(uint64_t value) {
    return value % VMM_GRANULARITY == 0;
}

/* Memory of cuMemCreate, which lives until it has neither handles nor mappings. */
struct sim_physical {
    uint32_t magic;
    int device;
    uint64_t bytes, id;
    uint64_t handles, mappings; /* multicast objects that have the memory count as mappings */
    int file;                   /* its own file, which other processes can import, or the arena */
    uint64_t start;             /* in the file */
    uint64_t inode;             /* of its own file; 0: none */
    CUmemAllocationProp properties;
    struct sim_physical *next; /* all memory with a file of its own, or the memory to be destroyed */
};

struct sim_mapping {
    uint64_t base, size;
    struct sim_physical *physical;
    uint8_t access[SIM_MAX_DEVICES]; /* CU_MEM_ACCESS_… of each device of the machine */
};

/* Memory of a team of devices that one address shall name. */
struct sim_binding {
    int device;
    uint64_t at, bytes;
    struct sim_physical *physical;
};

struct sim_multicast {
    uint32_t magic;
    unsigned team, added; /* devices */
    uint8_t is_member[SIM_MAX_DEVICES];
    uint64_t bytes;
    unsigned long long handle_types;
    struct sim_binding *binding;
    size_t bindings, room;
};

CUresult vmm_create(int device, uint64_t bytes, const CUmemAllocationProp *properties, struct sim_physical **out);
CUresult vmm_import(int file, struct sim_physical **out);
/* Free a list of memory that vmm_remove_unused has taken out. */
void vmm_destroy(struct sim_physical *list);

/* With alloc_lock held: */

/* NULL if the handle has been released as often as it was created and retained. */
struct sim_physical *physical_of(CUmemGenericAllocationHandle handle);
/* Put memory without handles and mappings on the list; leave other memory alone. */
void vmm_remove_unused(struct sim_physical *physical, struct sim_physical **list);
CUresult vmm_map(uint64_t address, uint64_t bytes, struct sim_physical *physical);
/* Return the mappings that fill the range exactly, and their number. NULL: they do not. */
struct sim_mapping *vmm_whole(uint64_t address, uint64_t bytes, size_t *count);
/* Unmap all mappings of a part of a reserved range, which may have holes. No mapping is unmapped if one reaches out.
 * *device becomes the device of the first mapping, or -1 if there is none. */
CUresult vmm_unmap(uint64_t address, uint64_t bytes, struct sim_physical **list, int *device);
const struct sim_mapping *vmm_at(const struct sim_alloc *range, uint64_t address);
#define ANY_DEVICE (-1)
int vmm_is_accessible(const struct sim_alloc *range, uint64_t address, uint64_t bytes, int device);

/* multicast.c */
struct sim_multicast *multicast_of(CUmemGenericAllocationHandle handle); /* NULL: not a multicast object */
/* Bind a part of the memory, which lives until it is unbound. */
CUresult multicast_bind(struct sim_multicast *object, uint64_t at, struct sim_physical *physical, uint64_t bytes);
/* Unbind what was bound by one call. Memory without handles and mappings is put on the list. */
CUresult multicast_unbind(struct sim_multicast *object, int device, uint64_t at, uint64_t bytes,
                          struct sim_physical **list);
/* Release the object and the memory that it has bound. Return whether the handle is such an object. */
int multicast_release(CUmemGenericAllocationHandle handle, struct sim_physical **list);

#endif
