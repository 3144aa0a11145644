/* The functions that the demo, the tests and the benchmarks launch, on a GPU and on the simulated driver alike.
 *
 * builtins.ptx is made from this file by `nvcc -ptx`, with the version and target lowered afterwards (see README.md here),
 * so that every driver from CUDA 9 on can load it. The simulated driver identifies the functions by name and parameter
 * sizes (native/simcuda/work/builtin_kernels.c): change both together. Each function may be launched with any grid.
 */
typedef unsigned long long u64;
typedef unsigned int u32;

static __device__ u64 now() {
    u64 time;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(time));
    return time;
}

static __device__ u64 first() { return (u64)blockIdx.x * blockDim.x + threadIdx.x; }
static __device__ u64 step() { return (u64)gridDim.x * blockDim.x; }

extern "C" __global__ void fill_f32(float *x, float value, u64 n) {
    for (u64 i = first(); i < n; i += step())
        x[i] = value;
}

extern "C" __global__ void axpy_f32(float *y, const float *x, float a, u64 n) {
    for (u64 i = first(); i < n; i += step())
        y[i] += a * x[i];
}

/* Square matrices, row by row. */
extern "C" __global__ void matmul_f32(float *c, const float *a, const float *b, u32 n) {
    for (u64 i = first(); i < (u64)n * n; i += step()) {
        const u64 row = i / n, column = i % n;
        float sum = 0;
        for (u32 k = 0; k < n; k++)
            sum += a[row * n + k] * b[(u64)k * n + column];
        c[i] = sum;
    }
}

/* Keeps the device busy for so long. */
extern "C" __global__ void spin(u64 nanoseconds) {
    const u64 begin = now();
    while (now() - begin < nanoseconds)
        ;
}

/* The device's clock, nanoseconds of CLOCK_REALTIME or nearly so. */
extern "C" __global__ void stamp(u64 *out) {
    if (first() == 0)
        *out = now();
}

/* x[i] += 1, and busy for at least so long. stamps[0] = begin, stamps[1] = end (stamps may be null; stamps[1] must hold
 * nothing later than that, 0 for instance). */
extern "C" __global__ void work_f32(float *x, u64 n, u64 nanoseconds, u64 *stamps) {
    const u64 begin = now();
    if (stamps && first() == 0)
        stamps[0] = begin;
    for (u64 i = first(); i < n; i += step())
        x[i] += 1.0f;
    while (now() - begin < nanoseconds)
        ;
    __syncthreads();
    if (stamps && threadIdx.x == 0)
        atomicMax(&stamps[1], now());
}

/* Occupies the device until *flag == value, at most a minute. */
extern "C" __global__ void wait_flag(volatile u32 *flag, u32 value) {
    const u64 begin = now();
    while (*flag != value && now() - begin < 60000000000ull)
        ;
}

extern "C" __global__ void set_flag(u32 *flag, u32 value) {
    if (first() == 0) {
        *(volatile u32 *)flag = value;
        __threadfence_system();
    }
}
