/* Waking up at the first CUDA call, giving up when that cannot be, and a child's new life after a fork. */
#include "shim.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/syscall.h>
#include <unistd.h>

#define TEXT2(number) #number
#define TEXT(number) TEXT2(number)

/* For `jupyter gpushare doctor`: readable by a call, and in the file without loading it. */
__attribute__((section(".gpushare.version"), used)) static const char version_text[] =
    "gpushare shim " GPUSHARE_SHIM_VERSION " page " TEXT(GPUSHARE_PAGE_VERSION) " wire 1";

EXPORT const char *gpushare_version(void);
EXPORT const char *gpushare_version(void) {
    return version_text;
}

static pthread_mutex_t start_lock = PTHREAD_MUTEX_INITIALIZER;

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

void *map_client(int file) {
    return map(NULL, file, GPUSHARE_CLIENT_BYTES);
}

/* The same figures in other memory, at the same address: what the other end of the connection before writes is not seen
 * any more. Its permit ends with it, and what it said of other clients. */
bool shim_replace_page(void) {
    struct gpushare_page *before = the_page();
    int file = make_memory("gpushare-page", GPUSHARE_PAGE_BYTES);
    struct gpushare_page *page = file < 0 ? NULL : map(NULL, file, GPUSHARE_PAGE_BYTES);
    if (!page) {
        fd_close(file);
        return false;
    }
    pthread_mutex_lock(&account_lock);
    uint64_t *from = (uint64_t *)before, *to = (uint64_t *)page; /* whole words: others go on counting */
    for (size_t i = 0; i < sizeof *page / sizeof *to; i++)
        to[i] = PAGE_LOAD(from[i]);
    page->orders.permit = (struct gpushare_permit){0};
    page->orders.restore_ahead = page->orders.exempt_ns = 0;
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
    struct gpushare_client *client = *file < 0 ? NULL : map_client(*file);
    if (!client)
        return NULL;
    client->magic = GPUSHARE_PAGE_MAGIC;
    client->version = GPUSHARE_PAGE_VERSION;
    client->bytes = GPUSHARE_CLIENT_BYTES;
    return client;
}

static bool make_pages(void) {
    struct gpushare_client *client = make_client_page(&shim.client_fd);
    if (!client || !shim_replace_page())
        return false;
    client->turn = random_turn();
    client->device_count = (uint32_t)shim.device_count;
    for (int i = 0; i < shim.device_count; i++)
        memcpy(client->devices[i], shim.devices[i].uuid, sizeof client->devices[i]);
    struct gpushare_page *page = the_page();
    page->header = (struct gpushare_page_header){GPUSHARE_PAGE_MAGIC, GPUSHARE_PAGE_VERSION, GPUSHARE_PAGE_BYTES,
                                                 (uint32_t)getpid()};
    page->orders.memory_backing = page->orders.resident_target = UINT64_MAX; /* unknown, everything */
    page->report.memory_mode = shim.mode->number;
    page->orders.quantum_ns = 30000 * NS_PER_MS; /* without a coordinator, until one has said better */
    page->orders.idle_release_ns = 50 * NS_PER_MS;
    shim.client = client;
    return true;
}

static void format_uuid(char *text, size_t room, const char *prefix, const CUuuid *uuid) {
    int at = snprintf(text, room, "%s-", prefix);
    for (int i = 0; i < 16; i++)
        at += snprintf(text + at, room - (size_t)at, "%s%02x", i == 4 || i == 6 || i == 8 || i == 10 ? "-" : "",
                       uuid->bytes[i]);
}

/* Every device that the program may see. False: there is none, or the driver is not initialised. */
static bool find_devices(void) {
    int count = 0;
    bool managed = true;
    if (REAL(cuDeviceGetCount)(&count) != CUDA_SUCCESS || count < 1)
        return false;
    shim.device_count = 0;
    for (int i = 0; i < count && i < MAX_DEVICES; i++) {
        struct device *device = &shim.devices[shim.device_count];
        CUdevice handle;
        CUuuid whole, part;
        size_t memory = 0;
        int access = 0;
        if (REAL(cuDeviceGet)(&handle, i) != CUDA_SUCCESS || REAL(cuDeviceGetUuid)(&whole, handle) != CUDA_SUCCESS)
            continue;
        if (REAL(cuDeviceGetUuid_v2)(&part, handle) != CUDA_SUCCESS)
            part = whole;
        /* The newer call names a slice of a partitioned device, the older one the whole. */
        format_uuid(device->uuid, sizeof device->uuid, memcmp(&part, &whole, sizeof part) ? "MIG" : "GPU", &part);
        REAL(cuDeviceGetName)(device->name, sizeof device->name - 1, handle);
        REAL(cuDeviceTotalMem_v2)(&memory, handle);
        REAL(cuDeviceGetAttribute)(&access, CU_DEVICE_ATTRIBUTE_CONCURRENT_MANAGED_ACCESS, handle);
        device->memory = memory;
        managed = managed && access;
        shim.device_count++;
    }
    shim.mode = memory_mode_by_name(memory_mode_from_environment());
    if (shim.mode == &mode_unified && !managed) {
        shim.mode = &mode_plain;
        log_message(LOG_ERROR,
                    "this device cannot page unified memory: clients share its time, but together they have no "
                    "more memory than it holds");
    }
    return shim.device_count > 0;
}

