"""Basic types of the core, which import no other folder: errors, devices, memory, quotas and the queue of deadlines."""
