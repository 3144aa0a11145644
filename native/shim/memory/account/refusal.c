/* The log of refused memory. A program may go on without an error: the allocators of frameworks free their caches and try
 * again up to three times, try smaller sizes, or try for ten seconds. All refusals with short pauses are one series, of
 * which the log has one line. The series is an error when the program tries no more, or has tried for long. */
#include "memory/account/account.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#define MAX_PAUSE_NS (3000 * NS_PER_MS)   /* between two refusals of a series */
#define MAX_SERIES_NS (15000 * NS_PER_MS) /* from the first refusal of a series to its error */

static struct {
    pthread_mutex_t lock;
    _Atomic uint64_t bytes; /* of the last refusal; 0: the program has recovered */
    uint64_t began, last;   /* the times of the first and the last refusal */
    bool is_reported;
    char text[800]; /* of the last refusal */
} series = {.lock = PTHREAD_MUTEX_INITIALIZER};

void refusal_log(uint64_t bytes, const char *format, ...) {
    char text[sizeof series.text];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    pthread_mutex_lock(&series.lock);
    uint64_t now = now_ns();
    bool is_first = !atomic_load(&series.bytes) || now > series.last + MAX_PAUSE_NS;
    if (is_first) {
        series.began = now;
        series.is_reported = false;
    }
    series.last = now;
    strcpy(series.text, text);
    atomic_store(&series.bytes, bytes);
    pthread_mutex_unlock(&series.lock);
    log_message(is_first ? LOG_INFO : LOG_DEBUG, "%s", text);
}

void refusal_recovered(uint64_t bytes) {
    uint64_t refused = atomic_load_explicit(&series.bytes, memory_order_relaxed);
    if (refused && bytes >= refused / 2)
        atomic_compare_exchange_strong(&series.bytes, &refused, 0);
}

static void report(uint64_t now) {
    char text[sizeof series.text];
    pthread_mutex_lock(&series.lock);
    bool is_due = atomic_load(&series.bytes) && !series.is_reported &&
                  (now > series.last + MAX_PAUSE_NS || now > series.began + MAX_SERIES_NS);
    series.is_reported = series.is_reported || is_due;
    strcpy(text, series.text);
    pthread_mutex_unlock(&series.lock);
    if (is_due)
        log_message(LOG_ERROR, "%s", text);
}

void refusal_poll(uint64_t now) {
    if (atomic_load_explicit(&series.bytes, memory_order_relaxed))
        report(now);
}

__attribute__((destructor)) static void report_at_end(void) {
    report(NEVER);
}

void refusal_after_fork(void) {
    pthread_mutex_init(&series.lock, NULL);
    atomic_store(&series.bytes, 0);
}
