// Elementary functions of generated kernels, overloaded on float and double in namespace `m`.
//
// The hot functions on float are polynomials of our own: branch-free, so that loops vectorise with any compiler, within
// 1 to 3 units in the last place, with IEEE results for NaN, infinities, zeros and subnormals. They inline, which a call
// of a vector library does not. The others come from glibc's vector library where there is one, else from the C library.
#pragma once

// Declaring a function `simd` lets a vectorised loop call its vector variants.
#if defined(OPTPASS_LIBMVEC)
#define VECTOR_VARIANTS __attribute__((simd("notinbranch"), const))
#else
#define VECTOR_VARIANTS
#endif

#define DECLARE1(name)                                            \
    extern "C" VECTOR_VARIANTS float name##f(float) noexcept;     \
    extern "C" VECTOR_VARIANTS double name(double) noexcept;      \
    namespace m {                                                 \
    INLINE double name(double x) { return ::name(x); }            \
    }
#define DECLARE2(name)                                                    \
    extern "C" VECTOR_VARIANTS float name##f(float, float) noexcept;      \
    extern "C" VECTOR_VARIANTS double name(double, double) noexcept;      \
    namespace m {                                                         \
    INLINE float name(float x, float y) { return ::name##f(x, y); }       \
    INLINE double name(double x, double y) { return ::name(x, y); }       \
    }
#define LIBRARY(name)                                             \
    DECLARE1(name)                                                \
    namespace m {                                                 \
    INLINE float name(float x) { return ::name##f(x); }           \
    }

DECLARE1(exp) DECLARE1(exp2) DECLARE1(expm1) DECLARE1(log) DECLARE1(log2) DECLARE1(log10) DECLARE1(log1p)
DECLARE1(tanh) DECLARE1(erf)
LIBRARY(sin) LIBRARY(cos) LIBRARY(tan) LIBRARY(asin) LIBRARY(acos) LIBRARY(atan)
LIBRARY(sinh) LIBRARY(cosh) LIBRARY(asinh) LIBRARY(acosh) LIBRARY(atanh) LIBRARY(erfc)
DECLARE2(pow) DECLARE2(atan2)

namespace m {

INLINE float fmod(float x, float y) { return __builtin_fmodf(x, y); }
INLINE double fmod(double x, double y) { return __builtin_fmod(x, y); }

#define BUILTIN(name)                                                \
    INLINE float name(float x) { return __builtin_##name##f(x); }    \
    INLINE double name(double x) { return __builtin_##name(x); }
BUILTIN(sqrt) BUILTIN(floor) BUILTIN(ceil) BUILTIN(trunc) BUILTIN(rint)

INLINE float abs(float x) { return __builtin_fabsf(x); }
INLINE double abs(double x) { return __builtin_fabs(x); }
INLINE float rsqrt(float x) { return 1.0f / __builtin_sqrtf(x); }
INLINE double rsqrt(double x) { return 1.0 / __builtin_sqrt(x); }
INLINE bool isinf(float x) { return __builtin_fabsf(x) == INFINITY; }
INLINE bool isinf(double x) { return __builtin_fabs(x) == INFINITY; }
INLINE bool signbit(float x) { return bits_as<int32_t>(x) < 0; }
INLINE bool signbit(double x) { return bits_as<int64_t>(x) < 0; }
INLINE float copysign(float x, float y) { return __builtin_copysignf(x, y); }
INLINE double copysign(double x, double y) { return __builtin_copysign(x, y); }

// ---- float polynomials; coefficients by a weighted minimax fit of the relative error ----

#if defined(__FP_FAST_FMAF)
INLINE float fma(float a, float b, float c) { return __builtin_fmaf(a, b, c); }
#else
INLINE float fma(float a, float b, float c) { return a * b + c; }
#endif

INLINE float horner(float, float last) { return last; }
template <typename... Rest>
INLINE float horner(float x, float constant, Rest... rest) { return fma(horner(x, rest...), x, constant); }

// Bounds keep NaN: a comparison with it is false.
INLINE float at_least(float x, float low) { return x < low ? low : x; }
INLINE float at_most(float x, float high) { return x > high ? high : x; }

// 2^(k - 127), for a float in the normal range.
INLINE float power_of_two(int32_t k) { return bits_as<float>(k << 23); }

constexpr float LN2_HIGH = 0.693145752f, LN2_LOW = 1.42860677e-6f;

// Adding this rounds to an integer and leaves it, plus BIAS, in the low bits: a shift away from a power of two.
template <int BIAS>
constexpr float ROUND = 12582912.0f + float(BIAS);

// x = (n - BIAS) ln 2 + r with |r| <= ln 2 / 2.
struct Reduced { float r; int32_t n; };
template <int BIAS>
INLINE Reduced reduce_ln2(float x) {
    const float shifted = fma(x, 1.44269504f, ROUND<BIAS>), k = shifted - ROUND<BIAS>;
    return {fma(k, -LN2_LOW, fma(k, -LN2_HIGH, x)), bits_as<int32_t>(shifted)};
}

INLINE float exp_reduced(float r) {
    const float p = horner(r, 0.499999934f, 0.166665201f, 0.0416683942f, 0.00836878047f, 0.00138144663f);
    return fma(r * r, p, r) + 1.0f;
}
// y * 2^(n - 254) in two steps of normal powers: a result outside of the normal range rounds once, or overflows.
INLINE float scaled(float y, int32_t n) { return y * power_of_two(n >> 1) * power_of_two(n - (n >> 1)); }
INLINE float exp(float x) {
    const Reduced a = reduce_ln2<254>(at_most(at_least(x, -104.0f), 89.0f));
    return scaled(exp_reduced(a.r), a.n);
}
// The same for x <= 60, as are differences from a maximum: one scaling by a normal power remains.
INLINE float exp_bounded(float x) {
    const Reduced a = reduce_ln2<127 + 32>(at_least(x, -104.0f));
    return exp_reduced(a.r) * power_of_two(a.n) * 0x1p-32f;
}
INLINE float exp2(float x) {
    const float y = at_most(at_least(x, -151.0f), 129.0f), shifted = y + ROUND<254>, r = y - (shifted - ROUND<254>);
    const float p = horner(r, 0.693147203f, 0.240226479f, 0.0555033216f, 0.0096184386f, 0.00133990035f, 0.000153532579f);
    return scaled(fma(r, p, 1.0f), bits_as<int32_t>(shifted));
}
INLINE float expm1(float x) {
    const Reduced a = reduce_ln2<126>(at_most(at_least(x, -20.0f), 89.0f));
    const float p = horner(a.r, 0.499999981f, 0.166665432f, 0.0416672019f, 0.00836658065f, 0.00138825044f);
    // Half of it, as 2^128 is out of range.
    const float e = fma(a.r * a.r, p, a.r), half = power_of_two(a.n);
    return x == 0.0f ? x : 2.0f * fma(half, e, half - 0.5f);
}

// x = 2^k (1 + f) with 1 + f in [sqrt 1/2, sqrt 2), for x > 0; subnormals are scaled first.
struct Split { float f, k; };
INLINE Split split(float x) {
    const bool tiny = x < 1.17549435e-38f;
    const int32_t u = bits_as<int32_t>(tiny ? x * 8388608.0f : x);
    const int32_t k = (u - 0x3f3504f3) >> 23;
    return {bits_as<float>(u - (k << 23)) - 1.0f, float(tiny ? k - 23 : k)};
}
// log(1 + f) - f
INLINE float log_rest(float f) {
    const float p = horner(f, 0.333333317f, -0.25000821f, 0.200012269f, -0.166233573f, 0.142017582f, -0.131601831f,
                           0.127615756f, -0.0763449302f);
    const float s = f * f;
    return fma(s * f, p, -0.5f * s);
}
// What a logarithm gives outside the positive numbers.
INLINE float log_special(float x, float y) {
    y = x == INFINITY ? x : y;
    y = x == 0.0f ? -INFINITY : y;
    return x < 0.0f ? NAN : (x != x ? x : y);
}
INLINE float log(float x) {
    const Split a = split(x);
    return log_special(x, fma(a.k, LN2_HIGH, fma(a.k, LN2_LOW, log_rest(a.f)) + a.f));
}
// k + log(1 + f) * (high + low), where high has so few bits that the leading product is nearly exact.
INLINE float log_scaled(float f, float k, float high, float low) {
    const float rest = log_rest(f), top = bits_as<float>(bits_as<uint32_t>(f) & 0xfffff000u), bottom = (f - top) + rest;
    return fma(top, high, k + fma(bottom, high, (f + rest) * low));
}
INLINE float log2(float x) {
    const Split a = split(x);
    return log_special(x, log_scaled(a.f, a.k, 1.44238281f, 0.000312227867f));
}
INLINE float log10(float x) {
    const Split a = split(x);
    const float k = fma(a.k, 0.301025391f, a.k * 4.60503907e-6f);
    return log_special(x, log_scaled(a.f, k, 0.434265137f, 2.93449234e-5f));
}
INLINE float log1p(float x) {
    const float u = 1.0f + x, lost = x - (u - 1.0f);
    const Split a = split(u);
    // What rounding 1 + x lost, on the scale of the reduced argument; beyond 2^24 it is all of the 1.
    const float f = a.f + (a.k < 24.0f ? lost * power_of_two(127 - int32_t(a.k)) : 0.0f);
    const float y = fma(a.k, LN2_HIGH, fma(a.k, LN2_LOW, log_rest(f)) + f);
    return x == 0.0f ? x : log_special(u, y);
}

INLINE float tanh(float x) {
    const float e = expm1(2.0f * at_most(__builtin_fabsf(x), 10.0f));
    return __builtin_copysignf(e / (e + 2.0f), x);
}

INLINE float erf(float x) {
    const float s = x * x, t = at_most(__builtin_fabsf(x), 3.95f);
    const float near_zero =
        horner(s, 0.128379154f, -0.376125233f, 0.112821408f, -0.0267789089f, 0.00501196285f, -0.000609036014f);
    // erf t = 1 - exp(-t - t P(t)); the exponent stays far above the subnormals.
    const float p = horner(t, 0.128519953f, 0.635699368f, 0.105286854f, -0.0229060308f, 0.00321997539f, -0.000214595009f);
    const Reduced a = reduce_ln2<127>(fma(-t, p, -t));
    const float far = fma(-exp_reduced(a.r), power_of_two(a.n), 1.0f);
    return s < 0.81f ? fma(x, near_zero, x) : __builtin_copysignf(far, x);
}

}  // namespace m
