/* The coordinator's request to move this process to another device, to hibernate it or to let it return, and the answer
 * of the process. A hibernation or a return has the process's own device. The connection writes the request, and the
 * agent carries it out (devices/move.c). A request ends with its connection. */
#include "channel/channel.h"
#include "coordinator/coordinator.h"

#include <stdio.h>
#include <string.h>

static struct move_request request;
static struct {
    char device[GPUSHARE_UUID_BYTES], error[512]; /* error: empty if the process has moved */
} answer;                                         /* to the last request */

const struct move_request *move_request(void) {
    return &request;
}

void move_request_withdraw(void) {
    request.count = 0;
    request.may_start = false;
}

void move_request_restart(void) {
    request.may_start = false;
}

void move_request_read(const char *line) {
    if (message_has_type(line, "move")) {
        move_request_withdraw();
        request.count = message_devices(line, request.devices);
        request.hibernates = message_has(line, "\"hibernates\":true");
    } else if (message_has_type(line, "move_start")) {
        request.may_start = request.count != 0;
        request.bytes = message_bytes(line);
    } else if (message_has_type(line, "move_cancel")) {
        move_request_withdraw();
    }
}

void move_request_answer(const char *error) {
    memcpy(answer.device, request.devices[0], sizeof answer.device);
    snprintf(answer.error, sizeof answer.error, "%s", error ? error : "");
    move_request_withdraw();
    outbox_put(OUTBOX_MOVED);
}

size_t message_moved(char *line, size_t room) {
    struct message_writer writer = {line, room, 0};
    message_append(&writer, "{\"type\":\"moved\"");
    message_append_text(&writer, "device", answer.device);
    message_append_text(&writer, "error", answer.error);
    message_append(&writer, ",\"hibernated\":%llu}\n", (unsigned long long)atomic_load(&shim.hibernated_bytes));
    return writer.length < room ? writer.length : 0;
}
