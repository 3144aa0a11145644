/* The driver's functions by number and by type, from the table of hooks.def. Part of shim.h. */
#ifndef GPUSHARE_HOOKS_H
#define GPUSHARE_HOOKS_H

#define HOOK_NONE(symbol) HOOK_##symbol,
#define HOOK_PTSZ(symbol) HOOK_##symbol, HOOK_##symbol##_ptsz,
#define HOOK_PTDS(symbol) HOOK_##symbol, HOOK_##symbol##_ptds,
enum hook_id {
#define GATED(twin, symbol, ...) HOOK_##twin(symbol)
#define CUSTOM(twin, symbol, ...) HOOK_##twin(symbol)
#define USED(symbol, ...) HOOK_##symbol,
#define ALIAS(...)
#include "driver/hooks.def"
#undef GATED
#undef CUSTOM
#undef USED
#undef ALIAS
    HOOK_COUNT
};

/* Prototypes, for their types: only `typeof` looks at those that are not defined. */
#define UNWRAP(...) __VA_ARGS__
#define DECLARE_NONE(symbol, parameters) EXPORT CUresult symbol parameters;
#define DECLARE_PTSZ(symbol, parameters) EXPORT CUresult symbol parameters, symbol##_ptsz parameters;
#define DECLARE_PTDS(symbol, parameters) EXPORT CUresult symbol parameters, symbol##_ptds parameters;
#define DECLARE_HAND_NONE(symbol, parameters) CUresult hook_##symbol parameters;
#define DECLARE_HAND_PTSZ(symbol, parameters) CUresult hook_##symbol(bool twin, UNWRAP parameters);
#define GATED(twin, symbol, base, since, parameters, ...) DECLARE_##twin(symbol, parameters)
#define CUSTOM(twin, symbol, base, since, parameters, ...)                                                             \
    DECLARE_##twin(symbol, parameters) DECLARE_HAND_##twin(symbol, parameters)
#define USED(symbol, parameters) CUresult symbol parameters;
#define ALIAS(...)
#include "driver/hooks.def"
#undef GATED
#undef CUSTOM
#undef USED
#undef ALIAS

struct hook {
    const char *symbol, *base;
    int since;
    bool per_thread;
    void *wrapper; /* NULL: only used */
};

struct alias {
    const char *base; /* NULL: the end */
    int since;
    enum hook_id id;
};

extern const struct hook hooks[HOOK_COUNT];
extern const struct alias aliases[];
extern void *driver_functions[HOOK_COUNT];
void *driver_resolve(enum hook_id id);
bool driver_has(enum hook_id id);
bool driver_is_simulated(void);

static inline void *driver_function(enum hook_id id) {
    void *function = __atomic_load_n(&driver_functions[id], __ATOMIC_RELAXED);
    return likely(function != NULL) ? function : driver_resolve(id);
}

/* The driver's own function behind a hook. Never NULL: a missing one returns CUDA_ERROR_NOT_FOUND. */
#define REAL(symbol) ((__typeof__(&symbol))driver_function(HOOK_##symbol))
#define REAL_TWIN(symbol, twin) ((__typeof__(&symbol))driver_function((twin) ? HOOK_##symbol##_ptsz : HOOK_##symbol))

#endif
