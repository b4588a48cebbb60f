// types: f32 f64 f16 bf16
// Matrix products of any strides, without a workspace: `out[b,i,j] = Σ_p a[b,i,p]·b[b,p,j] +
// bias[j]`. Each operand is read along the axis on which it is contiguous. Few tiles of long
// sums are split along the sum; the partial results are added in a fixed order.
#include "conv.cuh"

struct Product {
    u64 batch, m, n, k;
    u64 a_batch, a_row, a_col, b_batch, b_row, b_col;
    u64 splits;
};

// One operand: lines (rows of a, columns of b) along the sum.
template <int SIDE, bool ALONG> struct Operand {
    static const bool ALONG_SUM = ALONG;
    typedef Carry<SIDE, ALONG> C;
    const scalar* at;
    u64 term, end, apart, step;
    // Whether each line exists; all four are one line unless ALONG.
    u32 valid;

    __device__ __forceinline__ Operand(const scalar* from, u64 line_stride, u64 term_stride,
                                       u64 first_line, u64 lines, u64 first_term, u64 end_) {
        u64 line = first_line + C::line();
        term = first_term + C::term();
        end = end_;
        at = from + line * line_stride + term * term_stride;
        apart = C::APART * (ALONG ? line_stride : term_stride);
        step = Tile<SIDE>::DEPTH * term_stride;
        valid = 0;
#pragma unroll
        for (int i = 0; i < EACH; i++)
            valid |= (u32)(line + (ALONG ? i * C::APART : 0) < lines) << i;
    }

    __device__ __forceinline__ void next(acc (&to)[EACH]) {
#pragma unroll
        for (int i = 0; i < EACH; i++) {
            to[i] = 0;
            if (term + (ALONG ? 0 : i * C::APART) < end && (valid >> i & 1))
                to[i] = widen(at[i * apart]);
        }
        term += Tile<SIDE>::DEPTH;
        at += step;
    }
};

struct Sums {
    const Product& p;
    const scalar* bias;
    acc* partial;
    scalar* out;
    u64 first_row, first_column;
    u64 at;
    bool exists;
    acc extra;

    __device__ __forceinline__ void column(int i) {
        u64 j = first_column + i;
        exists = j < p.n;
        at = first_row * p.n + j;
        extra = bias && exists ? widen(bias[j]) : acc(0);
    }
    __device__ __forceinline__ void put(int row, acc value) {
        if (!exists || first_row + row >= p.m) return;
        if (partial) {
            partial[at + row * p.n] = value;
        } else {
            out[at + row * p.n] = narrow<scalar>(value + extra);
        }
    }
};

// `partial` holds `splits` results; null where there is one split, which is written to `out`.
template <int SIDE, bool A_ALONG, bool B_ALONG>
INLINE void gemm(const Product& p, const scalar* a, const scalar* b, const scalar* bias,
                 scalar* out, acc* partial) {
    __shared__ alignas(16) acc shared[SHARED];
    const u64 row_tiles = ceil_div(p.m, SIDE), column_tiles = ceil_div(p.n, SIDE);
    const u64 steps = ceil_div(ceil_div(p.k, Tile<SIDE>::DEPTH), p.splits);
    const u64 all = row_tiles * column_tiles * p.batch * p.splits;
    for (u64 turn = blockIdx.x; turn < all; turn += gridDim.x) {
        u64 rest, row, column, matrix, split;
        divide(turn, row_tiles, rest, row);
        divide(rest, column_tiles, rest, column);
        divide(rest, p.batch, split, matrix);
        row *= SIDE;
        column *= SIDE;
        u64 first = least(split * steps * Tile<SIDE>::DEPTH, p.k);
        u64 end = least(first + steps * Tile<SIDE>::DEPTH, p.k);
        Plain<SIDE> engine;
        Operand<SIDE, A_ALONG> left(a + matrix * p.a_batch, p.a_row, p.a_col, row, p.m, first, end);
        Operand<SIDE, B_ALONG> right(b + matrix * p.b_batch, p.b_col, p.b_row, column, p.n, first,
                                     end);
        engine.multiply(left, right, ceil_div(end - first, Tile<SIDE>::DEPTH), shared);
        acc* to = partial ? partial + (split * p.batch + matrix) * p.m * p.n : 0;
        scalar* result = out + matrix * p.m * p.n;
        Sums sums = {p, partial ? 0 : bias, to, result, row, column, 0, false, 0};
        engine.drain(shared, sums);
    }
}

#define GEMM(NAME, BLOCKS, ...)                                                                    \
    KERNEL __launch_bounds__(256, BLOCKS)                                                          \
        gemm_##NAME(const Product p, const scalar* a, const scalar* b, const scalar* bias,         \
                    scalar* out, acc* partial) {                                                   \
        gemm<__VA_ARGS__>(p, a, b, bias, out, partial);                                            \
    }

// r, c: the operand is read along its rows, along its columns.
GEMM(rr_64, 2, 64, true, false)
GEMM(rc_64, 2, 64, true, true)
GEMM(cr_64, 2, 64, false, false)
GEMM(cc_64, 2, 64, false, true)
GEMM(rr_128, 1, 128, true, false)
GEMM(rc_128, 1, 128, true, true)
GEMM(cr_128, 1, 128, false, false)
GEMM(cc_128, 1, 128, false, true)

KERNEL __launch_bounds__(256) gemm_add_partials(const acc* partial, u64 splits, u64 elements,
                                                const scalar* bias, u64 n, scalar* out) {
    add_partial_results(partial, splits, elements, bias, n, out);
}
