// Gated linear units (Shazeer 2020): act(gate) * up over rows of `len` elements, and the gradients
// of both factors. Rows of gate and up begin `gate_step` and `up_step` elements apart. So the two
// may be the halves of one tensor's rows, or two tensors. f16 and bf16 are computed in f32.
#include "activations.h"
#include "prelude.h"
#include "rows.h"
#include "widen.h"

// Whether all rows consist of pieces of 16 bytes that begin at multiples of 16 bytes.
template <class T, class... More> DEVICE bool in_pieces(const T *row, const More *...more) {
    return past_boundary(row) == 0 && ((past_boundary(more) == 0) && ... && true);
}

// Calls f(row, first) for the pieces of `rows` rows of `len` elements, and rest(row, at) for each
// element after a row's last piece. Without `whole` all elements are such.
template <u32 N, class F, class G> DEVICE void for_each_piece(u64 rows, u64 len, bool whole, F f, G rest) {
    u64 pieces = whole ? len / N : 0, left = len - pieces * N;
    for_each(rows * pieces, [=](u64 i) {
        u64 row = divided_in_f64(i, pieces);
        f(row, (i - row * pieces) * N);
    });
    for_each(rows * left, [=](u64 i) {
        u64 row = divided_in_f64(i, left);
        rest(row, pieces * N + (i - row * left));
    });
}

template <class Act, class T>
__global__ ALL_WAVES(sizeof(T) == 2) void gated(u64 rows, u64 len, u64 gate_step, u64 up_step, const T *gate,
                                                const T *up, T *out) {
    using C = compute_t<T>;
    auto one = [=](u64 row, u64 at) {
        C a = load(gate[row * gate_step + at]), b = load(up[row * up_step + at]);
        out[row * len + at] = store<T>::from(Act::template apply<T>(a) * b);
    };
    if constexpr (ONE_THREAD) {
        for_each_column_group(rows, len, [=](u64 row, u64 first, u32 width) {
            const T *a = gate + row * gate_step + first, *b = up + row * up_step + first;
            T *to = out + row * len + first;
            for_each_in_block(
                width, [=](u64 i) { to[i] = store<T>::from(Act::template apply<T>((C)load(a[i])) * (C)load(b[i])); });
        });
    } else {
        constexpr u32 N = LANES<T>;
        bool whole = in_pieces(gate, up, out) && (rows == 1 || (gate_step % N | up_step % N | len % N) == 0);
        for_each_piece<N>(rows, len, whole, [=](u64 row, u64 first) {
            Vector<T, N> from_gate = piece_of(gate, (i64)(row * gate_step + first)),
                         from_up = piece_of(up, (i64)(row * up_step + first)), y;
            C a[N], b[N];
            widen(from_gate, a), widen(from_up, b);
            UNROLLED
            for (u32 j = 0; j < N; ++j) {
                // Two elements after the two before: more at once do not fit the registers.
                if (j > 0 && j % 2 == 0) a[j] = recompute_after(a[j - 1], a[j]);
                a[j] = Act::template apply<T>(a[j]) * b[j];
                y.lane[j] = store<T>::from(a[j]);
            }
            *reinterpret_cast<Vector<T, N> *>(out + row * len + first) = y;
        }, one);
    }
}

// grad has rows of `len` elements. The rows of by_gate begin by_gate_step elements apart, those of
// by_up by_up_step.
template <class Act, class T>
__global__ ALL_WAVES(sizeof(T) == 2) void gated_backward(u64 rows, u64 len, u64 gate_step, u64 up_step,
                                                         u64 by_gate_step, u64 by_up_step, const T *gate, const T *up,
                                                         const T *grad, T *by_gate, T *by_up) {
    using C = compute_t<T>;
    auto one = [=](u64 row, u64 at) {
        C a = load(gate[row * gate_step + at]), b = load(up[row * up_step + at]), g = load(grad[row * len + at]);
        by_gate[row * by_gate_step + at] = store<T>::from(g * b * Act::template slope<T>(a));
        by_up[row * by_up_step + at] = store<T>::from(g * Act::template apply<T>(a));
    };
    if constexpr (ONE_THREAD) {
        for_each_column_group(rows, len, [=](u64 row, u64 first, u32 width) {
            const T *a = gate + row * gate_step + first, *b = up + row * up_step + first, *g = grad + row * len + first;
            T *to_gate = by_gate + row * by_gate_step + first, *to_up = by_up + row * by_up_step + first;
            for_each_in_block(width, [=](u64 i) {
                C z = load(a[i]), d = load(g[i]);
                to_gate[i] = store<T>::from(d * (C)load(b[i]) * Act::template slope<T>(z));
                to_up[i] = store<T>::from(d * Act::template apply<T>(z));
            });
        });
    } else {
        constexpr u32 N = 16 / sizeof(C); // accesses of 16 bytes of f16 would take too many registers
        bool whole = in_pieces(gate, up, grad, by_gate, by_up) &&
                     (rows == 1 || (gate_step % N | up_step % N | by_gate_step % N | by_up_step % N | len % N) == 0);
        for_each_piece<N>(rows, len, whole, [=](u64 row, u64 first) {
            auto piece = [](const T *from, u64 at) { return *reinterpret_cast<const Vector<T, N> *>(from + at); };
            Vector<T, N> from_gate = piece(gate, row * gate_step + first), from_up = piece(up, row * up_step + first),
                         from_grad = piece(grad, row * len + first), to_gate, to_up;
            UNROLLED
            for (u32 j = 0; j < N; ++j) {
                C z = load(from_gate.lane[j]), d = load(from_grad.lane[j]);
                to_gate.lane[j] = store<T>::from(d * (C)load(from_up.lane[j]) * Act::template slope<T>(z));
                to_up.lane[j] = store<T>::from(d * Act::template apply<T>(z));
            }
            *reinterpret_cast<Vector<T, N> *>(by_gate + row * by_gate_step + first) = to_gate;
            *reinterpret_cast<Vector<T, N> *>(by_up + row * by_up_step + first) = to_up;
        }, one);
    }
}
