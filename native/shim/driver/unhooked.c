/* Entry points of the driver that the program has looked up and that are not in the shim's tables, for diagnostics
 * (`jupyter gpushare doctor --pid`). Up to MAX_UNHOOKED names are kept, and each kept name is logged once. */
#include "driver/driver.h"

#include <stdio.h>
#include <string.h>

static struct {
    pthread_mutex_t lock;
    char names[MAX_UNHOOKED][MAX_UNHOOKED_BYTES];
    int count;
} unhooked = {.lock = PTHREAD_MUTEX_INITIALIZER};

static const char *const patterns[] = {
#define UNHOOKED(pattern, reason) pattern,
#include "driver/unhooked.def"
#undef UNHOOKED
};

static _Atomic bool newer_is_used;

/* `*` stands for any characters. */
static bool matches(const char *pattern, const char *text) {
    for (; *pattern != '*'; pattern++, text++)
        if (*pattern != *text)
            return false;
        else if (!*text)
            return true;
    for (;; text++)
        if (matches(pattern + 1, text))
            return true;
        else if (!*text)
            return false;
}

/* Remove the version and the per-thread suffix from the name. */
static void make_bare(char *name) {
    size_t length = strlen(name);
    if (length > 5 && (strcmp(name + length - 5, "_ptsz") == 0 || strcmp(name + length - 5, "_ptds") == 0))
        name[length -= 5] = 0;
    while (length > 0 && name[length - 1] >= '0' && name[length - 1] <= '9')
        length--;
    if (length > 2 && name[length] && name[length - 1] == 'v' && name[length - 2] == '_')
        name[length - 2] = 0;
}

static bool is_base_of_hook(const char *bare) {
    for (int i = 0; i < HOOK_COUNT; i++)
        if (driver_entries[i].is_hooked && strcmp(driver_entries[i].base, bare) == 0)
            return true;
    return false;
}

/* A form of a hooked function has a pattern only for its full name. */
static bool is_listed(const char *name, const char *bare) {
    for (size_t i = 0; i < sizeof patterns / sizeof *patterns; i++)
        if (matches(patterns[i], name) || matches(patterns[i], bare))
            return true;
    return false;
}

/* Return true if the name is new and has been recorded; only new names are logged. */
static bool record_name(const char *name) {
    bool known = false;
    pthread_mutex_lock(&unhooked.lock);
    for (int i = 0; i < unhooked.count; i++)
        known = known || strncmp(unhooked.names[i], name, MAX_UNHOOKED_BYTES - 1) == 0;
    bool is_new = !known && unhooked.count < MAX_UNHOOKED;
    if (is_new)
        snprintf(unhooked.names[unhooked.count++], MAX_UNHOOKED_BYTES, "%s", name);
    pthread_mutex_unlock(&unhooked.lock);
    return is_new;
}

/* `text` names the form. */
static void note_newer_form(const char *text) {
    atomic_store(&newer_is_used, true);
    if (record_name(text))
        log_message(
            LOG_ERROR,
            "The program uses a newer CUDA than this version of jupyter-gpushare knows: calls of %s are neither "
            "counted nor held back. In memory mode swap the memory of this process stays on the device from now on. "
            "Update jupyter-gpushare.",
            text);
}

void note_unhooked(const char *name) {
    char bare[MAX_UNHOOKED_BYTES];
    if (!is_driver_name(name))
        return;
    snprintf(bare, sizeof bare, "%s", name);
    make_bare(bare);
    bool is_hooked = is_base_of_hook(bare);
    if (is_listed(name, is_hooked ? name : bare))
        return;
    if (is_hooked && strcmp(name, bare) != 0)
        note_newer_form(name);
    else if (record_name(name))
        log_message(LOG_DEBUG, "pass %s unhooked: an entry point that is not in the tables of this shim", name);
}

void note_newer_version(const char *name, int version) {
    char text[MAX_UNHOOKED_BYTES];
    snprintf(text, sizeof text, "%.40s of CUDA %d.%d", name, version / 1000, version % 1000 / 10);
    note_newer_form(text);
}

bool newer_forms_are_used(void) {
    return atomic_load(&newer_is_used);
}

int unhooked_names(char names[MAX_UNHOOKED][MAX_UNHOOKED_BYTES]) {
    pthread_mutex_lock(&unhooked.lock);
    int count = unhooked.count;
    memcpy(names, unhooked.names, sizeof unhooked.names);
    pthread_mutex_unlock(&unhooked.lock);
    return count;
}

void unhooked_after_fork(void) {
    pthread_mutex_init(&unhooked.lock, NULL);
}
