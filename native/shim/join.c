/* A process joins its client: the client's first process made the client page, and the coordinator passes its descriptor to
 * each later one. A process in a turn takes it afterwards, for the numbers of devices and slots mean others there. All by
 * the agent. */
#include "shim.h"

#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>

static struct gpushare_client *coming; /* NULL: none */
static int coming_file;

static bool is_client_page(int file) {
    struct stat status;
    int seals = fcntl(file, F_GET_SEALS);
    return fstat(file, &status) == 0 && status.st_size == GPUSHARE_CLIENT_BYTES && seals >= 0 &&
           (seals & F_SEAL_SHRINK);
}

void join_forget(void) {
    if (!coming)
        return;
    munmap(coming, GPUSHARE_CLIENT_BYTES);
    file_close(coming_file);
    coming = NULL;
}

uint64_t join_own_devices(const struct gpushare_client *client) {
    uint64_t bits = 0;
    uint32_t count = (uint32_t)least(GET(client->device_count), GPUSHARE_DEVICES);
    for (int i = 0; i < shim.device_count; i++) {
        uint32_t at = 0;
        while (at < count && strncmp(client->devices[at], shim.devices[i].uuid, GPUSHARE_UUID_BYTES) != 0)
            at++;
        if (at == count)
            return 0;
        bits |= 1ull << at;
    }
    return bits;
}

int join_file(void) {
    return coming ? coming_file : shim.client_file;
}

bool join_client(const int *files, int count) {
    struct gpushare_client *client = count == 1 && is_client_page(files[0]) ? map_client(files[0]) : NULL;
    if (!client)
        return false;
    if (client->magic != GPUSHARE_PAGE_MAGIC || client->version != GPUSHARE_PAGE_VERSION || !join_own_devices(client)) {
        munmap(client, GPUSHARE_CLIENT_BYTES);
        return false;
    }
    join_forget();
    coming = client;
    coming_file = file_keep(files[0]);
    join_step();
    return true;
}

void join_step(void) {
    if (!coming || is_running())
        return;
    account_join(coming, coming_file);
    coming = NULL;
}

bool join_waits(void) {
    return coming != NULL;
}

void join_after_fork(void) {
    if (coming)
        munmap(coming, GPUSHARE_CLIENT_BYTES);
    coming = NULL;
}
