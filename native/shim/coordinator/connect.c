/* Finding and reaching a coordinator. */
#include "coordinator/coordinator.h"

#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

static int connect_to(const char *path) {
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    if (strlen(path) >= sizeof address.sun_path) {
        log_once(LOG_ERROR, "the coordinator's socket has too long a path: %s", path);
        return -1;
    }
    strcpy(address.sun_path, path);
    int file = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (file < 0)
        return -1;
    if (connect(file, (struct sockaddr *)&address, sizeof address) != 0) {
        close(file);
        return -1;
    }
    return fd_own(file);
}

/* Anybody may make a folder in /tmp: it must be ours, and closed to others. */
static bool is_own_folder(const char *socket_path) {
    char folder[sizeof shim.environment.sockets[0]];
    struct stat status;
    snprintf(folder, sizeof folder, "%s", socket_path);
    *strrchr(folder, '/') = 0;
    return lstat(folder, &status) == 0 && S_ISDIR(status.st_mode) && status.st_uid == getuid() &&
           !(status.st_mode & 077);
}

int connect_to_coordinator(void) {
    const struct environment *environment = &shim.environment;
    int file = -1;
    for (int i = 0; i < environment->socket_count && file < 0; i++)
        if (i == 0 || !environment->socket_in_tmp || is_own_folder(environment->sockets[i]))
            file = connect_to(environment->sockets[i]);
    return file;
}
