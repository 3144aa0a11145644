/* The rows of hooks.def as code: an exported wrapper for each function. The wrappers of lookups are in intercept.c. */
#include "hooks/hooks.h"

/* The meaning of the rows' COUNT column, in a call of `thread`. */
#define LAUNCH(function, n) (COUNTER_ADD(thread->counters.launches, 1), COUNTER_ADD(thread->counters.blocks, (n)))
#define LAUNCH_GRAPH(graph) graphs_count_launch((graph), &thread->counters)
#define COPY(n) (COUNTER_ADD(thread->counters.copies, 1), COUNTER_ADD(thread->counters.bytes_copied, (n)))
#define COPY2D(copy) COPY((copy) ? (copy)->width * (copy)->height : 0)
#define COPY3D(copy) COPY((copy) ? (copy)->width * (copy)->height * (copy)->depth : 0)
#define COPIES(n, sizes) count_copies(thread, (n), (sizes))
#define COPIES3D(n, operations) count_copies3d(thread, (n), (operations))
#define OTHER COUNTER_ADD(thread->counters.others, 1)
#define UPLOAD_GRAPH OTHER
#define NOTHING

static void count_copies(struct thread *thread, size_t copies, const size_t *sizes) {
    uint64_t bytes = 0;
    for (size_t i = 0; sizes && i < copies; i++)
        bytes += sizes[i];
    COUNTER_ADD(thread->counters.copies, copies);
    COUNTER_ADD(thread->counters.bytes_copied, bytes);
}

/* Between arrays the width of an extent is in texels of unknown size: it counts as bytes. */
static void count_copies3d(struct thread *thread, size_t copies, const CUDA_MEMCPY3D_BATCH_OP *operations) {
    uint64_t bytes = 0;
    for (size_t i = 0; operations && i < copies; i++)
        bytes += operations[i].width * operations[i].height * operations[i].depth;
    COUNTER_ADD(thread->counters.copies, copies);
    COUNTER_ADD(thread->counters.bytes_copied, bytes);
}

/* When a call on a full device waits for room and is made again, because it takes memory that no allocation shows. The
 * driver allocates the memory of a graph at its first upload or launch, and loads the code of a kernel at its first
 * launch. The slow path repeats a launch, and the fast path has launches of loaded functions only. The fast path repeats
 * no launch, because it would have to save the arguments, which doubles its time. */
enum repetition { NOT_REPEATED, REPEATED_ON_SLOW_PATH, REPEATED };
#define REPETITION_LAUNCH(...) REPEATED_ON_SLOW_PATH
#define REPETITION_LAUNCH_GRAPH(...) REPEATED
#define REPETITION_COPY(...) NOT_REPEATED
#define REPETITION_COPY2D(...) NOT_REPEATED
#define REPETITION_COPY3D(...) NOT_REPEATED
#define REPETITION_COPIES(...) NOT_REPEATED
#define REPETITION_COPIES3D(...) NOT_REPEATED
#define REPETITION_OTHER NOT_REPEATED
#define REPETITION_UPLOAD_GRAPH REPEATED
#define REPETITION_NOTHING NOT_REPEATED

/* The function of a call that must be loaded for the fast path; none of any other call. */
#define FUNCTION_LAUNCH(launched, ...) (launched)
#define FUNCTION_LAUNCH_GRAPH(...) ((CUfunction)NULL)
#define FUNCTION_COPY(...) ((CUfunction)NULL)
#define FUNCTION_COPY2D(...) ((CUfunction)NULL)
#define FUNCTION_COPY3D(...) ((CUfunction)NULL)
#define FUNCTION_COPIES(...) ((CUfunction)NULL)
#define FUNCTION_COPIES3D(...) ((CUfunction)NULL)
#define FUNCTION_OTHER ((CUfunction)NULL)
#define FUNCTION_UPLOAD_GRAPH ((CUfunction)NULL)
#define FUNCTION_NOTHING ((CUfunction)NULL)

/* Four functions for each hook. The exported function is the fast path. Where the fast path does not apply, the exported
 * function calls the slow function in place of the driver's function, and the slow function always returns inside the
 * gate. There is only one call, so that the compiler copies the arguments from where they lie. With two calls, the
 * compiler would keep the arguments in registers, which it must save first.
 *
 * The slow function makes the call once, and on a full device once more whenever there may be room. */
