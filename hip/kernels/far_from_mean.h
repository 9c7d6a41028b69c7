// When to recompute a variance that was taken by differences from a number other than the mean.
#pragma once
#include "prelude.h"

// Whether sum(d^2) - sum(d)^2 / n lost precision, where d = x - s and the mean is `off` away from s: the error is
// off^2 / variance roundings, and more than 16 count as lost. Also true if a sum overflowed, which leaves an rstd of
// 0, or is NaN.
template <class C> DEVICE bool far_from_mean(C off, C rstd) {
    C ratio = off * rstd;
    return !(ratio * ratio <= (C)16) || rstd == (C)0;
}
