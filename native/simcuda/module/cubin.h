/* The part of a cubin that the driver needs: its kernels and its variables. */
#ifndef SIMCUDA_CUBIN_H
#define SIMCUDA_CUBIN_H

#include <stddef.h>

struct cubin_symbol {
    const char *name;
    size_t bytes;
    int is_entry; /* a function that can be launched; else a variable */
};

/* Return whether the image is an ELF file for a GPU. */
int cubin_is(const void *image);
/* Find the next kernel or variable from *index on, which begins with 0. Return 0 when there are no more. */
int cubin_next(const void *image, size_t *index, struct cubin_symbol *symbol);

#endif
