/* Memory of arrays, commands that copy and set, and attributes of mapped memory, for several functions of the program. */
#ifndef SIMCUDA_API_MEMORY_MEMORY_H
#define SIMCUDA_API_MEMORY_MEMORY_H

#include "memory/alloc.h"

/* array.c: rows of `width` bytes, `pitch` apart, layers of `rows` */
struct sim_memory_2d {
    CUdeviceptr address;
    size_t width, rows, pitch;
};
int array_memory(CUarray array, struct sim_memory_2d *out); /* 0: not an array */

/* api_copy.c: the command of a node of a graph */
CUresult copy_command(const CUDA_MEMCPY3D *copy, struct sim_command *command);
void copy_parameters(const struct sim_command *command, CUDA_MEMCPY3D *copy); /* of a command that copies */
CUresult set_command(const CUDA_MEMSET_NODE_PARAMS *params, struct sim_command *command);

/* Return one attribute of an address in a reserved range (api_vmm.c). */
CUresult vmm_attribute(const struct sim_alloc *range, int attribute, CUdeviceptr address, void *data);

#endif
