/* Requests for room on a full device: the page has one at a time, which the coordinator answers by evicting other
 * clients' memory, or by refusing. */
#include "channel/channel.h"
#include "memory/transfers/transfers.h"

#define SHORTAGE_RETRY_NS (100 * NS_PER_MS) /* another thread may have taken the room that was made */

static struct shortage *current_shortage; /* the request in the page, under residency_lock; NULL: none */
static struct shortage turn_shortage;     /* the request of this turn's first call */
const struct gate_functions *the_gate;

void memory_set_gate(const struct gate_functions *gate) {
    the_gate = gate;
}

static uint32_t number_of(int device) {
    return device == ANY_DEVICE ? 0 : (uint32_t)device + 1;
}

/* The bytes come first: a reader that reads the number before the bytes gets those of this request or of a later
 * one. */
static void publish_shortage(struct shortage *shortage, struct room_needed needed) {
    struct gpushare_report *report = &the_page()->report;
    current_shortage = needed.bytes ? shortage : NULL;
    PAGE_STORE(report->unmet_device, number_of(needed.device));
    PAGE_STORE(report->unmet_bytes, needed.bytes);
    shortage->last_seq = __atomic_add_fetch(&report->unmet_request_seq, 1, __ATOMIC_RELEASE);
    outbox_post(OUTBOX_CHANGED);
}

static bool is_connected(void) {
    return atomic_load(&shim.link) == LINK_CONNECTED;
}

static bool is_answered(const struct shortage *shortage) {
    struct gpushare_control *control = &the_page()->control;
    return current_shortage == shortage &&
           PAGE_LOAD(control->refused_request_seq) - shortage->first_seq <= shortage->last_seq - shortage->first_seq;
}

/* Wait at the gate, so that all memory of the program is on the device at the next try. Memory that has no room even
 * then, after a refusal, never has room. */
CUresult shortage_next_turn(struct shortage *shortage) {
    shortage_end(shortage);
    pthread_mutex_unlock(&residency_lock);
    CUresult result = the_gate->wait_for_turn();
    pthread_mutex_lock(&residency_lock);
    *shortage = (struct shortage){.began = now_ns(), .waited_ns = shortage->waited_ns};
    return result;
}

CUresult shortage_wait(struct shortage *shortage, struct room_needed needed) {
    uint64_t now = now_ns();
    if (shortage->is_refused || (!shortage->began && !is_connected()))
        return CUDA_ERROR_OUT_OF_MEMORY;
    if (!shortage->began) {
        shortage->began = now;
        the_gate->begin_wait(now);
    }
    if (!current_shortage || current_shortage == &turn_shortage ||
        (current_shortage == shortage && now > shortage->posted_at + SHORTAGE_RETRY_NS)) {
        publish_shortage(shortage, needed);
        shortage->first_seq = shortage->posted_at ? shortage->first_seq : shortage->last_seq;
        shortage->posted_at = now;
    }
    /* The request may have been refused before memory left that the last try did not find, so one more try follows. */
    shortage->is_refused = is_answered(shortage) || (!is_connected() && shortage->waited_ns > MAX_SHORTAGE_NS);
    pthread_mutex_unlock(&residency_lock);
    if (!shortage->is_refused)
        futex_wait(&shim.gate, gate_word(), SHORTAGE_POLL_NS);
    shortage->waited_ns += now_ns() - now;
    bool interrupted = the_gate->is_interrupted();
    pthread_mutex_lock(&residency_lock);
    if (interrupted)
        log_message(LOG_INFO, "interrupted an allocation that waited for room on the device");
    return interrupted ? CUDA_ERROR_OPERATING_SYSTEM : CUDA_SUCCESS;
}

void shortage_end(struct shortage *shortage) {
    if (current_shortage == shortage)
        publish_shortage(shortage, (struct room_needed){ANY_DEVICE, 0});
}

void shortage_begin_for_turn(struct room_needed needed) {
    const struct gpushare_report *report = &the_page()->report;
    pthread_mutex_lock(&residency_lock);
    bool is_anew =
        PAGE_LOAD(report->unmet_bytes) != needed.bytes || PAGE_LOAD(report->unmet_device) != number_of(needed.device);
    if (is_connected() && (!current_shortage || current_shortage == &turn_shortage) && is_anew) {
        publish_shortage(&turn_shortage, needed);
        turn_shortage.first_seq = turn_shortage.last_seq;
    }
    pthread_mutex_unlock(&residency_lock);
}

/* The caller has waited for MAX_SHORTAGE_NS. */
bool shortage_is_refused_for_turn(void) {
    pthread_mutex_lock(&residency_lock);
    bool is_refused = is_answered(&turn_shortage) || !is_connected();
    pthread_mutex_unlock(&residency_lock);
    return is_refused;
}

void shortage_end_for_turn(void) {
    if (!PAGE_LOAD(the_page()->report.unmet_bytes))
        return;
    pthread_mutex_lock(&residency_lock);
    shortage_end(&turn_shortage);
    pthread_mutex_unlock(&residency_lock);
}

void shortage_after_fork(void) {
    current_shortage = NULL;
}