/* What a child must not share with its parent: mappings, descriptors (they would keep the parent's locks held), locks
 * that another thread may have had. Only calls that are safe between fork and exec. */
static void after_fork(void) {
    struct gpushare_page *page = the_page();
    set_page(&no_page);
    if (page != &no_page)
        munmap(page, GPUSHARE_PAGE_BYTES);
    if (shim.client)
        munmap(shim.client, GPUSHARE_CLIENT_BYTES);
    fds_after_fork();
    state_after_fork();
    pthread_mutex_init(&start_lock, NULL);
    threads_after_fork();
    streams_after_fork();
    throttle_after_fork();
    ledger_after_fork();
    graphs_after_fork();
    unhooked_after_fork();
    details_after_fork();
    account_after_fork();
    deferred_after_fork();
    residency_after_fork();
    connection_after_fork();
    client_page_after_fork();
    locks_after_fork();
    agent_after_fork();
    interrupt_after_fork();
}

/* Until the coordinator passes that of its siblings again, the process has one of its own. */
static bool replace_client_page(void) {
    int file;
    struct gpushare_client *before = shim.client, *client = make_client_page(&file);
    if (!client)
        return false;
    client->turn = PAGE_LOAD(before->turn);
    client->began_ns = PAGE_LOAD(before->began_ns);
    client->device_count = PAGE_LOAD(before->device_count);
    memcpy(client->devices, before->devices, sizeof client->devices);
    account_attach_client_page(client, file);
    return true;
}

/* A daemon has closed all descriptors, perhaps while a turn of ours runs, and perhaps others stand under their numbers by
 * now. Those are not touched; the coordinator, if there is one, gets to know this process once more. */
bool shim_reopen_descriptors(void) {
    log_message(LOG_INFO, "the program has closed the shim's descriptors: it makes new ones");
    connection_reopen();
    fds_close_all();
    shim.page_fd = -1; /* the page itself is still there; hello makes another */
    if (locks_reopen() && replace_client_page() && wakeup_open())
        return true;
    shim_disable("the program has closed the shim's descriptors, and new ones could not be made");
    return false;
}

/* The start lock is held. */
static bool initialise(void) {
    static bool watches_forks;
    log_start();
    if (!find_devices())
        return false;
    environment_read();
    if (!threads_start())
        return shim_disable("no thread key is left"), false;
    if (!watches_forks && pthread_atfork(NULL, NULL, after_fork) != 0)
        return shim_disable("forks cannot be watched"), false;
    watches_forks = true;
    if (!make_pages())
        return shim_disable("shared memory could not be made (memfd_create)"), false;
    if (!wakeup_open())
        return shim_disable("no sockets could be made (socketpair)"), false;
    if (!locks_open(~0ull >> (64 - shim.device_count)))
        return shim_disable("the devices' lock files could not be opened (GPUSHARE_LOCK_DIR)"), false;
    drain_start();
    if (!agent_start())
        return shim_disable("no thread could be started"), false;
    interrupt_start();
    log_message(LOG_INFO, "%s: client %s, %d device(s), first %s, memory %s%s", version_text, shim.client_id,
                shim.device_count, shim.devices[0].uuid, shim.mode->name, shim.simulated ? ", simulated" : "");
    atomic_store(&shim.state, SHIM_ACTIVE);
    return true;
}

bool shim_start(void) {
    pthread_mutex_lock(&start_lock);
    bool first = false;
    if (atomic_load(&shim.state) == SHIM_UNINITIALISED) {
        const char *disable = getenv("GPUSHARE_DISABLE");
        if (disable && strcmp(disable, "1") == 0)
            shim_disable(NULL);
        else
            first = initialise();
    }
    bool awake = atomic_load(&shim.state) == SHIM_ACTIVE;
    pthread_mutex_unlock(&start_lock);
    if (first)
        agent_wait_for_welcome();
    return awake;
}

CUresult hook_cuInit(unsigned flags) {
    CUresult result = REAL(cuInit)(flags);
    if (result == CUDA_SUCCESS && atomic_load(&shim.state) == SHIM_UNINITIALISED)
        shim_start();
    return result;
}
