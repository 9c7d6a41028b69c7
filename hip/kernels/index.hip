// Elements selected by index tensors: gather and scatter along a dim, and selection of rows. An
// index out of range accesses no memory: a read gives 0, a write is dropped, and the op's flag is
// raised.
#include "prelude.h"

// out[i] = x[.. index ..]. m has the output's shape. m.stride[0] has x's strides, with 0 for the
// gathered dim; m.stride[1] has the indices' strides. `dim_stride` and `dim_size` belong to x's
// gathered dim. For `select`, the indices' strides are 0 in all other dims.
template <class T, class I>
__global__ void gather(u32 n, Strided<2> m, const T *x, const I *indices, i64 dim_stride, u64 dim_size, u64 *flag,
                       T *out) {
    for_each_strided<2>(m, n, [=](u64 i, Offsets<2> at) {
        I index = indices[at.at[1]];
        T value = {};
        if (in_range(index, dim_size)) value = x[at.at[0] + (i64)index * dim_stride];
        else raise_index(flag, index, dim_size);
        out[i] = value;
    });
}

struct alignas(16) Bytes16 {
    u64 part[2];
};

template <class Unit> DEVICE void copy_row(u64 bytes, bool inside, const u8 *from, u8 *to) {
    const Unit *source = reinterpret_cast<const Unit *>(from);
    Unit *target = reinterpret_cast<Unit *>(to);
    u64 units = bytes / sizeof(Unit);
    if (inside) for_each_in_block(units, [=](u64 k) { target[k] = source[k]; });
    else for_each_in_block(units, [=](u64 k) { target[k] = Unit{}; });
}

// Row r of out is row indices[r] of x. For embeddings, and for `select` on the first dim of
// contiguous tensors. There are `rows` indices; x has `dim_size` rows of `row_bytes`. Each access
// has 16 bytes if the rows' alignment allows it. Launched as for rows of row_bytes / 16 elements.
template <class I>
__global__ void select_rows(u64 rows, u64 row_bytes, const u8 *x, const I *indices, u64 dim_size, u64 *flag, u8 *out) {
    u64 alignment = row_bytes | (u64)x | (u64)out;
    for_each_row(rows, [=](u64 row) {
        I index = indices[row];
        bool inside = in_range(index, dim_size);
        if (!inside && threadIdx.x == 0) raise_index(flag, index, dim_size);
        const u8 *from = x + (inside ? (u64)index * row_bytes : 0);
        u8 *to = out + row * row_bytes;
        if (alignment % 16 == 0) copy_row<Bytes16>(row_bytes, inside, from, to);
        else if (alignment % 4 == 0) copy_row<u32>(row_bytes, inside, from, to);
        else copy_row<u8>(row_bytes, inside, from, to);
    });
}

struct Add {
    template <class T> static DEVICE void atomic(T *target, T value) { atomic_add(target, value); }
    template <class T> static DEVICE void apply(T *target, T value) {
        if constexpr (is_float<T>::value) *target = store<T>::from(load(*target) + load(value));
        else *target = (T)((wrapping_t<T>)*target + (wrapping_t<T>)value);
    }
};
// Every writer writes the same 1, so it needs neither an order nor atomics.
struct Or {
    template <class T> static DEVICE void atomic(T *target, T value) { apply(target, value); }
    template <class T> static DEVICE void apply(T *target, T value) {
        if (load(value)) *target = store<T>::from(1);
    }
};

// If several values have the same target, any one of them remains.
struct Assign {
    template <class T> static DEVICE void atomic(T *target, T value) { *target = value; }
};

// out[.. index ..] op= value, with atomics, in no fixed order. m has the value's shape. m.stride[0]
// has out's strides, with 0 for the scattered dim; [1] has the indices' strides, [2] the value's.
template <class Op, class T, class I>
__global__ void scatter(u32 n, Strided<3> m, const I *indices, const T *value, i64 dim_stride, u64 dim_size, u64 *flag,
                        T *out) {
    for_each_strided<3>(m, n, [=](u64, Offsets<3> at) {
        I index = indices[at.at[1]];
        if (in_range(index, dim_size)) Op::atomic(out + (at.at[0] + (i64)index * dim_stride), value[at.at[2]]);
        else raise_index(flag, index, dim_size);
    });
}

// The same, but one thread processes each line along the dim from first to last element. So every
// run gives the same bits, and types without atomics work too. m has the value's shape without the
// dim, `lines` elements in all; `len` is the value's size along the dim, and `index_step` and
// `value_step` are the strides of indices and value along it. Lines of out must not overlap.
template <class Op, class T, class I>
__global__ void scatter_ordered(u32 lines, u64 len, Strided<3> m, i64 index_step, i64 value_step, const I *indices,
                                const T *value, i64 dim_stride, u64 dim_size, u64 *flag, T *out) {
    for_each_strided<3>(m, lines, [=](u64, Offsets<3> at) {
        for (u64 k = 0; k < len; ++k) {
            I index = indices[at.at[1] + (i64)k * index_step];
            if (in_range(index, dim_size))
                Op::apply(out + (at.at[0] + (i64)index * dim_stride), value[at.at[2] + (i64)k * value_step]);
            else raise_index(flag, index, dim_size);
        }
    });
}

// The same for contiguous out [outer, size, inner] and value [outer, len, inner], in memory order:
// a thread processes neighbouring columns. If `shared`, all columns use one list of `len` indices;
// else the indices have the layout of value.
template <class Op, class T, class I>
__global__ void scatter_columns(u64 outer, u64 len, u64 inner, u64 size, u32 shared, const I *indices, const T *value,
                                u64 *flag, T *out) {
    if (inner == 1) {
        for_each(outer, [=](u64 o) {
            const I *line = shared ? indices : indices + o * len;
            for (u64 k = 0; k < len; ++k) {
                I index = line[k];
                if (in_range(index, size)) Op::apply(out + o * size + (u64)index, value[o * len + k]);
                else raise_index(flag, index, size);
            }
        });
        return;
    }
    for_each_column_group(outer, inner, [=](u64 o, u64 first, u32 width) {
        T *to = out + o * size * inner + first;
        for (u64 k = 0; k < len; ++k) {
            u64 row = (o * len + k) * inner + first;
            const T *from = value + row;
            if (shared) {
                I index = indices[k];
                if (!in_range(index, size)) {
                    raise_index(flag, index, size);
                    continue;
                }
                T *line = to + (u64)index * inner;
                INDEPENDENT
                for (u32 c = 0; c < width; ++c) Op::apply(line + c, from[c]);
            } else {
                for (u32 c = 0; c < width; ++c) {
                    I index = indices[row + c];
                    if (in_range(index, size)) Op::apply(to + (u64)index * inner + c, from[c]);
                    else raise_index(flag, index, size);
                }
            }
        }
    });
}
