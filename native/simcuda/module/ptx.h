/* The part of PTX that the driver needs: entry points with their parameters, and variables. */
#ifndef SIMCUDA_PTX_H
#define SIMCUDA_PTX_H

#include <stddef.h>

#include "base/sim.h"

#define PTX_MAX_PARAMS 64
#define PTX_MAX_BYTES 32764 /* bytes of a launch's parameters */

struct ptx_entry {
    char name[SIM_MAX_NAME];
    int count;
    size_t size[PTX_MAX_PARAMS], offset[PTX_MAX_PARAMS];
};

/* Find the next ".entry" at or after text; return where to continue, or NULL when there are no more. */
const char *ptx_next_entry(const char *text, struct ptx_entry *entry);
/* Find the next ".global" variable likewise. */
const char *ptx_next_global(const char *text, char name[SIM_MAX_NAME], size_t *bytes);
/* Return whether the image is PTX. */
int ptx_is_text(const char *image);

#endif
