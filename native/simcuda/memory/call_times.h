/* Time that calls for memory take of the thread that calls. */
#ifndef SIMCUDA_CALL_TIMES_H
#define SIMCUDA_CALL_TIMES_H

#include "base/params.h"

/* No lock is held. */
void spend_vmm_call(int device, enum sim_vmm_call call, uint64_t bytes);
void spend_pin_call(int device, enum sim_pin_call call, uint64_t bytes);

#endif
