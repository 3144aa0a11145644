/* Details for diagnostics (`jupyter gpushare doctor --pid`): requests in the page, and the answer. The answer lists the
 * memory mode, the allocations by kind, and the entry points that the program has looked up although the
 * shim has no entry for them. */
#include "channel/channel.h"
#include "coordinator/coordinator.h"
#include "memory/memory.h"

static uint32_t answered_seq; /* the request in the page that was answered last */

/* Return true if the page has a new request for details. */
bool details_requested(void) {
    uint32_t asked = PAGE_LOAD(the_page()->control.inspect_seq);
    bool due = asked != answered_seq && atomic_load(&shim.link) == LINK_CONNECTED;
    if (due)
        answered_seq = asked;
    return due;
}

void details_after_fork(void) {
    answered_seq = 0;
}

/* Write the totals of the ledger by kind, and the names of driver/unhooked.c. */
size_t message_details(char *line, size_t room) {
    static const char *const kinds[MEMORY_KINDS] = {
        [MEMORY_REDIRECTED] = "redirected", [MEMORY_MANAGED] = "managed", [MEMORY_DEVICE] = "device",
        [MEMORY_POOLED] = "pooled",         [MEMORY_HANDLE] = "physical", [MEMORY_ARRAY] = "array",
        [MEMORY_SWAPPED] = "swapped",       [MEMORY_GRAPH] = "graph",
    };
    struct message_writer writer = {line, room, 0};
    struct ledger_totals sum = {0};
    char names[MAX_UNHOOKED][MAX_UNHOOKED_BYTES];
    int count = unhooked_names(names);
    const char *separator = "";
    ledger_sum(&sum);
    sum.bytes[MEMORY_GRAPH] = graph_bytes();
    message_append(&writer, "{\"type\":\"details\",\"seq\":%u", answered_seq);
    message_append_text(&writer, "memory_mode", shim.mode->name);
    message_append(&writer, ",\"ledger\":[");
    for (int kind = 0; kind < MEMORY_KINDS; kind++) {
        if (!sum.number[kind] && !sum.bytes[kind])
            continue;
        message_append(&writer, "%s{\"number\":%llu,\"bytes\":%llu", separator, (unsigned long long)sum.number[kind],
                       (unsigned long long)sum.bytes[kind]);
        message_append_text(&writer, "kind", kinds[kind] ? kinds[kind] : "other");
        message_append(&writer, "}");
        separator = ",";
    }
    message_append(&writer, "],\"unhooked\":[");
    for (int i = 0; i < count; i++) {
        message_append(&writer, "%s", i ? "," : "");
        message_append_string(&writer, names[i]);
    }
    message_append(&writer, "]}\n");
    return writer.length < room ? writer.length : 0;
}
