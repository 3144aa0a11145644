/* The queues: a ring of commands per stream, and a thread that executes them in order.
 *
 * A submitter puts a command at the tail under the stream's lock; the worker takes from the head without it. The
 * legacy stream and the blocking streams of a context keep an order by tickets, which they draw at submission. A
 * command of the legacy stream waits until no blocking stream has an older one left, and the other way round. */
#define _GNU_SOURCE
#include <signal.h>
#include <stdlib.h>
#include <sys/prctl.h>

#include "base/sim.h"
#include "base/waiting.h"
#include "context/context.h"
#include "graph/graph.h"
#include "work/engine.h"
#include "work/execute.h"

#define ROOM 64   /* places that must be free before a blocked submitter continues */
#define SPINS 200 /* polls of an empty queue before the worker leaves the device and sleeps: a few microseconds */

static void pause_briefly(void) {
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#endif
}

/* Return the ticket of the oldest incomplete command, or UINT64_MAX. */
static uint64_t oldest_ticket(struct sim_stream *stream) {
    uint64_t ticket = UINT64_MAX;
    if (atomic_load(&stream->head) == atomic_load(&stream->tail))
        return ticket;
    pthread_mutex_lock(&stream->lock);
    uint64_t head = atomic_load(&stream->head);
    if (head != atomic_load(&stream->tail))
        ticket = stream->ring[head % SIM_RING].ticket;
    pthread_mutex_unlock(&stream->lock);
    return ticket;
}

/* Return a stream that must advance before a command with this ticket may start. *seen: its progress at that moment. */
static struct sim_stream *find_blocker(struct sim_stream *stream, uint64_t ticket, uint64_t *seen) {
    struct sim_context *context = stream->context;
    struct sim_stream *found = NULL;
    if (!stream->is_legacy) {
        *seen = atomic_load(&context->legacy->head);
        return oldest_ticket(context->legacy) < ticket ? context->legacy : NULL;
    }
    pthread_mutex_lock(&context->lock);
    for (struct sim_stream *other = context->streams; other && !found; other = other->next) {
        *seen = atomic_load(&other->head);
        if (other->is_blocking && oldest_ticket(other) < ticket)
            found = other;
    }
    pthread_mutex_unlock(&context->lock);
    return found;
}

static void await_position(struct sim_stream *stream, uint64_t position) {
    for (;;) {
        uint32_t seen = atomic_load(&stream->done);
        if (atomic_load(&stream->head) >= position)
            return;
        uint64_t wanted = atomic_load(&stream->wake_at);
        while (position < wanted && !atomic_compare_exchange_weak(&stream->wake_at, &wanted, position))
            ;
        if (atomic_load(&stream->head) >= position)
            return;
        futex_wait(&stream->done, seen, 0);
    }
}

static void await_order(struct sim_stream *stream, const struct sim_command *command) {
    uint64_t seen;
    struct sim_stream *blocker;
    if (!stream->is_legacy && !stream->is_blocking)
        return;
    while ((blocker = find_blocker(stream, command->ticket, &seen))) {
        execute_leave_device(stream);
        await_position(blocker, seen + 1);
    }
}

/* Return 0 when the stream is closed and empty. */
static int await_command(struct sim_stream *stream, uint64_t head) {
    for (int i = 0; i < SPINS; i++) {
        if (atomic_load_explicit(&stream->tail, memory_order_acquire) != head)
            return 1;
        pause_briefly();
    }
    execute_leave_device(stream);
    stream->transferred = 0;
    for (;;) {
        atomic_store(&stream->sleeping, 1);
        if (atomic_load(&stream->tail) != head)
            break;
        if (stream->closing)
            return 0;
        futex_wait(&stream->sleeping, 1, 0);
    }
    atomic_store_explicit(&stream->sleeping, 0, memory_order_relaxed);
    return 1;
}

/* `done` changes after `wake_at` is cleared: a thread that asks for a wake-up in between finds the change and checks
 * again. */
static void wake(struct sim_stream *stream) {
    atomic_store(&stream->wake_at, UINT64_MAX);
    atomic_fetch_add(&stream->done, 1);
    futex_wake(&stream->done);
}

static void *work(void *argument) {
    struct sim_stream *stream = argument;
    prctl(PR_SET_NAME, "simcuda", 0, 0, 0);
    prctl(PR_SET_TIMERSLACK, 1, 0, 0, 0);
    for (uint64_t head = atomic_load(&stream->head); await_command(stream, head);) {
        struct sim_command *command = &stream->ring[head % SIM_RING];
        await_order(stream, command);
        execute(stream, command);
        atomic_store(&stream->head, ++head);
        if (head >= atomic_load(&stream->wake_at))
            wake(stream);
    }
    if (stream->closing == CLOSING_ALONE)
        stream_let_go(stream);
    return NULL;
}

