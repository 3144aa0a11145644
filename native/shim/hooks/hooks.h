/* What the files of the hooks use of each other. Nothing below this folder includes it. */
#ifndef GPUSHARE_HOOKS_H
#define GPUSHARE_HOOKS_H

#include "driver/driver.h"

#pragma GCC visibility push(hidden)

extern void *const hook_wrappers[HOOK_COUNT]; /* wrappers.c; NULL: only used */

bool is_hooked_nvml_name(const char *name); /* nvml.c */
void *nvml_replace(void *found, const char *name);

#pragma GCC visibility pop

#endif
