/* Contexts, streams, events, and the checks of captures. */
#ifndef SIMCUDA_CONTEXT_H
#define SIMCUDA_CONTEXT_H

#include "base/sim.h"

/* current.c */
CUresult context_current(struct sim_context **out); /* the calling thread's, if usable */
int context_is_valid(const struct sim_context *context);
void context_fail(struct sim_context *context, CUresult error);

/* Return the context whose memory and functions are those of this one. */
static inline struct sim_context *context_of_memory(struct sim_context *context) {
    return context->primary ? context->primary : context;
}

/* stream.c */
CUresult stream_open(struct sim_context *context, unsigned flags, int priority, struct sim_stream **out);
void stream_close(struct sim_stream *stream, int join);
void stream_let_go(struct sim_stream *stream);

/* thread.c */
struct sim_thread_more *thread_more(void); /* NULL: out of memory */
/* Count the entries of a context in the calling thread's stack. A green context is in the stack of one thread only. */
CUresult context_hold(struct sim_context *context);
void context_let_go(struct sim_context *context);
struct sim_stream *stream_own(struct sim_context *context);
CUresult stream_resolve(CUstream handle, CUstream fallback, struct sim_stream **out);

/* event.c; file -1: an event of this process only */
CUresult event_new(struct sim_context *context, unsigned flags, int file, CUevent *out);
CUresult event_new_interprocess(struct sim_context *context, unsigned flags, CUevent *out);
CUresult event_import(struct sim_context *context, int file, CUevent *out);
void event_complete(struct sim_event *event, uint64_t generation);
void event_await(struct sim_event *event, uint64_t generation);
void event_await_pinned(struct sim_event *event, uint64_t generation); /* leaves the pin */
void event_unpin(struct sim_event *event);

/* capture_check.c */
struct sim_capture *capture_find(uint64_t id); /* sim.capture_lock is held; NULL: the capture has ended */
CUresult capture_check_legacy(struct sim_context *context);
CUresult capture_check_unsafe(void);
CUresult capture_check_context(struct sim_context *context);
/* returns 900 and invalidates the capture if the stream is capturing */
CUresult capture_refuse(struct sim_stream *stream);
/* returns 907 and invalidates the capture if the event was last recorded in one */
CUresult capture_check_event(const struct sim_event *event);

#endif
