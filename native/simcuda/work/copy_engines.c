/* The link between host and device. Transfers to the device wait only for each other, and so do transfers to the host.
 *
 * Unlike launches, transfers need no time slice: copy engines work during launches of any process. The time of a
 * transfer is reserved on the clock, part by part behind earlier reservations. So late wake-ups do not add up, and
 * transfers of several streams or processes share a direction. */
#include "base/waiting.h"
#include "machine/machine.h"
#include "work/execute.h"

#define PART (8ull << 20)
#define CREDIT_NS 200000 /* lateness between a stream's transfers for which the next one may make up */

void transfer_begin(struct transfer *t, struct sim_stream *stream, int device, uint64_t now) {
    t->stream = stream;
    t->device = device;
    t->at = stream->transferred && now < stream->transferred + CREDIT_NS ? stream->transferred : now;
}

void transfer_spend(struct transfer *t, uint64_t ns) {
    t->at += ns;
    if (t->at > sim_now() + SLACK_NS) {
        execute_leave_device(t->stream);
        sim_sleep_until(t->at);
    }
    t->stream->transferred = t->at;
}

void transfer_bytes(struct transfer *t, enum copy_direction direction, uint64_t bytes, double bandwidth) {
    const struct sim_device_params *device = &sim.params.device[t->device];
    double link = direction == COPY_TO_DEVICE ? device->h2d : device->d2h;
    if (bandwidth > link)
        bandwidth = link;
    while (bytes) {
        uint64_t part = bytes < PART ? bytes : PART;
        t->at = machine_transfer(sim.machine, t->device, direction, t->at, device_time_scaled((double)part / link));
        transfer_spend(t, device_time_scaled((double)part / bandwidth));
        bytes -= part;
    }
}
