/* Interrupts of a Python program: an interrupt ends a waiting call as it ends Python's own calls (PEP 475). Signal
 * handlers that the program has set in Python run inside the wait. If the handlers return, the wait goes on. If a
 * handler raises, the waiting call returns an error. The handler's exception then takes the place of the calling
 * library's reaction to that error:
 *
 * - A library that raises an exception of its own: a trace function replaces that exception at its first trace event,
 *   which comes before any `except` clause.
 * - A library that returns the error code, or ignores it: a pending call raises the exception as soon as Python code
 *   goes on.
 *
 * Nothing is linked against Python: its functions are looked up when an interrupt meets a waiting call. If one of
 * them is missing, and in other programs, the waiting call returns the error and nothing else happens. */
#include "gate/gate.h"

#include <dlfcn.h>

#define MAX_LOCK_WAIT_NS (1000 * NS_PER_MS) /* for the interpreter lock */
#define TRACE_EXCEPTION 1                   /* PyTrace_EXCEPTION */

typedef struct _object object;
typedef struct _frame frame;
typedef int (*trace_function)(object *self, frame *where, int event, object *details);

#define FUNCTIONS(ROW)                                                                                                 \
    ROW(int, Py_IsInitialized, (void))                                                                                 \
    ROW(void, Py_DecRef, (object *))                                                                                   \
    ROW(int, Py_AddPendingCall, (int (*)(void *), void *))                                                             \
    ROW(int, PyGILState_Check, (void))                                                                                 \
    ROW(int, PyGILState_Ensure, (void))                                                                                \
    ROW(void, PyGILState_Release, (int))                                                                               \
    ROW(void *, PyGILState_GetThisThreadState, (void))                                                                 \
    ROW(void, PyErr_Clear, (void))                                                                                     \
    ROW(int, PyErr_CheckSignals, (void))                                                                               \
    ROW(void, PyErr_SetInterrupt, (void))                                                                              \
    ROW(void, PyErr_Fetch, (object **, object **, object **))                                                          \
    ROW(void, PyErr_Restore, (object *, object *, object *))                                                           \
    ROW(int, PyErr_GivenExceptionMatches, (object *, object *))                                                        \
    ROW(void, PyEval_SetTrace, (trace_function, object *))                                                             \
    ROW(int, PyTraceBack_Here, (frame *))                                                                              \
    ROW(object *, PySys_GetObject, (const char *))                                                                     \
    ROW(object *, PyObject_CallFunctionObjArgs, (object *, ...))                                                       \
    ROW(int, PyObject_HasAttrString, (object *, const char *))                                                         \
    ROW(object *, PyTuple_GetItem, (object *, long))

