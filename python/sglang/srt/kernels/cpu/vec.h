// Eight floats at once, by GCC's and Clang's vector extensions: AVX2 on x86-64, NEON pairs on arm64.
#pragma once
#include <cstdint>
#include <cstring>

#define INLINE static inline __attribute__((always_inline))

typedef float v8 __attribute__((vector_size(32)));
typedef float v8_unaligned __attribute__((vector_size(32), aligned(4), may_alias));
typedef int32_t i8 __attribute__((vector_size(32)));

INLINE v8 load(const float* p) { return *reinterpret_cast<const v8_unaligned*>(p); }
INLINE void store(float* p, v8 x) { *reinterpret_cast<v8_unaligned*>(p) = x; }
INLINE float widen(float x) { return x; }

// The upper half of a float.
struct bf16 {
  uint16_t bits;
};
typedef uint16_t u16_unaligned __attribute__((vector_size(16), aligned(2), may_alias));
typedef uint32_t u8 __attribute__((vector_size(32)));

INLINE float widen(bf16 x) {
  const uint32_t bits = static_cast<uint32_t>(x.bits) << 16;
  float wide;
  std::memcpy(&wide, &bits, sizeof wide);
  return wide;
}
INLINE v8 load(const bf16* p) {
  const u8 bits = __builtin_convertvector(*reinterpret_cast<const u16_unaligned*>(p), u8) << 16;
  v8 wide;
  std::memcpy(&wide, &bits, sizeof wide);
  return wide;
}

INLINE v8 splat(float x) { return v8{} + x; }

// The same order of additions whatever is around it: a row's result depends on the row alone.
INLINE float sum(v8 x) {
  return ((x[0] + x[4]) + (x[2] + x[6])) + ((x[1] + x[5]) + (x[3] + x[7]));
}

// e^x, relative error below 3e-7; 0 for x < -87.3, and x is held at 88.3 above.
// The rest of x after multiples of ln 2 goes through the polynomial of Cephes' expf.
INLINE v8 exp8(v8 x) {
  x = x < splat(88.3f) ? x : splat(88.3f);
  const v8 tiny = x < splat(-87.3f) ? splat(0.0f) : splat(1.0f);
  x = x < splat(-87.3f) ? splat(-87.3f) : x;
  const v8 shifted = x * 1.44269504088896341f + 12582912.0f;  // rounds to an integer: 1.5 * 2^23
  const v8 n = shifted - 12582912.0f;
  const v8 r = x - n * 0.693359375f + n * 2.12194440e-4f;
  v8 p = splat(1.9875691500e-4f);
  p = p * r + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = p * r * r + r + 1.0f;
  const i8 power = (__builtin_convertvector(n, i8) + 127) << 23;
  v8 scale;
  std::memcpy(&scale, &power, sizeof scale);
  return p * scale * tiny;
}

INLINE v8 silu8(v8 x) { return x / (exp8(-x) + 1.0f); }

// Up to eight values, the missing ones zero.
INLINE v8 load_some(const float* p, int64_t count) {
  float part[8] = {};
  std::memcpy(part, p, sizeof(float) * count);
  return load(part);
}
INLINE void store_some(float* p, v8 x, int64_t count) { std::memcpy(p, &x, sizeof(float) * count); }
