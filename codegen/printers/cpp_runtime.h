// What generated kernels call: conversions of narrow floats, integer and NaN-aware helpers, Philox, scratch memory.
// No STL and no PyTorch headers, so that a kernel file compiles in a fraction of a second. Every helper is branch-free
// where a vectorised loop may call it.
#pragma once

#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#ifdef _OPENMP
extern "C" int omp_get_max_threads();
extern "C" int omp_get_num_threads();
extern "C" int omp_get_thread_num();
#else
static inline int omp_get_max_threads() { return 1; }
static inline int omp_get_num_threads() { return 1; }
static inline int omp_get_thread_num() { return 0; }
#endif

#define INFINITY __builtin_inff()
#define NAN __builtin_nanf("")
#define INLINE static inline __attribute__((always_inline))

template <typename To, typename From>
INLINE To bits_as(From from) {
    static_assert(sizeof(To) == sizeof(From), "bits_as keeps the width");
    return __builtin_bit_cast(To, from);
}

// ---- integers: everything wraps at its width, quotients round to minus infinity ----

// Index expressions mix int literals with 64-bit sizes.
template <typename A, typename B> INLINE auto min_int(A a, B b) -> decltype(a + b) { return a < b ? a : b; }
template <typename A, typename B> INLINE auto max_int(A a, B b) -> decltype(a + b) { return a > b ? a : b; }

// The divisor -1 is taken apart because the machine traps on the least integer divided by it.
template <typename T> INLINE bool is_minus_one(T b) { return T(-1) < T(0) && b == T(-1); }
template <typename T> INLINE T trunc_div(T a, T b) { return is_minus_one(b) ? T(T(0) - a) : T(a / b); }
template <typename T> INLINE T trunc_mod(T a, T b) { return is_minus_one(b) ? T(0) : T(a % b); }
template <typename T> INLINE T floor_div(T a, T b) {
    T q = trunc_div(a, b), r = trunc_mod(a, b);
    return T(q - T(r != 0 && (r < 0) != (b < 0)));
}
template <typename T> INLINE T floor_mod(T a, T b) {
    T r = trunc_mod(a, b);
    return T(r + (r != 0 && (r < 0) != (b < 0) ? b : T(0)));
}
INLINE int64_t floor_div(int64_t a, int b) { return floor_div<int64_t>(a, b); }
INLINE int64_t floor_mod(int64_t a, int b) { return floor_mod<int64_t>(a, b); }

// A count outside the width shifts everything out, as it does in ATen.
template <typename T> INLINE T shift_left(T a, T b) {
    const int width = int(8 * sizeof(T));
    return b < 0 || b >= T(width) ? T(0) : T(uint64_t(a) << (b & T(width - 1)));
}
template <typename T> INLINE T shift_right(T a, T b) {
    const int width = int(8 * sizeof(T));
    return T(a >> (b < 0 || b >= T(width) ? T(width - 1) : b));
}

template <typename T> INLINE T pow_int(T base, T exponent) {
    if (exponent < 0) return base == 1 ? T(1) : is_minus_one(base) ? T(exponent & 1 ? -1 : 1) : T(0);
    uint64_t out = 1, square = uint64_t(base);
    for (uint64_t e = uint64_t(exponent); e; e >>= 1, square *= square)
        if (e & 1) out *= square;
    return T(out);
}

// ---- extrema: a NaN operand wins, and of equal operands the second, as in ATen ----

// The larger or smaller number, or whichever is NaN: two compares and a select, of vectors too.
INLINE float max_of(float a, float b) { return (a <= b) | (b != b) ? b : a; }
INLINE float min_of(float a, float b) { return (a >= b) | (b != b) ? b : a; }
INLINE double max_of(double a, double b) { return (a <= b) | (b != b) ? b : a; }
INLINE double min_of(double a, double b) { return (a >= b) | (b != b) ? b : a; }

