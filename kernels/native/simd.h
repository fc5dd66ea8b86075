// Sixteen lanes of float or int32, whatever the registers of the instruction set that this file is compiled for.
//
// Every operation is the same IEEE operation on each lane in all of them, fused only where `fma` says so: results have
// the same bits everywhere.
#pragma once
#include <cmath>
#include <cstdint>
#include <cstring>

#if defined(__x86_64__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

#ifndef GK_ISA
#error "GK_ISA names the instruction set"
#endif
#define GK_INLINE inline __attribute__((always_inline))
#define GK_UNROLL _Pragma("GCC unroll 16")

namespace gk {
namespace GK_ISA {

constexpr int LANES = 16;
#if defined(__AVX512F__)
constexpr int WIDTH = 16;  // lanes of a register
#elif defined(__AVX2__)
constexpr int WIDTH = 8;
#else
constexpr int WIDTH = 4;
#endif
constexpr int PIECES = LANES / WIDTH;

typedef float FloatPiece __attribute__((vector_size(4 * WIDTH)));
typedef int32_t IntPiece __attribute__((vector_size(4 * WIDTH)));

struct F {
    FloatPiece p[PIECES];
};
struct I {
    IntPiece p[PIECES];
};

#define GK_EACH(expression)                                  \
    GK_UNROLL for (int i = 0; i < PIECES; i++) { expression; }

GK_INLINE F splat(float x) {
    F r;
    GK_EACH(r.p[i] = FloatPiece{} + x)
    return r;
}
GK_INLINE I splat(int32_t x) {
    I r;
    GK_EACH(r.p[i] = IntPiece{} + x)
    return r;
}
GK_INLINE F load(const float* from) {
    F r;
    std::memcpy(&r, from, sizeof r);
    return r;
}
GK_INLINE I load(const int32_t* from) {
    I r;
    std::memcpy(&r, from, sizeof r);
    return r;
}
GK_INLINE void store(float* to, F x) { std::memcpy(to, &x, sizeof x); }
GK_INLINE void store(int32_t* to, I x) { std::memcpy(to, &x, sizeof x); }

// The first n of sixteen, n in [0, 16); the other lanes are `rest`.
GK_INLINE F load_first(const float* from, int n, float rest = 0) {
    float lanes[LANES];
    for (int i = 0; i < LANES; i++) lanes[i] = i < n ? from[i] : rest;
    return load(lanes);
}
GK_INLINE void store_first(float* to, F x, int n) {
    float lanes[LANES];
    store(lanes, x);
    std::memcpy(to, lanes, n * sizeof(float));
}

GK_INLINE F operator+(F a, F b) {
    GK_EACH(a.p[i] += b.p[i])
    return a;
}
GK_INLINE F operator-(F a, F b) {
    GK_EACH(a.p[i] -= b.p[i])
    return a;
}
GK_INLINE F operator*(F a, F b) {
    GK_EACH(a.p[i] *= b.p[i])
    return a;
}
GK_INLINE F operator/(F a, F b) {
    GK_EACH(a.p[i] /= b.p[i])
    return a;
}
// Wraps, as two's complement does.
GK_INLINE I operator+(I a, I b) {
    GK_EACH(a.p[i] += b.p[i])
    return a;
}
GK_INLINE I operator-(I a, I b) {
    GK_EACH(a.p[i] -= b.p[i])
    return a;
}
GK_INLINE I operator&(I a, I b) {
    GK_EACH(a.p[i] &= b.p[i])
    return a;
}
GK_INLINE I operator|(I a, I b) {
    GK_EACH(a.p[i] |= b.p[i])
    return a;
}
GK_INLINE I shift_left(I a, int by) {
    GK_EACH(a.p[i] <<= by)
    return a;
}
// Without the sign.
GK_INLINE I shift_right(I a, int by) {
    typedef uint32_t Bits __attribute__((vector_size(4 * WIDTH)));
    GK_EACH(a.p[i] = (IntPiece)((Bits)a.p[i] >> by))
    return a;
}

// a * b + c, rounded once.
GK_INLINE F fma(F a, F b, F c) {
#if defined(__AVX512F__)
    c.p[0] = (FloatPiece)_mm512_fmadd_ps((__m512)a.p[0], (__m512)b.p[0], (__m512)c.p[0]);
#elif defined(__AVX2__)
    GK_EACH(c.p[i] = (FloatPiece)_mm256_fmadd_ps((__m256)a.p[i], (__m256)b.p[i], (__m256)c.p[i]))
#elif defined(__aarch64__)
    GK_EACH(c.p[i] = (FloatPiece)vfmaq_f32((float32x4_t)c.p[i], (float32x4_t)a.p[i], (float32x4_t)b.p[i]))
#else
    GK_EACH(for (int k = 0; k < WIDTH; k++) c.p[i][k] = __builtin_fmaf(a.p[i][k], b.p[i][k], c.p[i][k]))
#endif
    return c;
}

// a > b ? a : b, lane by lane; b where one of them is not a number.
GK_INLINE F max(F a, F b) {
    GK_EACH(a.p[i] = a.p[i] > b.p[i] ? a.p[i] : b.p[i])
    return a;
}
GK_INLINE F min(F a, F b) {
    GK_EACH(a.p[i] = a.p[i] < b.p[i] ? a.p[i] : b.p[i])
    return a;
}

GK_INLINE F to_float(I x) {
    F r;
    GK_EACH(r.p[i] = __builtin_convertvector(x.p[i], FloatPiece))
    return r;
}
GK_INLINE F bits_to_float(I x) {
    F r;
    std::memcpy(&r, &x, sizeof r);
    return r;
}
GK_INLINE I float_to_bits(F x) {
    I r;
    std::memcpy(&r, &x, sizeof r);
    return r;
}

// The sum of the lanes, always in this order: i with i + 8, then + 4, + 2, + 1.
GK_INLINE float sum(F x) {
    float lanes[LANES];
    store(lanes, x);
    for (int step = LANES / 2; step; step /= 2)
        for (int i = 0; i < step; i++) lanes[i] += lanes[i + step];
    return lanes[0];
}
GK_INLINE float largest(F x) {
    float lanes[LANES];
    store(lanes, x);
    for (int step = LANES / 2; step; step /= 2)
        for (int i = 0; i < step; i++) lanes[i] = lanes[i] > lanes[i + step] ? lanes[i] : lanes[i + step];
    return lanes[0];
}

GK_INLINE float half_to_float(uint16_t half) {
#if defined(__F16C__)
    return _cvtsh_ss(half);
#else
    const uint32_t sign = static_cast<uint32_t>(half & 0x8000) << 16, magnitude = half & 0x7fff;
    uint32_t bits;
    float value;
    if (magnitude >= 0x7c00) {  // infinite or not a number, which becomes quiet
        bits = sign | 0x7f800000 | (magnitude & 0x3ff) << 13 | (magnitude > 0x7c00 ? 0x400000 : 0);
        std::memcpy(&value, &bits, sizeof value);
        return value;
    }
    bits = magnitude << 13;  // as a float: the value times 2^-112, subnormals included
    std::memcpy(&value, &bits, sizeof value);
    value *= 0x1p112f;
    std::memcpy(&bits, &value, sizeof bits);
    bits |= sign;
    std::memcpy(&value, &bits, sizeof value);
    return value;
#endif
}
GK_INLINE F load_half(const uint16_t* from) {
#if defined(__AVX512F__)
    return {{(FloatPiece)_mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)))}};
