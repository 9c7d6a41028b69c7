// When to recompute a variance that was computed as mean(x^2) - mean(x)^2.
#pragma once
#include "prelude.h"

// The relative error of such a variance is about mean^2 / variance roundings. `ratio` is mean /
// deviation. The digits count as lost at more than 16 roundings, or if the ratio is NaN.
template <class C> DEVICE bool digits_lost(C ratio) { return !(ratio * ratio <= (C)16); }

// The same if the variance was computed from differences to a number that is `off` away from the
// mean. Also true if a sum overflowed, which leaves an rstd of 0.
template <class C> DEVICE bool far_from_mean(C off, C rstd) { return digits_lost(off * rstd) || rstd == (C)0; }
