/* The driver for the folders above: its functions from the table of hooks.def, captures, contexts, libraries whose work
 * may pass the gate, and names that programs look up. */
#ifndef GPUSHARE_DRIVER_H
#define GPUSHARE_DRIVER_H

#include "base/base.h"
#include "driver/cuda_abi.h"

#pragma GCC visibility push(hidden)

#define DEFAULT ((CUstream)0) /* the default stream */
#define NO_STREAM ((CUstream)UINTPTR_MAX)
#define KNOWN_VERSION 13050 /* the newest CUDA whose entry points have been compared with hooks.def */

/* --- symbols.c --- */

#define HOOK_NONE(symbol) HOOK_##symbol,
#define HOOK_PTSZ(symbol) HOOK_##symbol, HOOK_##symbol##_ptsz,
#define HOOK_PTDS(symbol) HOOK_##symbol, HOOK_##symbol##_ptds,
enum hook_id {
#define GATED(twin, symbol, ...) HOOK_##twin(symbol)
#define CUSTOM(twin, symbol, ...) HOOK_##twin(symbol)
#define LOADS(twin, symbol, ...) HOOK_##twin(symbol)
#define LOOKUP(twin, symbol, ...) HOOK_##twin(symbol)
#define USED(symbol, ...) HOOK_##symbol,
#include "driver/hooks.def"
    HOOK_COUNT
};

/* Prototypes, for their types: only `typeof` uses those that are not defined. */
#define UNWRAP(...) __VA_ARGS__
#define DECLARE_NONE(symbol, parameters) EXPORT CUresult symbol parameters;
#define DECLARE_PTSZ(symbol, parameters) EXPORT CUresult symbol parameters, symbol##_ptsz parameters;
#define DECLARE_PTDS(symbol, parameters) EXPORT CUresult symbol parameters, symbol##_ptds parameters;
#define DECLARE_HAND_NONE(symbol, parameters) CUresult hook_##symbol parameters;
#define DECLARE_HAND_PTSZ(symbol, parameters) CUresult hook_##symbol(bool twin, UNWRAP parameters);
#define GATED(twin, symbol, base, since, parameters, ...) DECLARE_##twin(symbol, parameters)
#define CUSTOM(twin, symbol, base, since, parameters, ...)                                                             \
    DECLARE_##twin(symbol, parameters) DECLARE_HAND_##twin(symbol, parameters)
#define LOADS(twin, symbol, base, since, parameters, ...) DECLARE_##twin(symbol, parameters)
#define LOOKUP(twin, symbol, base, since, parameters) DECLARE_##twin(symbol, parameters)
#define USED(symbol, parameters) CUresult symbol parameters;
#include "driver/hooks.def"

struct driver_entry {
    const char *symbol, *base;
    int since;
    bool per_thread;
    bool is_hooked; /* false: the shim only calls it */
};

struct driver_alias {
    const char *base; /* NULL: the end */
    int since;
    enum hook_id id;
};

extern const struct driver_entry driver_entries[HOOK_COUNT];
extern const struct driver_alias driver_aliases[];
extern void *driver_functions[HOOK_COUNT];
void *driver_resolve(enum hook_id id);
bool driver_resolve_gated(void); /* so that no GATED row is NULL in driver_functions; false: there is no driver yet */
bool driver_has(enum hook_id id);
bool driver_is_simulated(void);
void *driver_library(bool load); /* NULL: it is not loaded, or could not be */

typedef void *(*dlsym_function)(void *handle, const char *name);
typedef void *(*dlvsym_function)(void *handle, const char *name, const char *version);
dlsym_function libc_dlsym(void); /* the C library's functions, past the shim's own */
dlvsym_function libc_dlvsym(void);
void *real_dlsym(void *handle, const char *name);

static inline void *driver_function(enum hook_id id) {
    void *function = __atomic_load_n(&driver_functions[id], __ATOMIC_RELAXED);
    return likely(function != NULL) ? function : driver_resolve(id);
}

/* The driver's own function behind a hook. Never NULL: a missing one returns CUDA_ERROR_NOT_FOUND. */
#define REAL(symbol) ((__typeof__(&symbol))driver_function(HOOK_##symbol))
#define REAL_TWIN(symbol, twin) ((__typeof__(&symbol))driver_function((twin) ? HOOK_##symbol##_ptsz : HOOK_##symbol))

