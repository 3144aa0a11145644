/* The choice of the devices at the first CUDA call. Placement has chosen devices before the program's start, by the work
 * at that time. The coordinator chooses again when the process is about to initialise CUDA, and the shim names the
 * devices to the driver, which reads CUDA_VISIBLE_DEVICES when it is initialised. */
#include "agent/agent.h"
#include "channel/channel.h"
#include "coordinator/coordinator.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#define MAX_ANSWER_BYTES 8192 /* MAX_DEVICES devices and more */

/* Send the request and return whether the whole answer, a line, has come in time. */
static bool ask(int file, char *answer, size_t room) {
    char line[4096];
    struct message_writer writer = {line, sizeof line, 0};
    message_append(&writer, "{\"type\":\"bind\",\"id\":1");
    message_append_text(&writer, "client", shim.client_id);
    message_append_text(&writer, "token", shim.token);
    message_append(&writer, "}\n");
    if (writer.length >= sizeof line || send(file, line, writer.length, MSG_NOSIGNAL) != (ssize_t)writer.length)
        return false;
    size_t length = 0;
    for (uint64_t now = now_ns(), end = now + ANSWER_NS; now < end && length < room - 1; now = now_ns()) {
        struct pollfd ready = {.fd = file, .events = POLLIN};
        if (poll(&ready, 1, (int)((end - now) / NS_PER_MS) + 1) <= 0)
            continue;
        ssize_t bytes = recv(file, answer + length, room - 1 - length, 0);
        if (bytes == 0 || (bytes < 0 && errno != EAGAIN && errno != EINTR))
            return false;
        length += bytes > 0 ? (size_t)bytes : 0;
        answer[length] = 0;
        if (strchr(answer, '\n'))
            return true;
    }
    return false;
}

/* Write the devices of the answer in the form of CUDA_VISIBLE_DEVICES. False: the answer has none. */
static bool read_devices(const char *answer, char *devices, size_t room) {
    char uuids[MAX_DEVICES][GPUSHARE_UUID_BYTES];
    int count = message_devices(answer, uuids), length = 0;
    for (int i = 0; i < count; i++)
        length += snprintf(devices + length, room - (size_t)length, "%s%s", i ? "," : "", uuids[i]);
    return count > 0;
}

void bind_devices(void) {
    const char *chosen = getenv("GPUSHARE_DEVICES"), *visible = getenv("CUDA_VISIBLE_DEVICES");
    const char *disable = getenv("GPUSHARE_DISABLE");
    char answer[MAX_ANSWER_BYTES], devices[MAX_ANSWER_BYTES];
    /* The program or its user has chosen other devices than placement. */
    if (!chosen || !visible || strcmp(chosen, visible) != 0 || (disable && strcmp(disable, "1") == 0))
        return;
    log_start();
    environment_read();
    int file = connection_open();
    bool answered = file >= 0 && ask(file, answer, sizeof answer) && read_devices(answer, devices, sizeof devices);
    if (file >= 0)
        fd_close(file);
    if (!answered) {
        log_message(LOG_INFO, "keep the devices of the program's start, because the coordinator has named no others");
        return;
    }
    setenv("CUDA_VISIBLE_DEVICES", devices, 1);
    setenv("GPUSHARE_DEVICES", devices, 1);
    log_message(LOG_INFO, "use the devices %s", devices);
}
