/* The shared memory of this process: its page, and the client page of its client. */
#include "coordinator/coordinator.h"
#include "gate/gate.h"
#include "memory/memory.h"

#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/syscall.h>
#include <unistd.h>

/* Sealed, so that no peer can make an access to it fault by shrinking it. */
static int make_memory(const char *name, off_t bytes) {
    int file = (int)syscall(SYS_memfd_create, name, 3 /* MFD_CLOEXEC | MFD_ALLOW_SEALING */);
    if (file >= 0 && ftruncate(file, bytes) == 0 &&
        fcntl(file, F_ADD_SEALS, F_SEAL_GROW | F_SEAL_SHRINK | F_SEAL_SEAL) == 0)
        return fd_own(file);
    if (file >= 0)
        close(file);
    return -1;
}

static void *map(void *at, int file, size_t bytes) {
    void *memory = mmap(at, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | (at ? MAP_FIXED : 0), file, 0);
    return memory == MAP_FAILED ? NULL : memory;
}

struct gpushare_client *client_page_map(int file) {
    return map(NULL, file, GPUSHARE_CLIENT_BYTES);
}

/* Move the page to new memory, at the same address, so that a previous coordinator's writes have no effect any more.
 * The permit of the previous connection ends, and so do levels that depended on other clients. */
bool page_replace(void) {
    struct gpushare_page *before = the_page();
    int file = make_memory("gpushare-page", GPUSHARE_PAGE_BYTES);
    struct gpushare_page *page = file < 0 ? NULL : map(NULL, file, GPUSHARE_PAGE_BYTES);
    if (!page) {
        fd_close(file);
        return false;
    }
    pthread_mutex_lock(&account_lock);
    /* whole words, because other threads go on counting */
    uint64_t *from = (uint64_t *)before, *to = (uint64_t *)page;
    for (size_t i = 0; i < sizeof *page / sizeof *to; i++)
        to[i] = PAGE_LOAD(from[i]);
    page->control.permit = (struct gpushare_permit){0};
    page->control.exempt_ns = 0;
    memset(page->control.prefetch_limit, 0, sizeof page->control.prefetch_limit);
    bool first = before == &no_page, made = first || map(before, file, GPUSHARE_PAGE_BYTES);
    if (first)
        set_page(page);
    pthread_mutex_unlock(&account_lock);
    if (!first)
        munmap(page, GPUSHARE_PAGE_BYTES);
    fd_close(made ? shim.page_fd : file);
    shim.page_fd = made ? file : shim.page_fd;
    gate_publish_waiting();
    return made;
}

static uint64_t random_turn(void) {
    uint64_t number = now_ns() ^ (uint64_t)getpid() << 40;
    if (getrandom(&number, sizeof number, GRND_NONBLOCK) < 0)
        number *= 0x9e3779b97f4a7c15u;
    return GPUSHARE_FIRST_TURN + (number >> 2) % ((1ull << 62) - GPUSHARE_FIRST_TURN);
}

static struct gpushare_client *make_client_page(int *file) {
    *file = make_memory("gpushare-client", GPUSHARE_CLIENT_BYTES);
    struct gpushare_client *client = *file < 0 ? NULL : client_page_map(*file);
    if (!client)
        return NULL;
    client->magic = GPUSHARE_PAGE_MAGIC;
    client->version = GPUSHARE_PAGE_VERSION;
    client->bytes = GPUSHARE_CLIENT_BYTES;
    return client;
}

static void set_devices(struct gpushare_client *client) {
    client->device_count = (uint32_t)shim.device_count;
    for (int i = 0; i < shim.device_count; i++)
        memcpy(client->devices[i], shim.devices[i].uuid, sizeof client->devices[i]);
}

bool pages_open(void) {
    struct gpushare_client *client = make_client_page(&shim.client_fd);
    if (!client || !page_replace())
        return false;
    client->turn = random_turn();
    set_devices(client);
    struct gpushare_page *page = the_page();
    page->header = (struct gpushare_page_header){GPUSHARE_PAGE_MAGIC, GPUSHARE_PAGE_VERSION, GPUSHARE_PAGE_BYTES,
                                                 (uint32_t)getpid()};
    page->control.memory_backing = page->control.evicted_limit = UINT64_MAX;           /* unknown */
    memset(page->control.resident_target, 0xff, sizeof page->control.resident_target); /* everything */
    page->report.memory_mode = shim.mode->number;
    page->control.quantum_ns = 30000 * NS_PER_MS; /* without a coordinator, until one has written it */
    page->control.idle_release_ns = 50 * NS_PER_MS;
    shim.client = client;
    return true;
}

/* The process has a client page alone until the coordinator passes that of its siblings again. */
static bool replace_client_page(bool keeps_devices) {
    int file;
    struct gpushare_client *before = shim.client, *client = make_client_page(&file);
    if (!client)
        return false;
    client->turn = PAGE_LOAD(before->turn);
    client->entered_ns = PAGE_LOAD(before->entered_ns);
    client->device_count = PAGE_LOAD(before->device_count);
    memcpy(client->devices, before->devices, sizeof client->devices);
    if (!keeps_devices) {
        memset(client->devices, 0, sizeof client->devices);
        set_devices(client);
    }
    account_attach_client_page(client, file);
    return true;
}

bool client_page_replace(void) {
    return replace_client_page(true);
}

bool client_page_renew(void) {
    return replace_client_page(false);
}

void pages_after_fork(void) {
    struct gpushare_page *page = the_page();
    set_page(&no_page);
    if (page != &no_page)
        munmap(page, GPUSHARE_PAGE_BYTES);
    if (shim.client)
        munmap(shim.client, GPUSHARE_CLIENT_BYTES);
}
