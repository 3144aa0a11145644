/* Virtual memory management: physical memory, and where in reserved ranges it is mapped. */
#ifndef SIMCUDA_VMM_H
#define SIMCUDA_VMM_H

#include "alloc.h"

#define VMM_GRANULARITY MACHINE_BLOCK

/* What cuMemCreate makes. Lives until it has neither handles nor mappings. */
struct sim_physical {
    uint32_t magic;
    int device;
    uint64_t bytes, id;
    uint64_t handles, mappings;
    int file;       /* its own, which others can import, or the arena's */
    uint64_t start; /* in the file */
    uint64_t inode; /* of its own file; 0: none */
    CUmemAllocationProp properties;
    struct sim_physical *next; /* all with a file of their own; or those to be destroyed */
};

struct sim_mapping {
    uint64_t base, size;
    struct sim_physical *physical;
    int access;
};

CUresult vmm_create(int device, uint64_t bytes, const CUmemAllocationProp *properties, struct sim_physical **out);
CUresult vmm_import(int file, struct sim_physical **out);
/* Frees a list of what vmm_forget has taken out. */
void vmm_destroy(struct sim_physical *list);

/* With alloc_lock held: */

/* Puts memory without handles and mappings on the list; leaves other memory alone. */
void vmm_forget(struct sim_physical *physical, struct sim_physical **list);
CUresult vmm_map(uint64_t address, uint64_t bytes, struct sim_physical *physical);
/* The mappings that fill the range exactly, and their number. NULL: they don't. */
struct sim_mapping *vmm_whole(uint64_t address, uint64_t bytes, size_t *count);
void vmm_unmap(uint64_t address, uint64_t bytes, struct sim_mapping *first, size_t count, struct sim_physical **list);
const struct sim_mapping *vmm_at(const struct sim_alloc *range, uint64_t address);
int vmm_is_accessible(const struct sim_alloc *range, uint64_t address, uint64_t bytes);

/* One attribute of an address in a reserved range (api_vmm.c). */
CUresult vmm_attribute(const struct sim_alloc *range, int attribute, CUdeviceptr address, void *data);

#endif
