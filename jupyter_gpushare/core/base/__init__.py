"""Basic types of the core: errors, devices, quotas and the queue of deadlines. They import no other folder."""
