/* The clock (CLOCK_MONOTONIC, ns), and waiting for a time or for a word of the process. */
#ifndef SIMCUDA_WAITING_H
#define SIMCUDA_WAITING_H

#include <stdint.h>

uint64_t sim_now(void);
void sim_sleep_until(uint64_t deadline_ns);
/* Sleep while the word is `seen`, for at most `timeout_ns` (0: without limit). */
void futex_wait(_Atomic uint32_t *word, uint32_t seen, uint64_t timeout_ns);
void futex_wake(_Atomic uint32_t *word);
/* The same for a word that several processes share. */
void futex_wait_shared(_Atomic uint32_t *word, uint32_t seen, uint64_t timeout_ns);
void futex_wake_shared(_Atomic uint32_t *word);

#endif
