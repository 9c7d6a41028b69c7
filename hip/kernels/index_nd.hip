// Indexing several dims at once: tuples of indices become single positions, and updates are applied
// there.
#include "prelude.h"

// The sizes of up to eight dims.
struct Sizes {
    u64 dim[8];
};

// places[t] = the row-major position that tuple t names. If one of its indices is out of range, the
// position is -1 and the flag is raised. A tuple has `length` indices; this launch reads `count` of
// them from `first` on, for dims of `sizes`. `places` holds the result of earlier launches for the
// indices before.
template <class I, class P>
__global__ void tuple_places(u64 tuples, u32 length, u32 first, u32 count, Sizes sizes, const I *indices, u64 *flag,
                             P *places) {
    // The sizes by reference: a copy that is indexed would go to each thread's private memory.
    for_each(tuples, [=, &sizes](u64 t) {
        i64 place = first == 0 ? 0 : (i64)places[t];
        const I *tuple = indices + t * length + first;
        for (u32 d = 0; d < count; ++d) {
            I index = tuple[d];
            bool inside = in_range(index, sizes.dim[d]);
            if (!inside) raise_index(flag, index, sizes.dim[d]);
            place = inside && place >= 0 ? place * (i64)sizes.dim[d] + (i64)index : -1;
        }
        places[t] = (P)place;
    });
}

struct Assign {
    template <class C> static DEVICE C apply(C, C value) { return value; }
};
template <class C, bool FLOAT = is_float<C>::value> struct exact {
    static DEVICE C sum(C a, C b) { return a + b; }
    static DEVICE C product(C a, C b) { return a * b; }
};
template <class C> struct exact<C, false> { // integers wrap
    static DEVICE C sum(C a, C b) { return (C)((wrapping_t<C>)a + (wrapping_t<C>)b); }
    static DEVICE C product(C a, C b) { return (C)((wrapping_t<C>)a * (wrapping_t<C>)b); }
};
struct Add {
    template <class C> static DEVICE C apply(C a, C b) { return exact<C>::sum(a, b); }
};
struct Mul {
    template <class C> static DEVICE C apply(C a, C b) { return exact<C>::product(a, b); }
};
// A NaN in an update is ignored, and a NaN in the target stays, as in burn-flex.
struct Min {
    template <class C> static DEVICE C apply(C a, C b) { return b < a ? b : a; }
};
struct Max {
    template <class C> static DEVICE C apply(C a, C b) { return b > a ? b : a; }
};

// out[places[u]] op= value[order[u]] for slices of `slice` elements. `places` is sorted, and
// `order` has the original index of each update. So updates of the same place are neighbours in
// their original order, and the thread of the first one applies all of them. Place -1 is dropped.
// Every run gives the same bits, for every type.
template <class Op, class T>
__global__ void scatter_sorted(u64 updates, u64 slice, const i64 *places, const i32 *order, const T *value, T *out) {
    for_each_column_group(updates, slice, [=](u64 u, u64 first, u32 width) {
        i64 place = places[u];
        if (place < 0 || (u > 0 && places[u - 1] == place)) return;
        u64 end = u + 1;
        while (end < updates && places[end] == place) ++end;
        T *to = out + (u64)place * slice + first;
        for (u32 k = 0; k < width; ++k) {
            compute_t<T> joined = load(to[k]);
            for (u64 at = u; at < end; ++at)
                joined = Op::apply(joined, (compute_t<T>)load(value[(u64)order[at] * slice + first + k]));
            to[k] = store<T>::from(joined);
        }
    });
}
