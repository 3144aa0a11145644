/* Training steps and progress that the program reports by `jupyter_gpushare.step` and `jupyter_gpushare.progress`. Any
 * thread of the program writes here, also before the first CUDA call and while no page exists. The agent copies the
 * values to the page. */
#include "agent/agent.h"

#include <string.h>

#define MAX_CLOSING_NS (1 * NS_PER_MS) /* for which the end of a training step waits for the end of the turn */
#define TEXT_BYTES (GPUSHARE_TEXT_WORDS * sizeof(uint64_t))

static struct {
    uint64_t steps;
    uint64_t boundary_from; /* the end of a step wakes the agent from then on; NEVER: it does not */
    uint64_t boundary_ns;   /* when a step ended last, from that time on */
    struct gpushare_progress progress;
} training = {.boundary_from = NEVER};

/* The program is between two training steps. If the agent ends the turn for that, wait until the gate is closed, so
 * that the next step allocates no memory in this turn. */
EXPORT void gpushare_step_end(void) {
    uint64_t from = PAGE_LOAD(training.boundary_from), now = from == NEVER ? 0 : now_ns();
    uint32_t word = gate_word();
    if (now < from || !is_open(word))
        return;
    PAGE_STORE(training.boundary_ns, now);
    PAGE_STORE(training.boundary_from, NEVER);
    agent_wake();
    futex_wait(&shim.gate, word, MAX_CLOSING_NS);
}

/* Count one training step, which has ended. */
EXPORT void gpushare_step(void) {
    PAGE_ADD(training.steps, 1);
    gpushare_step_end();
}

/* Show that `done` of `total` parts are done; 0: the total is unknown. `text` is UTF-8; a longer text than
 * TEXT_BYTES is cut. A smaller number, or another total, begins another progress, whose pace counts from here. */
EXPORT void gpushare_progress(uint64_t done, uint64_t total, const char *text) {
    struct gpushare_progress *progress = &training.progress;
    uint64_t now = now_ns(), words[GPUSHARE_TEXT_WORDS] = {0};
    memcpy(words, text, strnlen(text, TEXT_BYTES));
    if (!PAGE_LOAD(progress->began_ns) || done < PAGE_LOAD(progress->done) || total != PAGE_LOAD(progress->total)) {
        PAGE_STORE(progress->first, done);
        PAGE_STORE(progress->began_ns, now);
    }
    PAGE_STORE(progress->done, done);
    PAGE_STORE(progress->total, total);
    for (int i = 0; i < GPUSHARE_TEXT_WORDS; i++)
        PAGE_STORE(progress->text[i], words[i]);
    PAGE_STORE(progress->changed_ns, now);
}

/* Show no progress any more. */
EXPORT void gpushare_progress_end(void) {
    PAGE_STORE(training.progress.began_ns, 0);
}

void training_publish(struct gpushare_report *report) {
    const uint64_t *from = (const uint64_t *)&training.progress;
    uint64_t *to = (uint64_t *)&report->progress;
    PAGE_STORE(report->training_steps, PAGE_LOAD(training.steps));
    for (unsigned i = 0; i < sizeof training.progress / sizeof *to; i++)
        PAGE_STORE(to[i], PAGE_LOAD(from[i]));
}

uint64_t training_steps(void) {
    return PAGE_LOAD(training.steps);
}

uint64_t training_boundary(void) {
    return PAGE_LOAD(training.boundary_ns);
}

void training_await_boundary(uint64_t from) {
    PAGE_STORE(training.boundary_from, from);
}

void training_after_fork(void) {
    training = (typeof(training)){.boundary_from = NEVER};
}
