// The elementwise functions and their gradients, as formulas in the type of sums. A code chosen at
// run time says which; it is the same for all threads, so the choice costs one branch. The numbers
// are those of `unary_code` and `binary_code` in elementwise.rs. Written so that the formulas neither
// overflow on the way to a finite result nor swallow a NaN.
#pragma once
#include "capgrad.cuh"

enum UnaryCode {
    UNARY_AFFINE = 0,
    UNARY_RECIPROCAL = 1,
    UNARY_SQUARE = 2,
    UNARY_SQRT = 3,
    UNARY_EXP = 4,
    UNARY_LN = 5,
    UNARY_RELU = 6,
    UNARY_LEAKY_RELU = 7,
    UNARY_GELU = 8,
    UNARY_GELU_TANH = 9,
    UNARY_SILU = 10,
    UNARY_SIGMOID = 11,
    UNARY_TANH = 12,
    UNARY_CLAMP = 13,
    UNARY_ABS = 14
};

enum BinaryCode {
    BINARY_ADD = 0,
    BINARY_SUB = 1,
    BINARY_MUL = 2,
    BINARY_DIV = 3,
    BINARY_SQUARED_ERROR = 4,
    BINARY_ABSOLUTE_ERROR = 5,
    BINARY_HUBER = 6,
    BINARY_BCE = 7
};

enum Side { LEFT = 0, RIGHT = 1 };

#define FOR_EACH_UNARY(DO)                                                                         \
    DO(UNARY_AFFINE)                                                                               \
    DO(UNARY_RECIPROCAL)                                                                           \
    DO(UNARY_SQUARE)                                                                               \
    DO(UNARY_SQRT)                                                                                 \
    DO(UNARY_EXP)                                                                                  \
    DO(UNARY_LN)                                                                                   \
    DO(UNARY_RELU)                                                                                 \
    DO(UNARY_LEAKY_RELU)                                                                           \
    DO(UNARY_GELU)                                                                                 \
    DO(UNARY_GELU_TANH)                                                                            \
    DO(UNARY_SILU)                                                                                 \
    DO(UNARY_SIGMOID)                                                                              \
    DO(UNARY_TANH)                                                                                 \
    DO(UNARY_CLAMP)                                                                                \
    DO(UNARY_ABS)

#define FOR_EACH_BINARY(DO)                                                                        \
    DO(BINARY_ADD)                                                                                 \
    DO(BINARY_SUB)                                                                                 \
    DO(BINARY_MUL)                                                                                 \
    DO(BINARY_DIV)                                                                                 \
    DO(BINARY_SQUARED_ERROR)                                                                       \
    DO(BINARY_ABSOLUTE_ERROR)                                                                      \
    DO(BINARY_HUBER)                                                                               \
    DO(BINARY_BCE)

template <class T> INLINE T sigmoid(T x) {
    T e = exp(-fabs(x));
    return (x >= T(0) ? T(1) : e) / (T(1) + e);
}

// 1, 0 or -1; NaN stays.
template <class T> INLINE T sign(T x) { return x > T(0) ? T(1) : x < T(0) ? T(-1) : x; }

template <class T> INLINE T limit(T x, T low, T high) { return x < low ? low : x > high ? high : x; }

// The argument of the hyperbolic tangent in GELU's approximation, and its derivative.
template <class T> INLINE T gelu_inner(T x) {
    return T(0.79788456080286535588) * (x + T(0.044715) * x * x * x);
}
template <class T> INLINE T gelu_slope(T x) {
    return T(0.79788456080286535588) * (T(1) + T(3) * T(0.044715) * x * x);
}

// `f(x)`.
template <class T> INLINE T unary(int code, T x, T p0, T p1) {
    switch (code) {
    case UNARY_AFFINE: return p0 * x + p1;
    case UNARY_RECIPROCAL: return p0 / x;
    case UNARY_SQUARE: return x * x;
    case UNARY_SQRT: return sqrt(x);
    case UNARY_EXP: return exp(x);
    case UNARY_LN: return log(x);
    case UNARY_RELU: return x <= T(0) ? T(0) : x;
    case UNARY_LEAKY_RELU: return x > T(0) ? x : p0 * x;
    case UNARY_GELU: return T(0.5) * x * erfc(-x * T(0.70710678118654752440));
    case UNARY_GELU_TANH: return T(0.5) * x * (T(1) + tanh(gelu_inner(x)));
    case UNARY_SILU: return x * sigmoid(x);
    case UNARY_SIGMOID: return sigmoid(x);
    case UNARY_TANH: return tanh(x);
    case UNARY_CLAMP: return limit(x, p0, p1);
    default: return fabs(x);
    }
}

