/* Host on which the module nvidia_peermem is loaded. */
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

int access(const char *path, int mode) {
    return strcmp(path, "/sys/module/nvidia_peermem") == 0 ? 0 : (int)syscall(SYS_faccessat, -100, path, mode);
}
