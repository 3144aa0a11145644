/* Reservation of memory in the client's account, before it is allocated. */
#include "memory/freed/freed.h"

/* Memory that the program has freed is released before an allocation is refused. */
bool reserve_memory(uint64_t bytes, bool unmovable) {
    if (bytes >> 62) /* no sum of such numbers is meaningful */
        return false;
    if (deferred_any() && !account_would_fit(bytes))
        deferred_drain();
    return account_reserve(bytes, unmovable);
}
