/* Built-in functions of the simulated device, on host memory: fill, axpy, matmul, spin, stamp, work, wait_flag and
 * set_flag, as in native/ptx/builtins.cu. A program has the function count_down in PTX of its own.
 *
 * Each function has up to three parts. `prepare` checks and pins the function's memory and computes its simulated time.
 * `run` does the work, once for any grid, because any grid covers all elements. `finish`, if there is one, follows the
 * simulated time: `work` writes its time of end there. */
#include "base/waiting.h"
#include "context/context.h"
#include "graph/graph.h"
#include "memory/alloc.h"
#include "work/builtin_kernels.h"

#include <stdio.h>
#include <string.h>
#include <time.h>

#define FLAG_SAFETY_NS 60000000000ull

uint64_t sim_real_time(void) {
    struct timespec ts;
    clock_gettime(CLOCK_REALTIME, &ts);
    return (uint64_t)ts.tv_sec * 1000000000ull + (uint64_t)ts.tv_nsec;
}

/* Note that the launch uses `count` elements of `size` bytes from this address on. */
static CUresult touch(struct sim_execution *e, uint64_t address, uint64_t count, uint64_t size) {
    uint64_t bytes;
    if (!count)
        return CUDA_SUCCESS;
    if (__builtin_mul_overflow(count, size, &bytes))
        return CUDA_ERROR_ILLEGAL_ADDRESS;
    if (address % size)
        return CUDA_ERROR_MISALIGNED_ADDRESS;
    struct sim_alloc *alloc = alloc_pin_range(address, bytes);
    if (!alloc || !peers_allow(e->context, alloc, address, bytes)) {
        alloc_unpin(alloc);
        return CUDA_ERROR_ILLEGAL_ADDRESS;
    }
    e->touch[e->touches].alloc = alloc;
    e->touch[e->touches].offset = address - alloc->base;
    e->touch[e->touches].bytes = bytes;
    e->touches++;
    return CUDA_SUCCESS;
}

static void cost_bytes(struct sim_execution *e, double bytes) {
    e->cost_ns += (uint64_t)(bytes / e->device->bandwidth * 1e9);
}

static float as_float(uint64_t word) {
    float value;
    memcpy(&value, &word, sizeof value);
    return value;
}

/* fill_f32(float *x, float value, u64 n) */
static CUresult fill_prepare(struct sim_execution *e) {
    cost_bytes(e, 4.0 * (double)e->params[2]);
    return touch(e, e->params[0], e->params[2], 4);
}

static void fill_run(struct sim_execution *e) {
    float *x = (float *)e->params[0], value = as_float(e->params[1]);
    for (uint64_t i = 0; i < e->params[2]; i++)
        x[i] = value;
}

/* axpy_f32(float *y, const float *x, float a, u64 n): y += a x */
static CUresult axpy_prepare(struct sim_execution *e) {
    cost_bytes(e, 12.0 * (double)e->params[3]);
    CUresult result = touch(e, e->params[0], e->params[3], 4);
    return result ? result : touch(e, e->params[1], e->params[3], 4);
}

static void axpy_run(struct sim_execution *e) {
    float *y = (float *)e->params[0], a = as_float(e->params[2]);
    const float *x = (const float *)e->params[1];
    for (uint64_t i = 0; i < e->params[3]; i++)
        y[i] += a * x[i];
}

/* matmul_f32(float *c, const float *a, const float *b, u32 n): square, row by row */
static CUresult matmul_prepare(struct sim_execution *e) {
    uint64_t n = (uint32_t)e->params[3];
    e->cost_ns += (uint64_t)(2.0 * (double)n * (double)n * (double)n / e->device->flops * 1e9);
    CUresult result = CUDA_SUCCESS;
    for (int i = 0; i < 3 && !result; i++)
        result = touch(e, e->params[i], n * n, 4);
    return result;
}

static void matmul_run(struct sim_execution *e) {
    float *c = (float *)e->params[0];
    const float *a = (const float *)e->params[1], *b = (const float *)e->params[2];
    uint64_t n = (uint32_t)e->params[3];
    for (uint64_t row = 0; row < n; row++) {
        float *out = c + row * n;
        memset(out, 0, n * sizeof *out);
        for (uint64_t k = 0; k < n; k++) {
            float factor = a[row * n + k];
            const float *in = b + k * n;
            for (uint64_t column = 0; column < n; column++)
                out[column] += factor * in[column];
        }
    }
}

/* spin(u64 nanoseconds) */
static CUresult spin_prepare(struct sim_execution *e) {
    e->cost_ns += e->params[0];
    e->is_busy = e->params[0] != 0;
    return CUDA_SUCCESS;
}

