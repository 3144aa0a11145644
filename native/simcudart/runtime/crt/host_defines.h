/* Empty definitions of the compiler's words in the public headers of the CUDA runtime, whose package lacks this
 * file. */
#ifndef SIMCUDART_HOST_DEFINES_H
#define SIMCUDART_HOST_DEFINES_H

#define __host__
#define __device__
#define __cudart_builtin__
#define __device_builtin__
#define __device_builtin_texture_type__
#define __device_builtin_surface_type__
#define CUDARTAPI
#define CUDARTAPI_CDECL
#define __align__(bytes) __attribute__((aligned(bytes)))
#define __builtin_align__(bytes) __align__(bytes)
#define __location__(place)

#endif
