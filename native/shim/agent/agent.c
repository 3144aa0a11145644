/* The agent thread of the shim. The thread sleeps until a line comes from the coordinator, a bell rings, another thread
 * wakes the agent, or the next poll of one of its parts is due. agent_step.c decides about turns; this file collects
 * the inputs of that rule and carries out its outputs. */
#include "agent/agent.h"
#include "channel/channel.h"
#include "coordinator/coordinator.h"
#include "devices/devices.h"
#include "gate/gate.h"
#include "memory/memory.h"
#include "memory/swap/host/host.h"

#include "agent/agent_step.h"

#include <poll.h>
#include <string.h>
#include <sys/prctl.h>
#include <time.h>
#include <unistd.h>

#define MAX_SLEEP_NS (1000 * NS_PER_MS)
#define PERMIT_REREAD_NS (1 * NS_PER_MS) /* after a permit that the coordinator was writing */
#define LIBRARIES_POLL_NS (1000 * NS_PER_MS)
#define MAX_SLOT_AGE_S 2 /* a sibling with an older slot has ended or is stopped */
/* after a handoff, because the coordinator would take the next program's processor */
#define REPORT_DELAY_NS (1 * NS_PER_MS)
#define MAX_ROUNDS 64 /* steps in a row without a poll of the socket */

_Static_assert(AGENT_GATE_CLOSED == GATE_CLOSED && AGENT_GATE_OPEN == GATE_OPEN && AGENT_GATE_STEP == GATE_STEP,
               "the rule and the gate word use the same states");

static struct {
    struct agent turns;
    struct agent_outputs out;      /* of the last step */
    struct gpushare_permit permit; /* the last whole permit of the latest welcomed connection */
    struct counters counters;
    uint64_t submitted_at, submissions; /* when the last sum of the counters changed, and that sum */
    uint64_t finished_of;               /* submissions that the last query covers; NEVER: none */
    uint64_t report_at;                 /* when to ring the coordinator; NEVER: no ring is due */
    uint64_t libraries_polled_at;
    uint32_t interrupts;
    uint32_t connections; /* welcomed connections that the rule has taken account of */
    int bell;             /* the bell that the agent polls, or -1 */
    bool bell_rang, shows_waiting;
    bool has_driver; /* false: the process ends */
} agent;

static bool may_call_driver(void) {
    return agent.has_driver && !is_hibernated();
}

static void count_submissions(uint64_t now) {
    struct gpushare_report *report = &the_page()->report;
    threads_sum(&agent.counters);
    uint64_t submissions = agent.counters.launches + agent.counters.copies + agent.counters.others;
    if (submissions != agent.submissions)
        agent.submitted_at = now;
    agent.submissions = submissions;
    PAGE_STORE(report->launches, agent.counters.launches);
    PAGE_STORE(report->blocks, agent.counters.blocks);
    PAGE_STORE(report->copies, agent.counters.copies);
    PAGE_STORE(report->bytes_copied, agent.counters.bytes_copied);
    PAGE_STORE(report->last_submission_ns, agent.submitted_at);
    training_publish(report);
    PAGE_STORE(report->sampled_ns, now);
}

/* --- inputs ------------------------------------------------------------------------------------------------------- */

/* The page of a connection that is not welcomed yet has no permit; the last permit stands until then. */
static void read_permit(uint64_t now, uint64_t *next) {
    const uint64_t *page = (const uint64_t *)&the_page()->control.permit;
    uint64_t words[GPUSHARE_PERMIT_WORDS + 1];
    for (int i = 0; i <= GPUSHARE_PERMIT_WORDS; i++)
        words[i] = PAGE_LOAD(page[i]);
    if (atomic_load(&shim.link) != LINK_CONNECTED || memcmp(&agent.permit, words, sizeof words) == 0)
        return;
    if (gpushare_check(words, GPUSHARE_PERMIT_WORDS) == words[GPUSHARE_PERMIT_WORDS])
        memcpy(&agent.permit, words, sizeof agent.permit);
    else
        *next = min_u64(*next, now + PERMIT_REREAD_NS);
}

static uint64_t all_devices(void) {
    uint32_t count = PAGE_LOAD(shim.client->device_count);
    return count ? ~0ull >> (64 - min_u64(count, MAX_DEVICES)) : 0;
}

static uint32_t poll_work(uint64_t now, uint64_t *next) {
    if (is_hibernated() && agent.turns.report.phase == GPUSHARE_CLOSING)
        return AGENT_QUIET; /* threads in the gate wait in the driver */
    if (agent.turns.report.phase == GPUSHARE_CLOSING)
        return may_call_driver() && drain_poll(now, next) ? AGENT_QUIET : AGENT_BUSY;
    if (!(agent.out.acts & AGENT_POLL))
        return AGENT_NOT_POLLED;
    if (!may_call_driver())
        return AGENT_BUSY;
    bool inside = any_thread_in_gate(), anew = agent.finished_of != agent.submissions;
    agent.finished_of = inside ? NEVER : agent.submissions;
    return !inside && streams_poll(anew) ? AGENT_QUIET : AGENT_BUSY;
}

