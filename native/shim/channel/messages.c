/* The text of messages: JSON members and strings, and the hello. Of a received message, a process reads the type, the
 * devices, the size and the reason. */
#include "channel/channel.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define MAX_TEXT_CHARACTERS 1024 /* of a text field */

void message_append(struct message_writer *writer, const char *format, ...) {
    va_list arguments;
    size_t left = writer->length < writer->room ? writer->room - writer->length : 0;
    va_start(arguments, format);
    int length = vsnprintf(left ? writer->line + writer->length : NULL, left, format, arguments);
    va_end(arguments);
    writer->length += length > 0 ? (size_t)length : 0;
}

/* Return the bytes of the UTF-8 character at `text`, or 0 if there is none. */
static int utf8_length(const unsigned char *text) {
    int more = text[0] < 0x80   ? 0
               : text[0] < 0xc2 ? -1
               : text[0] < 0xe0 ? 1
               : text[0] < 0xf0 ? 2
               : text[0] < 0xf5 ? 3
                                : -1;
    for (int i = 1; i <= more; i++)
        if ((text[i] & 0xc0) != 0x80)
            return 0;
    if ((text[0] == 0xe0 && text[1] < 0xa0) || (text[0] == 0xed && text[1] > 0x9f) ||
        (text[0] == 0xf0 && text[1] < 0x90) || (text[0] == 0xf4 && text[1] > 0x8f))
        return 0;
    return more + 1;
}

/* Text from the environment may hold any bytes, but the line must be one JSON value. */
void message_append_string(struct message_writer *writer, const char *text) {
    const unsigned char *at = (const unsigned char *)(text);
    message_append(writer, "\"");
    for (int i = 0; *at && i < MAX_TEXT_CHARACTERS; i++) {
        int bytes = utf8_length(at);
        if (bytes == 0)
            message_append(writer, "?");
        else if (*at < 0x20 || *at == 0x7f)
            message_append(writer, "\\u%04x", *at);
        else if (*at == '"' || *at == '\\')
            message_append(writer, "\\%c", *at);
        else
            message_append(writer, "%.*s", bytes, (const char *)at);
        at += bytes ? bytes : 1;
    }
    message_append(writer, "\"");
}

void message_append_text(struct message_writer *writer, const char *name, const char *text) {
    message_append(writer, ",\"%s\":", name);
    message_append_string(writer, text);
}

size_t message_hello(char *line, size_t room) {
    struct message_writer writer = {line, room, 0};
    message_append(&writer, "{\"type\":\"hello\",\"wire\":1,\"pid\":%d", (int)getpid());
    message_append_text(&writer, "client", shim.client_id);
    message_append_text(&writer, "token", shim.token);
    message_append_text(&writer, "label", shim.environment.label);
    message_append_text(&writer, "quota", shim.environment.quota);
    message_append(&writer, ",\"devices\":[");
    for (int i = 0; i < shim.device_count; i++) {
        message_append(&writer, "%s{\"memory\":%llu", i ? "," : "", (unsigned long long)shim.devices[i].memory);
        message_append_text(&writer, "uuid", shim.devices[i].uuid);
        message_append_text(&writer, "name", shim.devices[i].name);
        message_append(&writer, "}");
    }
    message_append(&writer, "],\"simulated\":%s,\"hibernated\":%llu}\n", shim.simulated ? "true" : "false",
                   (unsigned long long)atomic_load(&shim.hibernated_bytes));
    return writer.length < room ? writer.length : 0;
}

/* Messages from the coordinator to processes have only one field of the name "type". */
bool message_has_type(const char *line, const char *type) {
    const char *at = strstr(line, "\"type\"");
    if (!at)
        return false;
    at += strlen("\"type\"");
    at += strspn(at, " \t");
    if (*at++ != ':')
        return false;
    at += strspn(at, " \t");
    size_t length = strlen(type);
    return *at == '"' && strncmp(at + 1, type, length) == 0 && at[1 + length] == '"';
}

int message_devices(const char *line, char devices[MAX_DEVICES][GPUSHARE_UUID_BYTES]) {
    static const char member[] = "\"devices\":[";
    const char *at = strstr(line, member);
    int count = 0;
    if (!at)
        return 0;
    for (at += sizeof member - 1; *at == '"'; at += *at == ',') {
        size_t bytes = strspn(++at, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_.:@-");
        if (!bytes || bytes >= GPUSHARE_UUID_BYTES || at[bytes] != '"' || count == MAX_DEVICES)
            return 0;
        memcpy(devices[count], at, bytes);
        devices[count++][bytes] = 0;
        at += bytes + 1;
    }
    return *at == ']' ? count : 0;
}

bool message_has(const char *line, const char *member) {
    return strstr(line, member) != NULL;
}

uint64_t message_bytes(const char *line) {
    static const char member[] = "\"bytes\":";
    const char *at = strstr(line, member);
    return at ? strtoull(at + sizeof member - 1, NULL, 10) : 0;
}

void message_reason(const char *line, char *reason, size_t room) {
    static const char member[] = "\"reason\":\"";
    const char *at = strstr(line, member);
    size_t length = 0;
    for (at = at ? at + sizeof member - 1 : ""; *at && *at != '"' && length + 1 < room; at++) {
        if (*at == '\\' && at[1])
            reason[length++] = *++at == '"' || *at == '\\' ? *at : '?';
        else
            reason[length++] = *at;
    }
    reason[length] = 0;
}
