// The ReLU of another op's result, in the kernels of that op. Both functions see the result as a
// separate ReLU kernel would read it from memory: rounded to T.
#pragma once
#include "prelude.h"

// max(value, 0); a NaN stays.
template <class T> DEVICE T relu(T value) {
    return load(value) < (compute_t<T>)0 ? store<T>::from((compute_t<T>)0) : value;
}

// Whether the ReLU of a result lets a gradient pass: the rounded result is positive or NaN.
template <class T> DEVICE bool passes(compute_t<T> result) {
    return !(load(store<T>::from(result)) <= (compute_t<T>)0);
}
