/* CUPTI, whose other functions are refused: the text of such a refusal. */
#include "library.h"

EXPORT int cuptiGetResultString(int result, const char **text) {
    (void)result;
    if (!text)
        return 1; /* CUPTI_ERROR_INVALID_PARAMETER */
    *text = "not simulated";
    return 0;
}