/* The slot of a process that has ended may stay for ever where there is no coordinator. So the device's lock must
 * show that a process is in the turn. A process that drains writes to its slot at least once a second. */
static void poll_siblings(struct agent_inputs *in) {
    uint32_t own = account_own_slot();
    for (uint32_t i = 0; i < GPUSHARE_SLOTS; i++) {
        struct gpushare_slot *slot = &shim.client->slots[i];
        uint64_t turn = PAGE_LOAD(slot->turn), since = PAGE_LOAD(slot->since_ns);
        uint32_t phase = PAGE_LOAD(slot->phase), seen = PAGE_LOAD(slot->seen);
        if (i == own || in->now / (1000 * NS_PER_MS) > seen + MAX_SLOT_AGE_S ||
            (phase != GPUSHARE_CLOSING && phase != GPUSHARE_STEP) || turn < GPUSHARE_FIRST_TURN ||
            !locks_have_others(in->client_devices, turn))
            continue;
        in->closing_siblings++;
        if (!in->sibling_turn || since < in->sibling_since) {
            in->sibling_turn = turn;
            in->sibling_since = since;
        }
    }
}

static void collect(struct agent_inputs *in, uint32_t tried, uint64_t *next) {
    struct gpushare_control *control = &the_page()->control;
    uint32_t phase = agent.turns.report.phase;
    uint64_t now = now_ns();
    count_submissions(now);
    read_permit(now, next);
    *in = (struct agent_inputs){
        .now = now,
        .permit = agent.permit,
        .quantum_ns = PAGE_LOAD(control->quantum_ns),
        .idle_release_ns = PAGE_LOAD(control->idle_release_ns),
        .away_since = connection_away_since(),
        .client_turn = PAGE_LOAD(shim.client->turn),
        .client_began = PAGE_LOAD(shim.client->entered_ns),
        .client_devices = all_devices(),
        .own_devices = move_own_devices(agent.permit.devices),
        .submissions = agent.submissions,
        .training_steps = training_steps(),
        .boundary_ns = training_boundary(),
        .missing_bytes = PAGE_LOAD(the_page()->report.missing_bytes),
        .waiting = atomic_load(&shim.waiting),
        .tried = tried,
        .bell = agent.bell_rang,
    };
    agent.bell_rang = false;
    bool permit_is_over = move_permit_is_over(agent.permit.devices);
    if (phase == GPUSHARE_OUT ? permit_is_over : move_turn_is_over(agent.turns.devices))
        in->permit.flags &= ~(uint32_t)GPUSHARE_MAY;
    in->polled = poll_work(now, next);
    if (phase == GPUSHARE_LEAVING && !agent.turns.keeps && agent.has_driver) {
        bool is_for_move = move_is_in_turn(agent.turns.devices);
        in->moving = (!is_hibernated() && residency_is_evicting(is_for_move, now, next)) || move_is_due(next);
    }
    if (phase == GPUSHARE_OUT && in->waiting && in->away_since)
        in->client_in = locks_have_others(in->client_devices, in->client_turn);
    if (phase == GPUSHARE_CLOSING || phase == GPUSHARE_STEP || agent.turns.keeps ||
        (phase == GPUSHARE_OUT && in->waiting))
        poll_siblings(in);
}

/* --- outputs ------------------------------------------------------------------------------------------------------ */

static void report_turn(const struct agent_outputs *out, uint64_t now) {
    struct gpushare_report *report = &the_page()->report;
    uint64_t words[GPUSHARE_TURN_WORDS + 1], *page = (uint64_t *)&report->turn;
    memcpy(words, &out->report, sizeof words);
    account_set_in_turn(out->report.phase != GPUSHARE_OUT);
    for (int i = 0; i <= GPUSHARE_TURN_WORDS; i++)
        PAGE_STORE(page[i], words[i]);
    PAGE_STORE(report->idle, out->idle);
    PAGE_STORE(report->evicting, out->evicting);
    account_publish_turn(&out->report, now);
    atomic_store(&shim.phase, out->report.phase);
    atomic_store(&shim.contended, out->contended);
    if (out->without_coordinator && !atomic_load(&shim.without_coordinator))
        log_message(LOG_INFO, "take turns without a coordinator");
    atomic_store(&shim.without_coordinator, out->without_coordinator);
}