static void nothing(struct sim_execution *e) {
    (void)e;
}

/* stamp(u64 *out) */
static CUresult stamp_prepare(struct sim_execution *e) {
    return touch(e, e->params[0], 1, 8);
}
static void stamp_run(struct sim_execution *e) {
    *(uint64_t *)e->params[0] = e->begin_ns;
}

/* work_f32(float *x, u64 n, u64 nanoseconds, u64 *stamps) */
static CUresult work_prepare(struct sim_execution *e) {
    e->cost_ns += e->params[2];
    e->is_busy = e->params[2] != 0;
    CUresult result = touch(e, e->params[0], e->params[1], 4);
    return result || !e->params[3] ? result : touch(e, e->params[3], 2, 8);
}

static void work_run(struct sim_execution *e) {
    float *x = (float *)e->params[0];
    if (e->params[3])
        ((uint64_t *)e->params[3])[0] = e->begin_ns;
    for (uint64_t i = 0; i < e->params[1]; i++)
        x[i] += 1.0f;
}

static void work_finish(struct sim_execution *e) {
    if (e->params[3])
        ((uint64_t *)e->params[3])[1] = sim_real_time();
}

/* wait_flag(volatile u32 *flag, u32 value): occupies the device until *flag == value, at most a minute */
static CUresult flag_prepare(struct sim_execution *e) {
    return touch(e, e->params[0], 1, 4);
}

static void wait_flag_run(struct sim_execution *e) {
    const uint32_t *flag = (const uint32_t *)e->params[0];
    uint64_t now = sim_now(), end = now + FLAG_SAFETY_NS;
    while (__atomic_load_n(flag, __ATOMIC_ACQUIRE) != (uint32_t)e->params[1] && now < end) {
        sim_sleep_until(now + 20000);
        now = sim_now();
    }
}

/* set_flag(u32 *flag, u32 value) */
static void set_flag_run(struct sim_execution *e) {
    __atomic_store_n((uint32_t *)e->params[0], (uint32_t)e->params[1], __ATOMIC_RELEASE);
}

/* count_down(u64 condition, u32 *counter): decrements the counter, and sets the condition of a graph to it, as
 * cudaGraphSetConditional does in a program's own function */
static CUresult count_down_prepare(struct sim_execution *e) {
    return touch(e, e->params[1], 1, 4);
}

static void count_down_run(struct sim_execution *e) {
    uint32_t left = --*(uint32_t *)e->params[1];
    if (!condition_set(e->params[0], left))
        context_fail(e->context, CUDA_ERROR_LAUNCH_FAILED);
}

static const struct sim_builtin builtins[] = {
    {"fill_f32", 3, {8, 4, 8}, fill_prepare, fill_run, NULL},
    {"axpy_f32", 4, {8, 8, 4, 8}, axpy_prepare, axpy_run, NULL},
    {"matmul_f32", 4, {8, 8, 8, 4}, matmul_prepare, matmul_run, NULL},
    {"spin", 1, {8}, spin_prepare, nothing, NULL},
    {"stamp", 1, {8}, stamp_prepare, stamp_run, NULL},
    {"work_f32", 4, {8, 8, 8, 8}, work_prepare, work_run, work_finish},
    {"wait_flag", 2, {8, 4}, flag_prepare, wait_flag_run, NULL},
    {"set_flag", 2, {8, 4}, flag_prepare, set_flag_run, NULL},
    {"count_down", 2, {8, 8}, count_down_prepare, count_down_run, NULL},
};

static CUresult uncomputed_prepare(struct sim_execution *e) {
    static atomic_int is_reported;
    if (!atomic_exchange(&is_reported, 1))
        fprintf(stderr,
                "simulated GPU: functions that are not built in are not computed, so their results are undefined. A"
                " launch takes %llu ns (GPUSHARE_SIM_KERNEL_NS).\n",
                (unsigned long long)sim.params.kernel_ns);
    e->cost_ns += sim.params.kernel_ns;
    e->is_busy = sim.params.kernel_ns != 0;
    return CUDA_SUCCESS;
}

const struct sim_builtin *builtin_uncomputed(void) {
    static const struct sim_builtin uncomputed = {.prepare = uncomputed_prepare, .run = nothing};
    return sim.params.runs_any ? &uncomputed : NULL;
}

const struct sim_builtin *builtin_find(const char *name) {
    for (size_t i = 0; i < sizeof builtins / sizeof *builtins; i++)
        if (strcmp(builtins[i].name, name) == 0)
            return &builtins[i];
    return NULL;
}