/* Workers take no signals, because signals belong to the program's own threads. */
static CUresult start(struct sim_stream *stream) {
    sigset_t all, before;
    if (!stream->ring && !(stream->ring = calloc(SIM_RING, sizeof *stream->ring)))
        return CUDA_ERROR_OUT_OF_MEMORY;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int failed = pthread_create(&stream->worker, NULL, work, stream);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    stream->started = !failed;
    return failed ? CUDA_ERROR_OPERATING_SYSTEM : CUDA_SUCCESS;
}

CUresult engine_begin(struct sim_stream *stream, struct sim_command **out) {
    for (;;) {
        CUresult result;
        if (stream->is_legacy && atomic_load_explicit(&stream->context->blocking_captures, memory_order_relaxed) &&
            (result = capture_check_legacy(stream->context)))
            return result;
        if (atomic_load_explicit(&stream->capture, memory_order_relaxed)) {
            if ((result = capture_append(stream, out)) || *out)
                return result;
            continue; /* the capture has just ended */
        }
        pthread_mutex_lock(&stream->lock);
        uint64_t tail = atomic_load_explicit(&stream->tail, memory_order_relaxed);
        if (__builtin_expect(!stream->started, 0) &&
            (result = stream->closing ? CUDA_ERROR_INVALID_HANDLE : start(stream))) {
            pthread_mutex_unlock(&stream->lock);
            return result;
        }
        if (__builtin_expect(atomic_load_explicit(&stream->capture, memory_order_relaxed) != NULL, 0)) {
            pthread_mutex_unlock(&stream->lock);
            continue;
        }
        if (__builtin_expect(tail - atomic_load_explicit(&stream->head, memory_order_acquire) >= SIM_RING, 0)) {
            pthread_mutex_unlock(&stream->lock);
            engine_wait(stream, tail - SIM_RING + ROOM);
            continue;
        }
        /* The call began before the process was locked. After this lock of the stream no more work comes. */
        if (__builtin_expect(atomic_load_explicit(&sim.state, memory_order_relaxed) == SIM_LOCKED, 0)) {
            pthread_mutex_unlock(&stream->lock);
            if ((result = sim_ready()))
                return result;
            continue;
        }
        *out = &stream->ring[tail % SIM_RING];
        return CUDA_SUCCESS;
    }
}

CUresult engine_commit(struct sim_stream *stream) {
    if (__builtin_expect(atomic_load_explicit(&stream->capture, memory_order_relaxed) != NULL, 0)) {
        pthread_mutex_unlock(&sim.capture_lock);
        return CUDA_SUCCESS;
    }
    uint64_t tail = atomic_load_explicit(&stream->tail, memory_order_relaxed);
    if (stream->is_legacy || stream->is_blocking)
        stream->ring[tail % SIM_RING].ticket = atomic_fetch_add(&stream->context->order, 1);
    /* sequentially consistent, because the check whether the worker sleeps follows */
    atomic_store(&stream->tail, tail + 1);
    pthread_mutex_unlock(&stream->lock);
    if (atomic_load(&stream->sleeping) && atomic_exchange(&stream->sleeping, 0))
        futex_wake(&stream->sleeping);
    return CUDA_SUCCESS;
}

void engine_wait(struct sim_stream *stream, uint64_t position) {
    int is_program = !sim_thread.in_callback;
    atomic_fetch_add(&sim.waits, is_program);
    await_position(stream, position);
    atomic_fetch_sub(&sim.waits, is_program);
}

/* Wait for what a command submitted now to this stream would wait for. Return the context's error. */
CUresult engine_synchronize(struct sim_stream *stream) {
    if (stream->is_legacy) {
        struct sim_context *context = stream->context;
        uint64_t ticket = atomic_load(&context->order);
        uint64_t seen;
        struct sim_stream *blocker;
        while ((blocker = find_blocker(stream, ticket, &seen)))
            engine_wait(blocker, seen + 1);
    }
    engine_wait(stream, atomic_load(&stream->tail));
    return atomic_load(&stream->context->error);
}

int engine_is_idle(struct sim_stream *stream) {
    uint64_t seen;
    if (atomic_load(&stream->head) != atomic_load(&stream->tail))
        return 0;
    return !stream->is_legacy || !find_blocker(stream, UINT64_MAX - 1, &seen);
}
