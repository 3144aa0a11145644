/* The client page that the coordinator passes to each later process of a client. The client's first process has made
 * it. A process in a turn attaches it afterwards, because the numbers of devices and slots differ in it. */
#include "coordinator/coordinator.h"
#include "memory/memory.h"

#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>

static struct gpushare_client *pending; /* NULL: none */
static int pending_fd;

static bool is_client_page(int file) {
    struct stat status;
    int seals = fcntl(file, F_GET_SEALS);
    return fstat(file, &status) == 0 && status.st_size == GPUSHARE_CLIENT_BYTES && seals >= 0 &&
           (seals & F_SEAL_SHRINK);
}

void client_page_discard(void) {
    if (!pending)
        return;
    munmap(pending, GPUSHARE_CLIENT_BYTES);
    fd_close(pending_fd);
    pending = NULL;
}

uint64_t client_page_own_devices(const struct gpushare_client *client) {
    uint64_t bits = 0;
    uint32_t count = (uint32_t)min_u64(PAGE_LOAD(client->device_count), GPUSHARE_DEVICES);
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

int client_page_fd(void) {
    return pending ? pending_fd : shim.client_fd;
}

bool client_page_accept(const int *files, int count) {
    struct gpushare_client *client = count == 1 && is_client_page(files[0]) ? client_page_map(files[0]) : NULL;
    if (!client)
        return false;
    if (client->magic != GPUSHARE_PAGE_MAGIC || client->version != GPUSHARE_PAGE_VERSION ||
        !client_page_own_devices(client)) {
        munmap(client, GPUSHARE_CLIENT_BYTES);
        return false;
    }
    client_page_discard();
    pending = client;
    pending_fd = fd_own(files[0]);
    client_page_poll();
    return true;
}

void client_page_poll(void) {
    if (!pending || is_running())
        return;
    account_attach_client_page(pending, pending_fd);
    pending = NULL;
}

bool client_page_is_pending(void) {
    return pending != NULL;
}

void client_page_after_fork(void) {
    if (pending)
        munmap(pending, GPUSHARE_CLIENT_BYTES);
    pending = NULL;
}