/* The per-thread form of an entry point means another default stream. */
static inline CUstream per_thread(CUstream stream) {
    return stream == DEFAULT ? CU_STREAM_PER_THREAD : stream;
}

/* Return true if work for `stream` goes into a graph instead of to the device. */
static inline bool is_capturing(CUstream stream) {
    int status = CU_STREAM_CAPTURE_STATUS_NONE;
    return REAL(cuStreamIsCapturing)(stream, &status) == CUDA_SUCCESS && status != CU_STREAM_CAPTURE_STATUS_NONE;
}

/* --- captures.c: the program's captures, which no call of the shim may end or join --- */

int relaxed_mode_begin(void);
void relaxed_mode_end(const int *mode);
/* The calling thread is in the relaxed capture mode until the end of the block. */
#define RELAXED_MODE __attribute__((cleanup(relaxed_mode_end), unused)) const int mode_before = relaxed_mode_begin()

/* No stream begins to capture or joins a capture, and no other thread of the shim queries a stream, between these. */
void queries_lock(void);
void queries_unlock(void);
/* The lock is held during the functions up to captures_remove_context. */
bool touches_capture(CUstream stream); /* a query of the stream would end a capture, and an event be part of it */
/* Return true if no blocking stream of the current context, and no default stream, has unfinished work or captures. */
bool blocking_streams_are_idle(void);
void captures_expect_stream(void);            /* a stream is about to begin to capture or to join a capture */
void captures_add(CUstream stream, int mode); /* the calling thread has begun a capture in the stream */
void captures_remove(CUstream stream);        /* the capture or the stream has ended */
void captures_remove_context(CUcontext context);
bool captures_any(void); /* some stream captures */
/* Without the lock: record an event, which may wait for the device. CUDA_ERROR_NOT_READY: another thread holds the lock,
 * and the event is not recorded. CUDA_ERROR_CAPTURED_EVENT: the event is not recorded or may be a part of a capture, so a
 * query of the event would end that capture. */
CUresult record_outside_captures(CUevent event, CUstream stream);
/* The program calls a function that the driver takes for unsafe, in place of which the shim makes safe calls. Return the
 * error of the driver, which has ended captures; CUDA_SUCCESS: the driver permits the call. */
CUresult captures_refuse_unsafe_call(void);
void captures_after_fork(void);

/* No function of another library, because lookups run before some libraries are ready for calls. */
static inline bool names_are_equal(const char *a, const char *b) {
    while (*a && *a == *b)
        a++, b++;
    return *a == *b;
}

/* Return true for a name such as the driver's entry points have. Names of the libraries above it (cuda…, cublas…)
 * differ. */
static inline bool is_driver_name(const char *name) {
    return name[0] == 'c' && name[1] == 'u' && name[2] >= 'A' && name[2] <= 'Z';
}

/* --- contexts.c --- */

struct stream_home {
    CUcontext context; /* in which the shim makes calls for the stream; NULL: unknown */
    CUgreenCtx green;  /* the green context of the stream, whose primary context `context` is; NULL: none */
};
struct stream_home stream_home(CUstream stream); /* of a default stream: for the current context */
CUcontext memory_context(void);                  /* of memory that this thread allocates now; NULL: none */
CUcontext primary_context(CUdevice device);      /* NULL: it is not active */
bool primary_context_has_ended(CUdevice device);

/* --- libraries.c: the agent calls it, seldom because it takes a lock of the C library --- */

/* bits GPUSHARE_LIBRARY_… of those loaded so far, and of newer forms looked up so far, which the page gets too */
uint32_t bypassing_libraries(void);

/* --- unhooked.c: entry points that the program has looked up and that are not in the shim's tables --- */

#define MAX_UNHOOKED 32 /* names */
#define MAX_UNHOOKED_BYTES 64

void note_unhooked(const char *name);                   /* the driver has it, and it is no hook's */
void note_newer_version(const char *name, int version); /* a hook has it, but not in this form */
bool newer_forms_are_used(void);                        /* the program has looked such a form up */
int unhooked_names(char names[MAX_UNHOOKED][MAX_UNHOOKED_BYTES]);
void unhooked_after_fork(void);

#pragma GCC visibility pop

#endif
