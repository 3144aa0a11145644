/* A pair of sockets by which any thread wakes the agent.
 *
 * The two ends are sockets because `send` and `recv` fail on everything else. Should the program close all descriptors
 * just after the check of owned_fds.c, a file or page that takes the number over is not written to. An event
 * descriptor has no identity by which to check it. */
#include "base/base.h"

#include <sys/socket.h>

bool wakeup_open(void) {
    int ends[2];
    if (socketpair(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends) != 0)
        return false;
    shim.wake_receiver = fd_own(ends[0]);
    shim.wake_sender = fd_own(ends[1]);
    return true;
}

void agent_wake(void) {
    if (fd_is_ours(shim.wake_sender) && send(shim.wake_sender, "", 1, MSG_DONTWAIT | MSG_NOSIGNAL) < 0)
        return; /* full: the agent is awake already */
}

void wakeup_clear(void) {
    char byte[1];
    while (fd_is_ours(shim.wake_receiver) && recv(shim.wake_receiver, byte, sizeof byte, MSG_DONTWAIT) > 0)
        ;
}
