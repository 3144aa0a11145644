/* State that the files of the stand-in runtime share. The names of the runtime's functions are those of the public
 * header.
 *
 * The runtime calls the driver only through `driver`, whose functions come from cuGetProcAddress, as the real
 * runtime's do. So a preloaded library sees the same calls. */
#ifndef SIMCUDART_RUNTIME_H
#define SIMCUDART_RUNTIME_H

#include <cuda.h>
#include <cudaTypedefs.h>
#include <cuda_runtime_api.h>

#define RUNTIME_VERSION 13000 /* as cudaRuntimeGetVersion counts versions */
#define EXPORT __attribute__((visibility("default")))

/* The package of the headers lacks the one with these two. */
typedef CUresult (*PFN_cuProfilerStart_v4000)(void);
typedef CUresult (*PFN_cuProfilerStop_v4000)(void);

struct driver {
#define DRIVER(name, since) PFN_##name##_v##since name;
#include "driver_functions.def"
#undef DRIVER
};
extern struct driver driver;

/* driver.c: initialise the driver once */
cudaError_t driver_enter(void);
/* context.c: the above, and a current context: the thread's own or the primary context of the thread's device */
cudaError_t context_enter(void);
cudaError_t context_reset(void);
/* error.c: keep an error for cudaGetLastError, and return it */
cudaError_t error_keep(cudaError_t error);

#define RETURN(enter, call)                                                                                            \
    do {                                                                                                               \
        cudaError_t problem_ = enter();                                                                                \
        return error_keep(problem_ ? problem_ : (cudaError_t)(call));                                                  \
    } while (0)
#define WITH_DRIVER(call) RETURN(driver_enter, call)
#define WITH_CONTEXT(call) RETURN(context_enter, call)

/* kernel.c: a function of the program, or of a stand-in library, on the device */
CUresult kernel_find(const void *host, CUkernel *out);
struct kernel *kernel_of_library(const char *name); /* NULL: out of memory */
/* Occupy the stream with one launch in the name of a library's function. `name` must be constant. */
EXPORT int simcudart_launch(const char *name, cudaStream_t stream);

#endif
