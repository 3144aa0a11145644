/* Threads of the program that have passed a hook: a list that the agent reads. The state of a thread lies in the
 * thread's own storage, and leaves the list before that storage goes. */
#include "gate/gate.h"

#include <sys/syscall.h>
#include <unistd.h>

__thread struct thread this_thread = {
    .marked_word = NO_WORD,
    .last_stream = NO_STREAM,
    .marked = {NO_STREAM, NO_STREAM, NO_STREAM, NO_STREAM, NO_STREAM, NO_STREAM, NO_STREAM, NO_STREAM},
};

static struct {
    pthread_mutex_t lock;
    pthread_key_t key;
    bool has_key;
    struct thread *first;
    struct counters ended; /* of threads that have ended */
} threads = {.lock = PTHREAD_MUTEX_INITIALIZER};

static void add(struct counters *sum, struct counters *more) {
    sum->launches += PAGE_LOAD(more->launches);
    sum->blocks += PAGE_LOAD(more->blocks);
    sum->copies += PAGE_LOAD(more->copies);
    sum->bytes_copied += PAGE_LOAD(more->bytes_copied);
    sum->others += PAGE_LOAD(more->others);
}

static uint32_t depth_of(struct thread *thread) {
    return __atomic_load_n(&thread->depth, __ATOMIC_ACQUIRE);
}

static void clear_marks(struct thread *thread) {
    atomic_store(&thread->marked_word, NO_WORD);
    atomic_store(&thread->last_stream, NO_STREAM);
    for (int i = 0; i < MARKED_STREAMS; i++)
        atomic_store(&thread->marked[i], NO_STREAM);
}

/* Runs in the ending thread. A later destructor of the program may still submit work; the thread then registers
 * again. */
static void unregister(void *data) {
    struct thread *thread = data;
    throttle_thread_ends(thread);
    pthread_mutex_lock(&threads.lock);
    if (thread->registered) {
        add(&threads.ended, &thread->counters);
        thread->counters = (struct counters){0};
        if (thread->next)
            thread->next->previous = thread->previous;
        if (thread->previous)
            thread->previous->next = thread->next;
        else
            threads.first = thread->next;
        thread->registered = false;
    }
    pthread_mutex_unlock(&threads.lock);
    clear_marks(thread); /* so that the next call takes the slow path, which registers */
}

bool threads_start(void) {
    if (!threads.has_key)
        threads.has_key = pthread_key_create(&threads.key, unregister) == 0;
    return threads.has_key;
}

bool threads_register(struct thread *thread) {
    if (thread->registered)
        return true;
    /* The C library runs destructors at most PTHREAD_DESTRUCTOR_ITERATIONS times; past that no destructor would
     * unregister. */
    if (thread->registrations >= 3 || pthread_setspecific(threads.key, thread) != 0)
        return false;
    thread->registrations++;
    thread->main = syscall(SYS_gettid) == getpid();
    pthread_mutex_lock(&threads.lock);
    thread->left_gate_scan = 0;
    thread->previous = NULL;
    thread->next = threads.first;
    if (threads.first)
        threads.first->previous = thread;
    threads.first = thread;
    thread->registered = true;
    pthread_mutex_unlock(&threads.lock);
    return true;
}

void threads_drop_stream(CUstream stream) {
    pthread_mutex_lock(&threads.lock);
    for (struct thread *thread = threads.first; thread; thread = thread->next) {
        CUstream expected = stream;
        atomic_compare_exchange_strong(&thread->last_stream, &expected, NO_STREAM);
        expected = stream;
        atomic_compare_exchange_strong(&thread->marked[marked_slot(stream)], &expected, NO_STREAM);
    }
    pthread_mutex_unlock(&threads.lock);
}

void threads_clear_marks(void) {
    pthread_mutex_lock(&threads.lock);
    for (struct thread *thread = threads.first; thread; thread = thread->next)
        atomic_store(&thread->marked_word, NO_WORD);
    pthread_mutex_unlock(&threads.lock);
}

void threads_sum(struct counters *sum) {
    pthread_mutex_lock(&threads.lock);
    *sum = threads.ended;
    for (struct thread *thread = threads.first; thread; thread = thread->next)
        add(sum, &thread->counters);
    pthread_mutex_unlock(&threads.lock);
}

/* A depth of 0 after the membarrier is enough for each thread, because the thread cannot pass the closed gate any more.
 * A later depth above 0 is only a call on its way to waiting. */
bool all_threads_left_gate(uint32_t scan) {
    bool is_outside = true;
    pthread_mutex_lock(&threads.lock);
    for (struct thread *thread = threads.first; thread; thread = thread->next) {
        if (thread->left_gate_scan == scan)
            continue;
        if (depth_of(thread) == 0)
            thread->left_gate_scan = scan;
        else
            is_outside = false;
    }
    pthread_mutex_unlock(&threads.lock);
    return is_outside;
}

bool any_thread_in_gate(void) {
    bool inside = false;
    pthread_mutex_lock(&threads.lock);
    for (struct thread *thread = threads.first; thread && !inside; thread = thread->next)
        inside = depth_of(thread) != 0;
    pthread_mutex_unlock(&threads.lock);
    return inside;
}

void threads_after_fork(void) {
    pthread_mutex_init(&threads.lock, NULL);
    threads.first = NULL;
    threads.ended = (struct counters){0};
    this_thread.registered = false;
    this_thread.registrations = 0;
    this_thread.interrupts = 0;
    this_thread.interrupted_until = 0;
    this_thread.depth = 0;
    this_thread.counters = (struct counters){0};
    clear_marks(&this_thread);
    if (threads.has_key)
        pthread_setspecific(threads.key, NULL);
}