/* Runs before the threads that the gate lets in, so that none of them runs in a turn that the page does not show. The
 * gate stays closed in a turn for a move, which work would only delay, and in a hibernated process, whose calls the driver
 * would keep beyond the turn. */
static void set_gate(const struct agent_outputs *out, uint64_t now) {
    bool is_for_move = out->report.phase != GPUSHARE_OUT && move_keeps_gate_closed(agent.turns.devices);
    uint32_t gate = is_for_move || is_hibernated() ? GATE_CLOSED : out->gate;
    uint32_t word = gate | (out->opening << GATE_OPENING_SHIFT & ~GATE_THROTTLED);
    uint32_t before = without_throttle(gate_word());
    if (word == before)
        return;
    __atomic_store_n(&shim.gate, word, __ATOMIC_SEQ_CST);
    if (!is_open(word))
        return;
    agent.finished_of = NEVER;
    busy_time_gate_opened(now);
    log_message(LOG_DEBUG, "opened the gate%s, epoch %u", is_step(word) ? " for a step" : "", agent.turns.report.epoch);
}

/* Shown once a try was refused, so that a coordinator ends the turn of its client. */
static void show_waiting(const struct agent_outputs *out, uint32_t tried, uint64_t devices) {
    bool waits =
        !is_hibernated() && out->without_coordinator && out->report.phase == GPUSHARE_OUT && atomic_load(&shim.waiting);
    bool shows = waits && (agent.shows_waiting || tried == AGENT_REFUSED);
    if (shows != agent.shows_waiting)
        locks_show_waiting(devices, shows);
    agent.shows_waiting = shows;
}

static uint32_t enter(const struct agent_outputs *out) {
    bool is_first = out->without_coordinator && !locks_have_others(out->devices, out->turn);
    if (is_hibernated() && !move_request()->count)
        return AGENT_REFUSED; /* the process must return first */
    if (!locks_enter(out->turn, out->devices, out->acts & AGENT_JOIN))
        return AGENT_REFUSED;
    return is_first ? AGENT_ENTERED_FIRST : AGENT_ENTERED;
}

/* Return true if the turn passes to the next client or has just come from another client: a program should wake up
 * next. */
static bool is_handoff(const struct agent_outputs *out) {
    bool begins = (out->acts & AGENT_WAKE) && is_open(out->gate) && (agent.permit.flags & GPUSHARE_CONTENDED);
    return begins || (!is_open(out->gate) && (agent.permit.flags & GPUSHARE_RELIEVED));
}

static void ring_coordinator(uint64_t at, uint64_t now) {
    if (now >= at) {
        outbox_put(OUTBOX_CHANGED);
        connection_flush(now_ns());
    }
    agent.report_at = now >= at ? NEVER : min_u64(agent.report_at, at);
}

/* Carry out the outputs in their order; return what became of ENTER. */
static uint32_t carry_out(const struct agent_outputs *out, uint64_t now) {
    uint32_t acts = out->acts;
    if (acts & AGENT_LEAVE)
        locks_leave();
    if (acts & AGENT_BEGIN)
        PAGE_STORE(shim.client->entered_ns, now);
    report_turn(out, now);
    if (acts & AGENT_RING)
        locks_ring(out->devices);
    set_gate(out, now);
    if (acts & AGENT_CLOSE && !is_hibernated())
        drain_begin();
    if (acts & AGENT_WAKE)
        futex_wake_all(&shim.gate);
    if (acts & AGENT_DRAINED && !is_hibernated()) {
        drain_done(out->report.closed_ns);
        log_message(LOG_DEBUG, "drained, epoch %u, %.3f ms", agent.turns.report.epoch,
                    (double)PAGE_LOAD(the_page()->report.drain_ns) / NS_PER_MS);
    }
    if (acts & AGENT_CHANGED)
        ring_coordinator(is_handoff(out) ? now + REPORT_DELAY_NS : now, now);
    return acts & AGENT_ENTER ? enter(out) : AGENT_NOT_TRIED;
}

static uint64_t take_turns(void) {
    struct agent_inputs in;
    uint32_t tried = AGENT_NOT_TRIED;
    uint64_t next;
    int rounds = 0;
    do {
        next = NEVER;
        client_page_poll();
        move_set_waiting();
        collect(&in, tried, &next);
        agent_step(&agent.turns, &in, &agent.out);
        show_waiting(&agent.out, tried, in.client_devices);
        tried = carry_out(&agent.out, in.now);
        next = min_u64(next, agent.out.wake_at);
    } while (!move_has_ended() && (tried || (next <= in.now && ++rounds < MAX_ROUNDS)));
    training_await_boundary(agent.out.boundary_from);
    agent.bell = agent.out.listen ? locks_bell(agent.out.devices) : -1;
    return next;
}