#define POINTER(result, name, parameters) result(*name) parameters;
#define LOOK_UP(result, name, parameters)                                                                              \
    python.name = (result(*) parameters)real_dlsym(RTLD_DEFAULT, #name);                                               \
    complete &= python.name != NULL;

static struct {
    FUNCTIONS(POINTER)
    object **stop_iteration; /* PyExc_StopIteration */
    object *none;
} python;

/* The main thread uses it, under the interpreter lock; `raised` is also read without the lock. */
static struct {
    _Atomic bool raised; /* a handler's exception has not reached Python code yet */
    object *type, *value, *traceback;
    bool tracing;
    uint32_t waits_handling; /* the number of waits in which handlers run */
    object *tracer;          /* the program's own trace function, a function or a method; NULL: none */
} pending;

static _Atomic uint32_t lock_attempts; /* the number of tries for the interpreter lock */
static uint32_t lock_taken;            /* the latest try that got the lock; a futex */

static bool find_python(void) {
    static bool found;
    if (!found) {
        bool complete = true;
        FUNCTIONS(LOOK_UP)
        python.stop_iteration = real_dlsym(RTLD_DEFAULT, "PyExc_StopIteration");
        python.none = real_dlsym(RTLD_DEFAULT, "_Py_NoneStruct");
        found = complete && python.stop_iteration && python.none;
    }
    return found && python.Py_IsInitialized();
}

/* Return true if `function`, the program's handler of SIGINT, is the one that notes signals for Python code. */
bool python_owns_handler(void *function) {
    Dl_info its, pythons;
    return find_python() && python.PyGILState_GetThisThreadState() && dladdr(function, &its) != 0 &&
           dladdr((void *)python.Py_IsInitialized, &pythons) != 0 && its.dli_fbase == pythons.dli_fbase;
}

/* --- the interpreter lock ----------------------------------------------------------------------------------------- */

static void *try_lock(void *nothing) {
    uint32_t number = atomic_load(&lock_attempts);
    int state = python.PyGILState_Ensure();
    __atomic_store_n(&lock_taken, number, __ATOMIC_SEQ_CST);
    futex_wake_all(&lock_taken);
    python.PyGILState_Release(state);
    return nothing;
}

/* Return true if this thread can have the interpreter lock soon. The caller may hold a lock while it waits at the
 * gate, and a thread with the interpreter lock may wait for that lock until the call returns. So a helper thread
 * tries first. */
static bool can_take_lock(void) {
    if (python.PyGILState_Check())
        return true;
    uint32_t number = atomic_fetch_add(&lock_attempts, 1) + 1;
    uint64_t end = now_ns() + MAX_LOCK_WAIT_NS;
    if (!start_helper_thread(try_lock))
        return false;
    for (;;) {
        uint32_t had = __atomic_load_n(&lock_taken, __ATOMIC_SEQ_CST);
        uint64_t now = now_ns();
        if (had == number || now >= end)
            return had == number;
        futex_wait(&lock_taken, had, end - now);
    }
}

/* --- the way of the exception ------------------------------------------------------------------------------------- */

/* Save the program's trace function if it can be put back: sys.settrace takes functions and methods. Another tracer
 * may have been set by C code, which the shim leaves alone. */
static bool save_tracer(void) {
    object *gettrace = python.PySys_GetObject("gettrace");
    object *tracer = gettrace ? python.PyObject_CallFunctionObjArgs(gettrace, NULL) : NULL;
    if (!tracer)
        python.PyErr_Clear();
    bool known = tracer && (tracer == python.none || python.PyObject_HasAttrString(tracer, "__name__"));
    if (known && tracer != python.none)
        pending.tracer = tracer;
    else if (tracer)
        python.Py_DecRef(tracer);
    return known;
}

static void stop_tracing(void) {
    object *tracer = pending.tracer, *done = NULL;
    if (!pending.tracing)
        return;
    pending.tracing = false;
    pending.tracer = NULL;
    python.PyEval_SetTrace(NULL, NULL);
    if (!tracer)
        return;
    object *settrace = python.PySys_GetObject("settrace");
    if (settrace)
        done = python.PyObject_CallFunctionObjArgs(settrace, tracer, NULL);
    if (done)
        python.Py_DecRef(done);
    else
        python.PyErr_Clear();
    python.Py_DecRef(tracer);
}

/* Raise the pending exception, if there is one. -1: it is raised. */
static int deliver(frame *where) {
    if (!atomic_exchange(&pending.raised, false))
        return 0;
    stop_tracing();
    python.PyErr_Restore(pending.type, pending.value, pending.traceback);
    if (where)
        python.PyTraceBack_Here(where);
    return -1;
}

static int on_pending_call(void *nothing) {
    (void)nothing;
    return deliver(NULL);
}

/* The interpreter clears a StopIteration right after this event, and would clear the exception in its place. */
static int on_trace(object *self, frame *where, int event, object *details) {
    (void)self;
    if (event != TRACE_EXCEPTION)
        return 0;
    object *type = python.PyTuple_GetItem(details, 0);
    return type && !python.PyErr_GivenExceptionMatches(type, *python.stop_iteration) ? deliver(where) : 0;
}

/* A handler has raised, and its exception is set. */
static void keep_exception(void) {
    object *before[] = {pending.type, pending.value, pending.traceback};
    bool again = atomic_load(&pending.raised);
    python.PyErr_Fetch(&pending.type, &pending.value, &pending.traceback);
    for (int i = 0; again && i < 3; i++)
        if (before[i])
            python.Py_DecRef(before[i]);
    if (python.Py_AddPendingCall(on_pending_call, NULL) != 0) { /* too many pending calls: the signal is noted again */
        python.PyErr_Restore(pending.type, pending.value, pending.traceback);
        python.PyErr_Clear();
        atomic_store(&pending.raised, false);
        stop_tracing();
        python.PyErr_SetInterrupt();
        return;
    }
    atomic_store(&pending.raised, true);
    if (!pending.tracing && save_tracer()) {
        pending.tracing = true;
        python.PyEval_SetTrace(on_trace, NULL);
    }
}

/* For a handler written in Python: return whether the main thread was interrupted in a wait for the GPU. */
EXPORT int gpushare_waits(void) {
    return pending.waits_handling != 0;
}

/* --- calls of a waiting thread ------------------------------------------------------------------------------------ */

bool python_has_pending_exception(void) {
    return atomic_load(&pending.raised);
}

bool python_run_handlers(struct thread *thread, bool noted) {
    CUfunction function = thread->function; /* saved, because handlers may make CUDA calls */
    object *type, *value, *traceback;
    if (!can_take_lock()) {
        log_message(LOG_INFO, "could not get Python's interpreter lock for an interrupt");
        return false;
    }
    int state = python.PyGILState_Ensure();
    python.PyErr_Fetch(&type, &value, &traceback);
    if (!noted)
        python.PyErr_SetInterrupt();
    pending.waits_handling++;
    bool raises = python.PyErr_CheckSignals() != 0;
    pending.waits_handling--;
    if (raises)
        keep_exception();
    python.PyErr_Restore(type, value, traceback);
    python.PyGILState_Release(state);
    thread->function = function;
    return !raises;
}