#pragma omp declare reduction(nan_max : float, double : omp_out = max_of(omp_out, omp_in)) \
    initializer(omp_priv = -INFINITY)
#pragma omp declare reduction(nan_min : float, double : omp_out = min_of(omp_out, omp_in)) \
    initializer(omp_priv = INFINITY)

// ---- narrow floats ----

INLINE float load_bfloat16(uint16_t x) { return bits_as<float>(uint32_t(x) << 16); }
INLINE uint16_t store_bfloat16(float x) {
    uint32_t u = bits_as<uint32_t>(x);
    uint32_t rounded = u + 0x7fffu + ((u >> 16) & 1u);
    return uint16_t((x != x ? 0x7fc00000u : rounded) >> 16);
}

// A format with `M` mantissa bits and exponent bias `B`, sign on top of `W` bits. `TOP` is the magnitude code of the
// first value that is not finite: infinity where `INF`, else NaN. `FNUZ` formats have no -0, whose code is NaN. Values
// out of range become infinity, or NaN (`FNUZ`), or the largest finite value, as in PyTorch.
template <int W, int M, int B, uint32_t TOP, bool INF, bool FNUZ>
struct Narrow {
    INLINE float load(uint32_t x) {
        const uint32_t sign = (x >> (W - 1)) << 31, magnitude = x & ((1u << (W - 1)) - 1u);
        // The code moved to float's place is off by a power of two, subnormals included.
        const float scale = bits_as<float>(uint32_t(127 + 127 - B) << 23);
        const float finite = bits_as<float>(magnitude << (23 - M)) * scale;
        const uint32_t special = INF && magnitude == TOP ? 0x7f800000u : 0x7fc00000u;
        const bool is_special = FNUZ ? x == 1u << (W - 1) : magnitude >= TOP;
        return bits_as<float>(sign | (is_special ? special : bits_as<uint32_t>(finite)));
    }
    INLINE uint32_t store(float x) {
        const uint32_t u = bits_as<uint32_t>(x), magnitude = u & 0x7fffffffu, sign = (u >> 31) << (W - 1);
        const uint32_t rebased = magnitude - (uint32_t(127 - B) << 23);
        const uint32_t normal = (rebased + ((1u << (22 - M)) - 1u) + ((rebased >> (23 - M)) & 1u)) >> (23 - M);
        // Adding a power of two whose unit in the last place is the format's smallest step rounds a subnormal.
        const uint32_t step = uint32_t(127 + 1 - B - M + 23) << 23;
        const uint32_t subnormal = bits_as<uint32_t>(bits_as<float>(magnitude) + bits_as<float>(step)) - step;
        uint32_t code = magnitude < (uint32_t(127 + 1 - B) << 23) ? subnormal : normal;
        const uint32_t nan = FNUZ ? 1u << (W - 1) : (1u << (W - 1)) - 1u, top = INF ? TOP : FNUZ ? nan : TOP - 1;
        code = (code >= TOP) | (magnitude >= 0x7f800000u) ? top : code;
        code = magnitude > 0x7f800000u ? (W == 16 ? 0x7e00u : nan) : code;
        return FNUZ && (code == 0 || code == nan) ? code : code | sign;
    }
};

using Half = Narrow<16, 10, 15, 0x7c00, true, false>;
using E4m3fn = Narrow<8, 3, 7, 0x7f, false, false>;
using E5m2 = Narrow<8, 2, 15, 0x7c, true, false>;
using E4m3fnuz = Narrow<8, 3, 8, 0x80, false, true>;
using E5m2fnuz = Narrow<8, 2, 16, 0x80, false, true>;

