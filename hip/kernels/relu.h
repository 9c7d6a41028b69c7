// The ReLU of what another op gave, in the kernels of that op. Both functions round as a kernel of
// its own would find the op's result in memory.
#pragma once
#include "prelude.h"

// A NaN stays.
template <class T> DEVICE T relu(T value) {
    return load(value) < (compute_t<T>)0 ? store<T>::from((compute_t<T>)0) : value;
}

// Whether the ReLU of a result lets a gradient pass: where it is positive as it is stored, or NaN.
template <class T> DEVICE bool passes(compute_t<T> result) {
    return !(load(store<T>::from(result)) <= (compute_t<T>)0);
}
