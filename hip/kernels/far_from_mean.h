// When to recompute a variance that was taken as mean square less squared mean.
#pragma once
#include "prelude.h"

// Such a variance is wrong by mean^2 / variance roundings; here `ratio` is mean / deviation. More
// than 16 roundings count as lost, as does a ratio that is NaN.
template <class C> DEVICE bool digits_lost(C ratio) { return !(ratio * ratio <= (C)16); }

// The same of differences from a number that is `off` away from the mean. True also where a sum
// overflowed, which leaves an rstd of 0.
template <class C> DEVICE bool far_from_mean(C off, C rstd) { return digits_lost(off * rstd) || rstd == (C)0; }
