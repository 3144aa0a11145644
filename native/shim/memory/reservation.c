/* Reservation of memory in the client's account, before it is allocated. */
#include "memory/memory.h"

/* Memory that a stream has finished with is given back before anything is refused. */
bool reserve_memory(uint64_t bytes, bool unmovable) {
    if (bytes >> 62) /* no sum of such numbers means anything */
        return false;
    deferred_free_completed();
    if (deferred_any() && !account_would_fit(bytes))
        deferred_drain();
    return account_reserve(bytes, unmovable);
}
