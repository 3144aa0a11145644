/* SIGINT while a thread waits at the gate. The program's own handler runs first, so that an interpreter notes the
 * interrupt; then the waiting call returns an error. So the shim wraps the handler, and sigaction and signal show
 * the program its own. In a Python program its signal handlers decide, see python.c. */
#include "gate/gate.h"

#include <errno.h>
#include <signal.h>
#include <string.h>

#define MAX_SIGNAL_LEAD_NS (50 * NS_PER_MS) /* a SIGINT this long before the wait still meant this call */

typedef int (*sigaction_function)(int signal, const struct sigaction *action, struct sigaction *old);
typedef void (*handler)(int signal);
typedef handler (*signal_function)(int signal, handler function);

static struct {
    atomic_flag lock; /* threads spin on it with SIGINT blocked */
    _Atomic int wrapping;
    struct sigaction saved[2]; /* the program's handler; the entry that is not in use is written */
    _Atomic int in_use;
    _Atomic uint64_t count, at_ns;
    _Atomic(sigaction_function) real_sigaction;
    _Atomic(signal_function) real_signal;
} interrupts = {.lock = ATOMIC_FLAG_INIT};

/* Resolved when the library is loaded, because sigaction may be called where no lookup is allowed. */
static __attribute__((constructor)) void resolve(void) {
    atomic_store(&interrupts.real_sigaction, (sigaction_function)real_dlsym(((void *)-1l), "sigaction"));
    atomic_store(&interrupts.real_signal, (signal_function)real_dlsym(((void *)-1l), "signal"));
}

static int real_sigaction(int number, const struct sigaction *action, struct sigaction *old) {
    if (!atomic_load(&interrupts.real_sigaction))
        resolve(); /* another library's constructor ran first */
    return atomic_load(&interrupts.real_sigaction)(number, action, old);
}

static void on_interrupt(int number, siginfo_t *info, void *context) {
    int error = errno;
    struct sigaction program = interrupts.saved[atomic_load(&interrupts.in_use)];
    if (program.sa_flags & SA_SIGINFO)
        program.sa_sigaction(number, info, context);
    else if (program.sa_handler != SIG_DFL && program.sa_handler != SIG_IGN)
        program.sa_handler(number);
    atomic_store(&interrupts.at_ns, now_ns());
    atomic_fetch_add(&interrupts.count, 1);
    futex_wake_all(&shim.gate);
    errno = error;
}

static bool is_ours(const struct sigaction *action) {
    return (action->sa_flags & SA_SIGINFO) && action->sa_sigaction == on_interrupt;
}

static bool is_handler(const struct sigaction *action) {
    return (action->sa_flags & SA_SIGINFO) || (action->sa_handler != SIG_DFL && action->sa_handler != SIG_IGN);
}

/* The lock is held and SIGINT is blocked. */
static int install(const struct sigaction *action) {
    struct sigaction wrapped = *action;
    if (!is_handler(action))
        return real_sigaction(SIGINT, action, NULL);
    /* otherwise the program puts back what Linux returned: the shim's handler stays over the same handler */
    if (!is_ours(action)) {
        int other = 1 - atomic_load(&interrupts.in_use);
        interrupts.saved[other] = *action;
        atomic_store(&interrupts.in_use, other);
    }
    wrapped.sa_sigaction = on_interrupt;
    wrapped.sa_flags |= SA_SIGINFO;
    return real_sigaction(SIGINT, &wrapped, NULL);
}

static void lock(sigset_t *before) {
    sigset_t interrupt;
    sigemptyset(&interrupt);
    sigaddset(&interrupt, SIGINT);
    pthread_sigmask(SIG_BLOCK, &interrupt, before);
    while (atomic_flag_test_and_set(&interrupts.lock))
        ;
}

static void unlock(const sigset_t *before) {
    atomic_flag_clear(&interrupts.lock);
    pthread_sigmask(SIG_SETMASK, before, NULL);
}

static int change(const struct sigaction *action, struct sigaction *old) {
    sigset_t before;
    struct sigaction copy, present;
    if (action)
        copy = *action; /* `action` may be the same as `old` */
    lock(&before);
    int result = real_sigaction(SIGINT, NULL, &present);
    if (result == 0 && is_ours(&present)) {
        int flags = present.sa_flags;
        sigset_t mask = present.sa_mask;
        present = interrupts.saved[atomic_load(&interrupts.in_use)];
        present.sa_mask = mask;
        present.sa_flags = (flags & ~SA_SIGINFO) | (present.sa_flags & SA_SIGINFO);
    }
    if (result == 0 && action)
        result = install(&copy);
    unlock(&before);
    if (result == 0 && old)
        *old = present;
    return result;
}

EXPORT int sigaction(int number, const struct sigaction *action, struct sigaction *old) {
    if (number != SIGINT || !atomic_load(&interrupts.wrapping))
        return real_sigaction(number, action, old);
    return change(action, old);
}

EXPORT handler signal(int number, handler function) {
    if (number != SIGINT || !atomic_load(&interrupts.wrapping)) {
        if (!atomic_load(&interrupts.real_signal))
            resolve();
        return atomic_load(&interrupts.real_signal)(number, function);
    }
    struct sigaction action = {.sa_handler = function, .sa_flags = SA_RESTART}, old;
    sigemptyset(&action.sa_mask);
    sigaddset(&action.sa_mask, SIGINT);
    return change(&action, &old) == 0 ? old.sa_handler : SIG_ERR;
}

void interrupt_start(void) {
    sigset_t before;
    struct sigaction present;
    lock(&before);
    if (!atomic_load(&interrupts.wrapping) && real_sigaction(SIGINT, NULL, &present) == 0) {
        install(&present);
        atomic_store(&interrupts.wrapping, 1);
    }
    unlock(&before);
}

void interrupt_after_fork(void) {
    atomic_flag_clear(&interrupts.lock); /* another thread of the parent may have held it */
}

void interrupt_begin(struct thread *thread, uint64_t began) {
    thread->interrupt_seq = PAGE_LOAD(the_page()->control.interrupt_seq);
    if (began > atomic_load(&interrupts.at_ns) + MAX_SIGNAL_LEAD_NS)
        thread->interrupts = atomic_load(&interrupts.count);
}

static bool is_python_handler(void) {
    struct sigaction present;
    if (real_sigaction(SIGINT, NULL, &present) != 0 || !is_ours(&present))
        return false;
    present = interrupts.saved[atomic_load(&interrupts.in_use)];
    return python_owns_handler(present.sa_flags & SA_SIGINFO ? (void *)present.sa_sigaction
                                                             : (void *)present.sa_handler);
}

bool interrupt_pending(struct thread *thread) {
    if (!thread->main)
        return false;
    if (python_has_pending_exception()) /* the calling code must return to Python code, whatever else it tries */
        return true;
    uint64_t count = atomic_load(&interrupts.count);
    uint32_t seq = PAGE_LOAD(the_page()->control.interrupt_seq);
    bool signalled = count != thread->interrupts;
    if (!signalled && seq == thread->interrupt_seq)
        return false;
    thread->interrupts = count;
    thread->interrupt_seq = seq;
    return !is_python_handler() || !python_run_handlers(thread, signalled);
}