#elif defined(__F16C__)
    F r;
    GK_EACH(r.p[i] = (FloatPiece)_mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from) + i)))
    return r;
#elif defined(__aarch64__)
    F r;
    GK_EACH(r.p[i] = (FloatPiece)vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(from + 4 * i))))
    return r;
#else
    float lanes[LANES];
    for (int i = 0; i < LANES; i++) lanes[i] = half_to_float(from[i]);
    return load(lanes);
#endif
}
GK_INLINE F load_bfloat(const uint16_t* from) {
    typedef uint16_t Short __attribute__((vector_size(2 * WIDTH)));
    I r;
    GK_UNROLL for (int i = 0; i < PIECES; i++) {
        Short part;
        std::memcpy(&part, from + WIDTH * i, sizeof part);
        r.p[i] = __builtin_convertvector(part, IntPiece) << 16;
    }
    return bits_to_float(r);
}

// e^x within 2 units in the last place; e^-87.3 below it and e^88.3 above. Not a number becomes e^-87.3.
// Range reduction and minimax polynomial of the Cephes library's expf (Moshier).
GK_INLINE F exp(F x) {
    x = min(max(x, splat(-87.3f)), splat(88.3f));
    const F magic = splat(0x1.8p23f);  // adding it rounds to an integer, which stands in the low bits
    const F shifted = fma(x, splat(1.44269504088896341f), magic);
    const F n = shifted - magic;
    x = fma(n, splat(-0.693359375f), x);
    x = fma(n, splat(2.12194440e-4f), x);
    F y = splat(1.9875691500e-4f);
    y = fma(y, x, splat(1.3981999507e-3f));
    y = fma(y, x, splat(8.3334519073e-3f));
    y = fma(y, x, splat(4.1665795894e-2f));
    y = fma(y, x, splat(1.6666665459e-1f));
    y = fma(y, x, splat(5.0000001201e-1f));
    y = fma(y, x * x, x + splat(1.0f));
    return y * bits_to_float(shift_left(float_to_bits(shifted) + splat(127), 23));
}

}  // namespace GK_ISA
}  // namespace gk
