/* Reading of most environment variables, once, by a thread of the program at its first CUDA call. The agent must not
 * read them later, because the program may be changing the environment then. */
#include "agent/agent.h"
#include "memory/memory.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

/* The characters that the coordinator's messages allow. */
static bool is_identity(const char *text) {
    size_t length = strspn(text, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_.:@-");
    return length > 0 && length <= 128 && text[length] == 0;
}

static void read_identity(void) {
    const char *client = getenv("GPUSHARE_CLIENT"), *token = getenv("GPUSHARE_TOKEN"),
               *simulate = getenv("GPUSHARE_SIMULATE");
    if (client && *client && !is_identity(client))
        log_message(LOG_ERROR, "GPUSHARE_CLIENT is not a valid identity, so this process becomes a client of its own. "
                               "An identity has 1 to 128 "
                               "characters of A-Z, a-z, 0-9 and _.:@-");
    if (client && is_identity(client)) {
        snprintf(shim.client_id, sizeof shim.client_id, "%s", client);
        snprintf(shim.token, sizeof shim.token, "%s", token ? token : "");
    } else {
        unsigned char noise[8] = {0};
        if (getrandom(noise, sizeof noise, 0) < 0)
            memcpy(noise, &(uint64_t){now_ns()}, sizeof noise);
        int at = snprintf(shim.client_id, sizeof shim.client_id, "pid-%d-", (int)getpid());
        for (int i = 0; i < 8; i++)
            at += snprintf(shim.client_id + at, sizeof shim.client_id - (size_t)at, "%02x", noise[i]);
        shim.token[0] = 0;
    }
    shim.simulated = driver_is_simulated() || (simulate && strcmp(simulate, "1") == 0);
}

static void read_text(const char *name, char *text, size_t room) {
    const char *value = getenv(name);
    snprintf(text, room, "%s", value ? value : "");
}

/* Addresses at which coordinators listen, in the order of docs/reference/environment.md. */
static void read_sockets(void) {
    const char *given = getenv("GPUSHARE_SOCKET"), *runtime = getenv("XDG_RUNTIME_DIR");
    struct environment *environment = &shim.environment;
    size_t room = sizeof environment->sockets[0];
    if (given && *given) {
        environment->socket_count = 1;
        snprintf(environment->sockets[0], room, "%s", given);
        return;
    }
    environment->socket_count = 2;
    snprintf(environment->sockets[0], room, "/run/gpushare/coordinator.sock");
    environment->socket_in_tmp = !runtime || !*runtime;
    if (environment->socket_in_tmp)
        snprintf(environment->sockets[1], room, "/tmp/gpushare-%u/coordinator.sock", (unsigned)getuid());
    else
        snprintf(environment->sockets[1], room, "%s/gpushare/coordinator.sock", runtime);
}

/* An unknown mode is logged and replaced by the default, so that the program runs. */
const char *memory_mode_from_environment(void) {
    const char *mode = getenv("GPUSHARE_MEMORY_MODE");
    if (!mode || !*mode)
        return "unified";
    if (memory_mode_by_name(mode))
        return mode;
    log_message(LOG_ERROR,
                "GPUSHARE_MEMORY_MODE=%.40s is unknown: allowed are " MEMORY_MODE_NAMES ". The mode is unified now.",
                mode);
    return "unified";
}

/* Return a number of bytes that the launcher has prepared. */
static uint64_t read_bytes(const char *name) {
    const char *value = getenv(name);
    char *end;
    if (!value || !*value)
        return 0;
    unsigned long long bytes = strtoull(value, &end, 10);
    if (*end == 0 && *value >= '0' && *value <= '9')
        return bytes;
    log_message(LOG_ERROR, "%s=%.40s is not a number of bytes. The value is 0 now.", name, value);
    return 0;
}

void environment_read(void) {
    shim.environment.pinned = read_bytes("GPUSHARE_PINNED");
    read_identity();
    read_text("GPUSHARE_LABEL", shim.environment.label, sizeof shim.environment.label);
    read_text("GPUSHARE_QUOTA", shim.environment.quota, sizeof shim.environment.quota);
    read_sockets();
}
