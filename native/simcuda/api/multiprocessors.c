/* Multiprocessors of a device as resources, which a program splits into groups for green contexts. No call of the
 * interface frees a description. The order in which several errors are found is an assumption.
 *
 * Source: the driver's documentation of "Green Contexts" (multiples by architecture), cuDevSmResourceSplitByCount,
 * cuDevSmResourceSplit and cuDevResourceGenerateDesc. */
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "api/api.h"
#include "base/exports.h"

#define PAIR 2 /* multiprocessors: the smallest group on every architecture */
#define ALIGNMENT_SINCE_9 8
#define MAX_COSCHEDULED_SINCE_9 32

enum { SPLIT_IGNORE_COSCHEDULING = 1, SPLIT_MAX_CLUSTER = 2 }; /* CUdevSmResourceSplitByCount_flags */
enum { GROUP_BACKFILL = 1 };                                   /* CUdevSmResourceGroup_flags */

static _Atomic unsigned splits;

static int is_since_9(int device) {
    return sim.params.device[device].compute_major >= 9;
}

void resource_describe(CUdevResource *resource, int device, unsigned multiprocessors) {
    memset(resource, 0, sizeof *resource);
    if (!multiprocessors)
        return; /* of CU_DEV_RESOURCE_TYPE_INVALID */
    resource->type = CU_DEV_RESOURCE_SM;
    resource->internal.device = (unsigned)device + 1;
    resource->sm.count = multiprocessors;
    resource->sm.min_partition = resource->sm.alignment = is_since_9(device) ? ALIGNMENT_SINCE_9 : PAIR;
}

static void describe_part(CUdevResource *resource, int device, unsigned split, unsigned count, unsigned alignment) {
    resource_describe(resource, device, count);
    resource->internal.split = split;
    if (count)
        resource->sm.alignment = alignment;
}

static CUresult check_input(const CUdevResource *all, int *device) {
    SIM_ENTER();
    if (!all)
        return CUDA_ERROR_INVALID_VALUE;
    if (all->type != CU_DEV_RESOURCE_SM || !all->internal.device || all->internal.device > (unsigned)sim.params.devices)
        return CUDA_ERROR_INVALID_RESOURCE_TYPE;
    *device = (int)all->internal.device - 1;
    return CUDA_SUCCESS;
}

CUresult cuDevSmResourceSplitByCount(CUdevResource *groups, unsigned *count, const CUdevResource *all,
                                     CUdevResource *rest, unsigned flags, unsigned minimum) {
    int device;
    CUresult result = check_input(all, &device);
    if (result)
        return result;
    if (!count || flags & ~(unsigned)(SPLIT_IGNORE_COSCHEDULING | SPLIT_MAX_CLUSTER) || minimum > all->sm.count ||
        (flags & SPLIT_MAX_CLUSTER && !is_since_9(device)))
        return CUDA_ERROR_INVALID_VALUE;
    unsigned alignment = flags & SPLIT_IGNORE_COSCHEDULING ? PAIR : all->sm.alignment;
    unsigned each = minimum ? (minimum + alignment - 1) / alignment * alignment : alignment;
    if (each > all->sm.count)
        return CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION;
    unsigned most = all->sm.count / each, left = all->sm.count, split = atomic_fetch_add(&splits, 1) + 1;
    *count = groups && *count < most ? *count : most;
    left -= *count * each;
    for (unsigned i = 0; groups && i < *count; i++)
        describe_part(&groups[i], device, split, each, alignment);
    if (rest)
        describe_part(rest, device, split, left, alignment);
    return CUDA_SUCCESS;
}

/* Set the number of multiprocessors of a group, of those that are left. */
static CUresult size_group(CU_DEV_SM_RESOURCE_GROUP_PARAMS *wanted, int device, unsigned left, unsigned coscheduled) {
    static const unsigned zeros[sizeof wanted->reserved / sizeof *wanted->reserved];
    unsigned multiple = wanted->flags & GROUP_BACKFILL ? PAIR : coscheduled;
    if (wanted->flags & ~(unsigned)GROUP_BACKFILL || wanted->locality_domain || coscheduled % PAIR ||
        coscheduled > (is_since_9(device) ? MAX_COSCHEDULED_SINCE_9 : PAIR) || wanted->count % multiple ||
        memcmp(wanted->reserved, zeros, sizeof zeros) != 0)
        return CUDA_ERROR_INVALID_VALUE;
    if (!wanted->count)
        wanted->count = left / multiple * multiple;
    return wanted->count <= left ? CUDA_SUCCESS : CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION;
}

CUresult cuDevSmResourceSplit(CUdevResource *groups, unsigned count, const CUdevResource *all, CUdevResource *rest,
                              unsigned flags, CU_DEV_SM_RESOURCE_GROUP_PARAMS *wanted) {
    int device;
    CUresult result = check_input(all, &device);
    if (result)
        return result;
    if (!count || !wanted || flags)
        return CUDA_ERROR_INVALID_VALUE;
    unsigned left = all->sm.count, split = atomic_fetch_add(&splits, 1) + 1;
    unsigned usual = is_since_9(device) ? ALIGNMENT_SINCE_9 : PAIR;
    for (unsigned i = 0; i < count; i++) {
        unsigned coscheduled = wanted[i].coscheduled ? wanted[i].coscheduled : usual;
        if (wanted[i].count > all->sm.count)
            return CUDA_ERROR_INVALID_VALUE;
        if ((result = size_group(&wanted[i], device, left, coscheduled)))
            return result;
        if (groups && wanted[i].count < coscheduled)
            return CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION;
        left -= wanted[i].count;
        if (groups) {
            describe_part(&groups[i], device, split, wanted[i].count, coscheduled);
            groups[i].sm.flags = wanted[i].flags;
        }
    }
    if (rest)
        describe_part(rest, device, split, left, PAIR);
    return CUDA_SUCCESS;
}

CUresult cuDevResourceGenerateDesc(CUdevResourceDesc *description, CUdevResource *resources, unsigned count) {
    SIM_ENTER();
    if (!description || !resources || !count)
        return CUDA_ERROR_INVALID_VALUE;
    unsigned multiprocessors = 0;
    for (unsigned i = 0; i < count; i++) {
        int device;
        CUresult result = check_input(&resources[i], &device);
        if (result)
            return result;
        if (i && (resources[i].internal.device != resources[0].internal.device || !resources[i].internal.split ||
                  resources[i].internal.split != resources[0].internal.split ||
                  resources[i].sm.alignment != resources[0].sm.alignment))
            return CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION;
        multiprocessors += resources[i].sm.count;
    }
    if (!(*description = calloc(1, sizeof **description)))
        return CUDA_ERROR_OUT_OF_MEMORY;
    (*description)->multiprocessors = multiprocessors;
    return CUDA_SUCCESS;
}