/* --- the loop ----------------------------------------------------------------------------------------------------- */

/* The permits of the previous connection end. */
static void begin_connection(void) {
    agent.connections = connection_count();
    agent.permit = (struct gpushare_permit){0};
    agent_new_connection(&agent.turns);
}

/* A daemon has closed all descriptors, perhaps during a turn. Files of the program may have the numbers by now, so
 * the shim leaves those alone. A coordinator gets a new hello from this process. */
static bool reopen_descriptors(void) {
    log_message(LOG_INFO, "reopen descriptors that the program has closed");
    connection_reopen("the program has closed the shim's descriptors");
    fds_close_all();
    shim.page_fd = -1; /* the page itself is still mapped; hello makes another descriptor */
    if (locks_reopen() && client_page_replace() && wakeup_open())
        return true;
    shim_disable("the program has closed the shim's descriptors, and the shim could not open new ones");
    return false;
}

/* The coordinator gets a new hello from this process, which names its new device. The last permit is for the devices of
 * the old client page. */
static void connect_after_move(void) {
    move_forget();
    agent.permit = (struct gpushare_permit){0};
    client_page_renew();
    connection_flush(now_ns());
    connection_reopen("this process has moved to another device");
}

static void wake_interrupted(void) {
    uint32_t interrupts = PAGE_LOAD(the_page()->control.interrupt_seq);
    if (interrupts != agent.interrupts)
        futex_wake_all(&shim.gate);
    agent.interrupts = interrupts;
}

/* Poll every part once; return the time of the next poll. */
static uint64_t poll_all(void) {
    uint64_t now = now_ns();
    bool anew = !all_fds_are_ours();
    if (anew && !reopen_descriptors())
        return NEVER;
    if (locks_poll(now) || anew)
        agent.shows_waiting = false; /* the record lock went with the files */
    uint64_t next = connection_poll(now);
    if (agent.connections != connection_count())
        begin_connection();
    if (!is_hibernated() && details_requested())
        outbox_put(OUTBOX_DETAILS);
    connection_flush(now_ns());
    wake_interrupted();
    if (agent.has_driver)
        move_poll();
    uint64_t watch = hibernation_poll(now);
    if (now >= agent.libraries_polled_at + LIBRARIES_POLL_NS) {
        agent.libraries_polled_at = now;
        bypassing_libraries();
    }
    next = min_u64(min_u64(next, watch), take_turns());
    if (move_has_ended()) {
        connect_after_move();
        next = 0;
    }
    if (agent.report_at != NEVER)
        ring_coordinator(agent.report_at, now_ns());
    next = min_u64(next, agent.report_at);
    uint32_t word = gate_word();
    now = now_ns();
    if (is_open(word))
        throttle_update(word);
    if (!may_call_driver())
        return next;
    if (!is_running())
        next = min_u64(next, residency_poll(now));
    if (is_open(word))
        next = min_u64(next, min_u64(busy_time_sample(now), residency_adjust(now)));
    refusal_poll(now);
    next = min_u64(next, host_buffers_poll(now));
    return min_u64(next, deferred_poll(now));
}

static void sleep_until(uint64_t next) {
    bool wants_to_write;
    int file = connection_fd(&wants_to_write);
    uint64_t now = now_ns(),
             /* bounded, because the program may close the sockets */
        left = min_u64(next > now ? next - now : 0, MAX_SLEEP_NS);
    struct timespec time = {(time_t)(left / (1000 * NS_PER_MS)), (long)(left % (1000 * NS_PER_MS))};
    struct pollfd files[3] = {
        {.fd = shim.wake_receiver, .events = POLLIN},
        {.fd = file, .events = (short)(POLLIN | (wants_to_write ? POLLOUT : 0))},
        {.fd = agent.bell, .events = POLLIN},
    };
    ppoll(files, 3, &time, NULL);
    if (files[0].revents & POLLIN)
        wakeup_clear();
    if (files[2].revents & POLLIN)
        agent.bell_rang = locks_drain_bell(agent.bell);
}

static void *run(void *unused) {
    RELAXED_MODE;
    pthread_setname_np(pthread_self(), "gpushare");
    prctl(PR_SET_TIMERSLACK, 1ul); /* so that short pauses during a drain are short */
    while (atomic_load(&shim.state) != SHIM_DISABLED) {
        agent.has_driver = driver_calls_begin();
        uint64_t next = poll_all();
        driver_calls_end();
        sleep_until(next);
    }
    locks_close();
    return unused;
}

bool agent_start(void) {
    agent = (typeof(agent)){.bell = -1, .report_at = NEVER};
    return start_helper_thread(run);
}

void agent_after_fork(void) {
    agent = (typeof(agent)){.bell = -1, .report_at = NEVER};
}
