/* Virtual memory management: physical memory, and its mappings in reserved ranges. */
#ifndef SIMCUDA_VMM_H
#define SIMCUDA_VMM_H

#include "machine/machine.h"
#include "memory/alloc.h"

#define VMM_GRANULARITY MACHINE_BLOCK

/* Memory of cuMemCreate, which lives until it has neither handles nor mappings. */
struct sim_physical {
    uint32_t magic;
    int device;
    uint64_t bytes, id;
    uint64_t handles, mappings;
    int file;       /* its own file, which other processes can import, or the arena */
    uint64_t start; /* in the file */
    uint64_t inode; /* of its own file; 0: none */
    CUmemAllocationProp properties;
    struct sim_physical *next; /* all memory with a file of its own, or the memory to be destroyed */
};

struct sim_mapping {
    uint64_t base, size;
    struct sim_physical *physical;
    uint8_t access[SIM_MAX_DEVICES]; /* CU_MEM_ACCESS_… of each device of the machine */
};

CUresult vmm_create(int device, uint64_t bytes, const CUmemAllocationProp *properties, struct sim_physical **out);
CUresult vmm_import(int file, struct sim_physical **out);
/* Free a list of memory that vmm_remove_unused has taken out. */
void vmm_destroy(struct sim_physical *list);

/* With alloc_lock held: */

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

#endif
