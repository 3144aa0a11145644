/* Prototypes of all exports, made from symbols.def. */
#ifndef SIMCUDA_EXPORTS_H
#define SIMCUDA_EXPORTS_H

#include "base/sim.h"

#define SIM_EXPORT __attribute__((visibility("default")))
#define SIM_LIST(...) __VA_ARGS__

#define PLAIN(name, symbol, since, params) SIM_EXPORT CUresult symbol params;
#define STREAM(name, symbol, since, twin, params, arguments)                                                           \
    CUresult sim_##symbol(CUstream fallback, SIM_LIST params);                                                         \
    SIM_EXPORT CUresult symbol params;                                                                                 \
    SIM_EXPORT CUresult symbol##_##twin params;
#include "base/symbols.def"
#undef PLAIN
#undef STREAM

/* Describe the devices and their MIG slices as JSON: [{"index", "uuid", "name", "memory", "simulated", "parent",
 * "slices"}], where "parent" is the index of a slice's device, else -1. The call initialises nothing, starts no thread
 * and uses no shared state. Return the length needed as snprintf does, or -1 with {"error": text} if the parameters
 * cannot be read. */
SIM_EXPORT int simcuda_describe(char *json, size_t size);

/* Describe which processes have memory on the devices, as JSON: [{"index", "pid", "memory"}], memory in bytes.
 * Memory that several processes share belongs to none of them. Otherwise as simcuda_describe; the list is empty
 * where there is no machine yet. */
SIM_EXPORT int simcuda_processes(char *json, size_t size);

#endif