INLINE float load_float16(uint16_t x) { return Half::load(x); }
INLINE uint16_t store_float16(float x) { return uint16_t(Half::store(x)); }
INLINE float load_float8_e4m3fn(uint8_t x) { return E4m3fn::load(x); }
INLINE uint8_t store_float8_e4m3fn(float x) { return uint8_t(E4m3fn::store(x)); }
INLINE float load_float8_e5m2(uint8_t x) { return E5m2::load(x); }
INLINE uint8_t store_float8_e5m2(float x) { return uint8_t(E5m2::store(x)); }
INLINE float load_float8_e4m3fnuz(uint8_t x) { return E4m3fnuz::load(x); }
INLINE uint8_t store_float8_e4m3fnuz(float x) { return uint8_t(E4m3fnuz::store(x)); }
INLINE float load_float8_e5m2fnuz(uint8_t x) { return E5m2fnuz::load(x); }
INLINE uint8_t store_float8_e5m2fnuz(float x) { return uint8_t(E5m2fnuz::store(x)); }

// ---- random numbers: Philox-4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3") ----

INLINE float rand_uniform(int64_t seed, int64_t counter) {
    uint32_t k0 = uint32_t(seed), k1 = uint32_t(uint64_t(seed) >> 32);
    uint32_t c0 = uint32_t(counter), c1 = uint32_t(uint64_t(counter) >> 32), c2 = 0, c3 = 0;
    for (int round = 0; round < 10; ++round) {
        const uint64_t p0 = uint64_t(0xD2511F53u) * c0, p1 = uint64_t(0xCD9E8D57u) * c2;
        c0 = uint32_t(p1 >> 32) ^ c1 ^ k0;
        c2 = uint32_t(p0 >> 32) ^ c3 ^ k1;
        c1 = uint32_t(p1);
        c3 = uint32_t(p0);
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    return float(c0 >> 8) * 0x1p-24f;
}

// ---- loops ----

#define STEP __attribute__((always_inline))

// Calls step(c, lane) for c in [low, high), the lane going round: several vectors of accumulators, one for each lane, hide
// the latency of a fold and keep rounding errors of sums small.
template <int LANES, typename Step>
INLINE void each_lane(int64_t low, int64_t high, Step step) {
    for (; low + LANES <= high; low += LANES) {
        #pragma omp simd
        for (int l = 0; l < LANES; ++l) step(low + l, l);
    }
    #pragma omp simd
    for (int l = 0; l < int(high - low); ++l) step(low + l, l);
}
template <int LANES, typename T>
INLINE void fill(T* lanes, T value) {
    #pragma omp simd
    for (int l = 0; l < LANES; ++l) lanes[l] = value;
}
// Combines all lanes into lanes[0].
template <int LANES, typename T, typename Combine>
INLINE T fold_lanes(T* lanes, Combine combine) {
    #pragma GCC unroll 8
    for (int half = LANES / 2; half; half /= 2) {
        #pragma omp simd
        for (int l = 0; l < half; ++l) combine(lanes[l], lanes[l + half]);
    }
    return lanes[0];
}

// ---- memory ----

// Memory that lives as long as its block, aligned to a cache line. `failed` memory must not be touched.
struct Scratch {
    void* data;
    explicit Scratch(size_t bytes) : data(nullptr) {
        if (posix_memalign(&data, 64, bytes ? bytes : 1)) data = nullptr;
    }
    ~Scratch() { free(data); }
    Scratch(const Scratch&) = delete;
    Scratch& operator=(const Scratch&) = delete;
};

INLINE int64_t line(int64_t bytes) { return (bytes + 63) / 64 * 64; }

// Start of share `i` of `k` of `size` elements, at a multiple of `GRAIN`.
template <int64_t GRAIN>
INLINE int64_t share(int64_t size, int64_t i, int64_t k) {
    const int64_t grains = (size + GRAIN - 1) / GRAIN;
    return min_int<int64_t>(grains * i / k * GRAIN, size);
}

template <typename T>
INLINE T* slot(const Scratch& parts, int64_t index, int64_t turn_bytes, int64_t offset) {
    return (T*)((char*)parts.data + index * turn_bytes + offset);
}
