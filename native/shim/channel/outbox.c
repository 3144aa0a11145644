/* The messages that wait to be sent. Messages are levels: a message that is posted twice is sent once. */
#include "channel/channel.h"

static _Atomic unsigned pending; /* OUTBOX_… */

void outbox_post(unsigned messages) {
    outbox_put(messages);
    agent_wake();
}

void outbox_put(unsigned messages) {
    atomic_fetch_or(&pending, messages);
}

unsigned outbox_take(void) {
    return atomic_exchange(&pending, 0);
}

bool outbox_is_empty(void) {
    return atomic_load(&pending) == 0;
}