// `dy · f'`, where `s` is what f saved: its result or its operand.
template <class T> INLINE T unary_gradient(int code, T s, T dy, T p0, T p1) {
    switch (code) {
    case UNARY_AFFINE: return p0 * dy;
    case UNARY_RECIPROCAL: return -dy * (p0 / s) / s;
    case UNARY_SQUARE: return (s + s) * dy;
    case UNARY_SQRT: return dy / (s + s);
    case UNARY_EXP: return dy * s;
    case UNARY_LN: return dy / s;
    case UNARY_RELU: return s <= T(0) ? T(0) : dy;
    case UNARY_LEAKY_RELU: return s > T(0) ? dy : p0 * dy;
    case UNARY_GELU: {
        T normal = T(0.5) * erfc(-s * T(0.70710678118654752440));
        // The density of the standard normal distribution.
        return dy * (normal + s * T(0.39894228040143267794) * exp(T(-0.5) * s * s));
    }
    case UNARY_GELU_TANH: {
        T t = tanh(gelu_inner(s));
        return dy * T(0.5) * ((T(1) + t) + s * (T(1) - t * t) * gelu_slope(s));
    }
    case UNARY_SILU: {
        T g = sigmoid(s);
        return dy * g * (T(1) + s * (T(1) - g));
    }
    case UNARY_SIGMOID: return dy * s * (T(1) - s);
    case UNARY_TANH: return dy * (T(1) - s * s);
    case UNARY_CLAMP: return s >= p0 && s <= p1 ? dy : T(0);
    default: return sign(s) * dy;
    }
}

// `f(a, b)`.
template <class T> INLINE T binary(int code, T a, T b, T p) {
    switch (code) {
    case BINARY_ADD: return a + b;
    case BINARY_SUB: return a - b;
    case BINARY_MUL: return a * b;
    case BINARY_DIV: return a / b;
    case BINARY_SQUARED_ERROR: return (a - b) * (a - b);
    case BINARY_ABSOLUTE_ERROR: return fabs(a - b);
    case BINARY_HUBER: {
        T d = fabs(a - b);
        return d > p ? p * (d - T(0.5) * p) : T(0.5) * d * d;
    }
    default: return (a > T(0) ? a : T(0)) - a * b + log1p(exp(-fabs(a)));
    }
}

// `dy · ∂f/∂side`. Operands that the derivative does not depend on may be anything.
template <class T> INLINE T binary_gradient(int code, int side, T a, T b, T dy, T p) {
    T direction = side == LEFT ? T(1) : T(-1);
    switch (code) {
    case BINARY_ADD: return dy;
    case BINARY_SUB: return direction * dy;
    case BINARY_MUL: return dy * (side == LEFT ? b : a);
    case BINARY_DIV: return side == LEFT ? dy / b : -dy * (a / b) / b;
    case BINARY_SQUARED_ERROR: return (direction + direction) * (a - b) * dy;
    case BINARY_ABSOLUTE_ERROR: return direction * sign(a - b) * dy;
    case BINARY_HUBER: return direction * limit(a - b, -p, p) * dy;
    default: return side == LEFT ? dy * (sigmoid(a) - b) : -a * dy;
    }
}

// The same for several elements at a time, so that one branch serves them all; in place of the first
// array.

template <class T, int N> INLINE void unary(int code, T (&x)[N], T p0, T p1) {
#define CASE(CODE)                                                                                 \
    case CODE:                                                                                     \
        _Pragma("unroll") for (int j = 0; j < N; ++j) x[j] = unary(CODE, x[j], p0, p1);            \
        break;
    switch (code) { FOR_EACH_UNARY(CASE) }
#undef CASE
}

template <class T, int N>
INLINE void unary_gradient(int code, T (&s)[N], const T (&dy)[N], T p0, T p1) {
#define CASE(CODE)                                                                                 \
    case CODE:                                                                                     \
        _Pragma("unroll") for (int j = 0; j < N; ++j) s[j] =                                       \
            unary_gradient(CODE, s[j], dy[j], p0, p1);                                             \
        break;
    switch (code) { FOR_EACH_UNARY(CASE) }
#undef CASE
}

template <class T, int N> INLINE void binary(int code, T (&a)[N], const T (&b)[N], T p) {
#define CASE(CODE)                                                                                 \
    case CODE:                                                                                     \
        _Pragma("unroll") for (int j = 0; j < N; ++j) a[j] = binary(CODE, a[j], b[j], p);          \
        break;
    switch (code) { FOR_EACH_BINARY(CASE) }
#undef CASE
}

template <class T, int N>
INLINE void binary_gradient(int code, int side, T (&a)[N], const T (&b)[N], const T (&dy)[N], T p) {
#define CASE(CODE)                                                                                 \
    case CODE:                                                                                     \
        _Pragma("unroll") for (int j = 0; j < N; ++j) a[j] =                                       \
            binary_gradient(CODE, side, a[j], b[j], dy[j], p);                                     \
        break;
    switch (code) { FOR_EACH_BINARY(CASE) }
#undef CASE
}
