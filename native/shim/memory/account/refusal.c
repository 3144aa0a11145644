/* The log of refused memory. A program may go on without an error: caching allocators free their caches and try
 * again. So a refusal is an error only when the program is refused the same size again, asks for no more, or ends. */
#include "memory/account/account.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#define RECOVERY_NS (3000 * NS_PER_MS) /* a program that tries again does so within this time */

static struct {
    pthread_mutex_t lock;
    _Atomic uint64_t bytes; /* 0: nothing is refused */
    uint64_t at;            /* the time of the first refusal of this size */
    bool is_reported;
    char text[800];
} last = {.lock = PTHREAD_MUTEX_INITIALIZER};

void refusal_log(uint64_t bytes, const char *format, ...) {
    char text[sizeof last.text];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    pthread_mutex_lock(&last.lock);
    bool is_second = atomic_load(&last.bytes) == bytes, is_error = is_second && !last.is_reported;
    if (!is_second) {
        last.at = now_ns();
        last.is_reported = false;
    }
    last.is_reported = last.is_reported || is_error;
    strcpy(last.text, text);
    atomic_store(&last.bytes, bytes);
    pthread_mutex_unlock(&last.lock);
    log_message(is_error ? LOG_ERROR : LOG_INFO, "%s", text);
}

void refusal_recovered(uint64_t bytes) {
    uint64_t refused = atomic_load_explicit(&last.bytes, memory_order_relaxed);
    if (refused && bytes >= refused)
        atomic_compare_exchange_strong(&last.bytes, &refused, 0);
}

static void report(uint64_t before) {
    char text[sizeof last.text];
    pthread_mutex_lock(&last.lock);
    bool is_due = atomic_load(&last.bytes) && !last.is_reported && last.at <= before;
    last.is_reported = last.is_reported || is_due;
    strcpy(text, last.text);
    pthread_mutex_unlock(&last.lock);
    if (is_due)
        log_message(LOG_ERROR, "%s", text);
}

void refusal_poll(uint64_t now) {
    if (atomic_load_explicit(&last.bytes, memory_order_relaxed) && now > RECOVERY_NS)
        report(now - RECOVERY_NS);
}

__attribute__((destructor)) static void report_at_end(void) {
    report(NEVER);
}

void refusal_after_fork(void) {
    pthread_mutex_init(&last.lock, NULL);
    atomic_store(&last.bytes, 0);
}
