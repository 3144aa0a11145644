/* As much of PTX as the driver needs to know: entry points with their parameters, and variables. */
#ifndef SIMCUDA_PTX_H
#define SIMCUDA_PTX_H

#include <stddef.h>

#define PTX_MAX_PARAMS 64
#define PTX_MAX_BYTES 32764 /* what a launch may have of parameters */

struct ptx_entry {
    char name[128];
    int count;
    size_t size[PTX_MAX_PARAMS], offset[PTX_MAX_PARAMS];
};

/* The next ".entry" at or after text; returns where to go on, or NULL when there is no more. */
const char *ptx_next_entry(const char *text, struct ptx_entry *entry);
/* The next ".global" variable likewise. */
const char *ptx_next_global(const char *text, char name[128], size_t *bytes);
/* Is this PTX at all? */
int ptx_is_text(const char *image);

#endif
