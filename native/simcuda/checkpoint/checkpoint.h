/* Checkpoints of this process, which any process of the user may request. */
#ifndef SIMCUDA_CHECKPOINT_H
#define SIMCUDA_CHECKPOINT_H

#include "base/sim.h"
#include "machine/machine.h"

enum { CHECKPOINT_LOCK = 1, CHECKPOINT_SAVE, CHECKPOINT_RESTORE, CHECKPOINT_UNLOCK };

/* service.c: start the thread that answers requests. The driver works without the thread, except for checkpoints. */
void checkpoint_start(void);

/* device_map.c: read the pairs of a request. to[place]: the new place of what lies on the device `place` of the machine,
 * for each of them; a permutation. */
CUresult device_map_read(const struct machine_request *request, int to[SIM_MAX_DEVICES]);
/* Move the devices of the process; all calls wait and no work is left. */
void device_map_apply(const int to[SIM_MAX_DEVICES]);

/* quiet.c: return whether all submitted work is complete and the workers have left the device. */
int work_is_quiet(void);

#endif
