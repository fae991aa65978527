// Elementary functions of generated kernels, overloaded on float and double in namespace `m`.
#pragma once

#include <math.h>

// glibc's vector library: declaring a function `simd` lets a vectorised loop call its vector variants.
#if defined(OPTPASS_LIBMVEC)
#define OPTPASS_VECTOR(function)                                                                   \
    extern "C" __attribute__((simd("notinbranch"), const)) float function##f(float) noexcept;      \
    extern "C" __attribute__((simd("notinbranch"), const)) double function(double) noexcept;
#define OPTPASS_VECTOR2(function)                                                                  \
    extern "C" __attribute__((simd("notinbranch"), const)) float function##f(float, float) noexcept; \
    extern "C" __attribute__((simd("notinbranch"), const)) double function(double, double) noexcept;
OPTPASS_VECTOR(exp) OPTPASS_VECTOR(exp2) OPTPASS_VECTOR(expm1)
OPTPASS_VECTOR(log) OPTPASS_VECTOR(log2) OPTPASS_VECTOR(log10) OPTPASS_VECTOR(log1p)
OPTPASS_VECTOR(sin) OPTPASS_VECTOR(cos) OPTPASS_VECTOR(tan)
OPTPASS_VECTOR(asin) OPTPASS_VECTOR(acos) OPTPASS_VECTOR(atan)
OPTPASS_VECTOR(sinh) OPTPASS_VECTOR(cosh) OPTPASS_VECTOR(tanh)
OPTPASS_VECTOR(asinh) OPTPASS_VECTOR(acosh) OPTPASS_VECTOR(atanh)
OPTPASS_VECTOR(erf) OPTPASS_VECTOR(erfc)
OPTPASS_VECTOR2(pow) OPTPASS_VECTOR2(atan2)
#endif

namespace m {

#define OPTPASS_UNARY(name)                                \
    INLINE float name(float x) { return ::name##f(x); }    \
    INLINE double name(double x) { return ::name(x); }
#define OPTPASS_BINARY(name)                                               \
    INLINE float name(float x, float y) { return ::name##f(x, y); }        \
    INLINE double name(double x, double y) { return ::name(x, y); }

OPTPASS_UNARY(exp) OPTPASS_UNARY(exp2) OPTPASS_UNARY(expm1)
OPTPASS_UNARY(log) OPTPASS_UNARY(log2) OPTPASS_UNARY(log10) OPTPASS_UNARY(log1p)
OPTPASS_UNARY(sin) OPTPASS_UNARY(cos) OPTPASS_UNARY(tanh) OPTPASS_UNARY(erf)
OPTPASS_UNARY(tan) OPTPASS_UNARY(asin) OPTPASS_UNARY(acos) OPTPASS_UNARY(atan)
OPTPASS_UNARY(sinh) OPTPASS_UNARY(cosh) OPTPASS_UNARY(asinh) OPTPASS_UNARY(acosh) OPTPASS_UNARY(atanh)
OPTPASS_UNARY(erfc) OPTPASS_BINARY(pow) OPTPASS_BINARY(atan2) OPTPASS_BINARY(fmod)

#define OPTPASS_BUILTIN(name)                                        \
    INLINE float name(float x) { return __builtin_##name##f(x); }    \
    INLINE double name(double x) { return __builtin_##name(x); }
OPTPASS_BUILTIN(sqrt) OPTPASS_BUILTIN(floor) OPTPASS_BUILTIN(ceil) OPTPASS_BUILTIN(trunc) OPTPASS_BUILTIN(rint)

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

}  // namespace m
