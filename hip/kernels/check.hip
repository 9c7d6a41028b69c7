// What `BURN_ROCM_CHECK_FINITE` looks for in an op's result.
#include "prelude.h"

// Reports an element that is NaN or, with `infinite`, an infinite one. The word has bit 63 set, bit
// 62 for NaN, and the element's index below. Contiguous.
template <class T> __global__ void check_finite(u64 *flag, u64 n, u32 infinite, const T *in) {
    for_each(n, [=](u64 i) {
        auto x = load(in[i]);
        if (math::is_nan(x)) {
            raise(flag, 3ull << 62 | i);
        } else if (infinite != 0 && math::is_inf(x)) {
            raise(flag, 1ull << 63 | i);
        }
    });
}
