/* The memory modes by name. */
#include "memory/memory.h"

#include <string.h>

const struct memory_mode *memory_mode_by_name(const char *name) {
    static const struct memory_mode *const modes[] = {&mode_unified, &mode_swap, &mode_plain};
    for (size_t i = 0; i < sizeof modes / sizeof modes[0]; i++)
        if (strcmp(name, modes[i]->name) == 0)
            return modes[i];
    return NULL;
}
