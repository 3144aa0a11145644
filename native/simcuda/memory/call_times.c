/* Times of calls that map or pin memory. The calls of several threads overlap, because no measurement shows how the
 * driver runs them. */
#include "base/sim.h"
#include "base/waiting.h"
#include "memory/call_times.h"

#define MEASURED_BYTES (64ull << 20) /* the only size whose calls were measured */
#define SPIN_NS 100000               /* a sleep may end so much later than its deadline */

/* The driver works on a processor in these calls, so the end of the time is spent there as well. */
static void spend(double ns) {
    uint64_t end = sim_now() + (uint64_t)(ns * sim.params.time_scale);
    if (end > sim_now() + SPIN_NS)
        sim_sleep_until(end - SPIN_NS);
    while (sim_now() < end)
        ;
}

/* A call for less memory takes as long, and a call for more memory longer in proportion. */
void spend_vmm_call(int device, enum sim_vmm_call call, uint64_t bytes) {
    double ns = (double)sim.params.device[device].vmm_ns[call];
    if (ns > 0)
        spend(bytes > MEASURED_BYTES ? ns * ((double)bytes / (double)MEASURED_BYTES) : ns);
}

void spend_pin_call(int device, enum sim_pin_call call, uint64_t bytes) {
    double rate = sim.params.device[device].pin[call];
    if (rate > 0)
        spend((double)bytes / rate * 1e9);
}