#define WRAP(symbol, parameters, arguments, stream, COUNT, FUNCTION, REPETITION)                                       \
    static COLD CUresult symbol##_once parameters {                                                                    \
        struct thread *thread = &this_thread;                                                                          \
        thread->function = (FUNCTION);                                                                                 \
        CUresult result = hook_enter(thread, stream);                                                                  \
        uint32_t timer_number = function_timing_take(thread);                                                          \
        thread->is_refused = result != CUDA_SUCCESS;                                                                   \
        if (thread->is_refused)                                                                                        \
            return result;                                                                                             \
        if ((REPETITION) == REPEATED_ON_SLOW_PATH)                                                                     \
            result = kernel_load(thread, (FUNCTION), stream);                                                          \
        if (result == CUDA_SUCCESS) {                                                                                  \
            COUNT;                                                                                                     \
            result = REAL(symbol) arguments;                                                                           \
        }                                                                                                              \
        if (unlikely(timer_number))                                                                                    \
            function_timing_end(timer_number, stream, result);                                                         \
        gate_leave(thread);                                                                                            \
        return result;                                                                                                 \
    }                                                                                                                  \
    static COLD CUresult symbol##_with_room parameters {                                                               \
        CUresult result = CALL_AT_GATE_WITH_ROOM(symbol##_once arguments, this_thread.is_refused);                     \
        if ((REPETITION) == REPEATED_ON_SLOW_PATH && result == CUDA_SUCCESS)                                           \
            loaded_functions_add(&this_thread, (FUNCTION), stream);                                                    \
        return result;                                                                                                 \
    }                                                                                                                  \
    static COLD CUresult symbol##_slow parameters {                                                                    \
        struct thread *thread = &this_thread;                                                                          \
        gate_leave(thread);                                                                                            \
        CUresult result = (REPETITION) == NOT_REPEATED ? symbol##_once arguments : symbol##_with_room arguments;       \
        DEPTH_ADD(thread, 1u, __ATOMIC_RELAXED);                                                                       \
        return result;                                                                                                 \
    }                                                                                                                  \
    EXPORT CUresult symbol parameters {                                                                                \
        struct thread *thread = own_thread();                                                                          \
        __typeof__(&symbol) function = symbol##_slow;                                                                  \
        if (gate_try(thread, stream) &&                                                                                \
            ((REPETITION) != REPEATED_ON_SLOW_PATH || likely(is_loaded(thread, (FUNCTION))))) {                        \
            COUNT;                                                                                                     \
            function = PAGE_LOAD(driver_functions[HOOK_##symbol]);                                                     \
        }                                                                                                              \
        CUresult result = function arguments;                                                                          \
        gate_leave(thread);                                                                                            \
        bool is_full = (REPETITION) == REPEATED && result == CUDA_ERROR_OUT_OF_MEMORY && function != symbol##_slow;    \
        return unlikely(is_full) ? symbol##_with_room arguments : result;                                              \
    }
#define WRAP_NONE(symbol, parameters, arguments, stream, ...) WRAP(symbol, parameters, arguments, stream, __VA_ARGS__)
#define WRAP_PTSZ(symbol, parameters, arguments, stream, ...)                                                          \
    WRAP(symbol, parameters, arguments, stream, __VA_ARGS__)                                                           \
    WRAP(symbol##_ptsz, parameters, arguments, per_thread(stream), __VA_ARGS__)
#define WRAP_PTDS(symbol, parameters, arguments, stream, ...)                                                          \
    WRAP(symbol, parameters, arguments, stream, __VA_ARGS__)                                                           \
    WRAP(symbol##_ptds, parameters, arguments, per_thread(stream), __VA_ARGS__)
#define LOADS(twin, symbol, base, since, parameters, arguments)                                                        \
    EXPORT CUresult symbol parameters {                                                                                \
        return CALL_WITH_ROOM(REAL(symbol) arguments);                                                                 \
    }
#define HAND_NONE(symbol, parameters, arguments)                                                                       \
    EXPORT CUresult symbol parameters {                                                                                \
        return hook_##symbol arguments;                                                                                \
    }
#define HAND_PTSZ(symbol, parameters, arguments)                                                                       \
    EXPORT CUresult symbol parameters {                                                                                \
        return hook_##symbol(false, UNWRAP arguments);                                                                 \
    }                                                                                                                  \
    EXPORT CUresult symbol##_ptsz parameters {                                                                         \
        return hook_##symbol(true, UNWRAP arguments);                                                                  \
    }

#define GATED(twin, symbol, base, since, parameters, arguments, stream, COUNT)                                         \
    WRAP_##twin(symbol, parameters, arguments, stream, COUNT, FUNCTION_##COUNT, REPETITION_##COUNT)
#define CUSTOM(twin, symbol, base, since, parameters, arguments) HAND_##twin(symbol, parameters, arguments)
#include "driver/hooks.def"

/* A launch on several devices at once: the hook marks its streams one after the other, inside one entry. */
CUresult hook_cuLaunchCooperativeKernelMultiDevice(CUDA_LAUNCH_PARAMS *list, unsigned devices, unsigned flags) {
    struct thread *thread = &this_thread;
    unsigned listed = list ? devices : 0, entered = 0;
    CUresult result = hook_enter(thread, listed ? list[0].stream : DEFAULT);
    if (result != CUDA_SUCCESS)
        return result;
    for (unsigned i = 1; i < listed; i++)
        entered += hook_enter(thread, list[i].stream) == CUDA_SUCCESS;
    for (unsigned i = 0; i < listed; i++)
        LAUNCH(NULL, (uint64_t)list[i].grid[0] * list[i].grid[1] * list[i].grid[2]);
    result = REAL(cuLaunchCooperativeKernelMultiDevice)(list, devices, flags);
    for (; entered; entered--)
        gate_leave(thread);
    gate_leave(thread);
    return result;
}
