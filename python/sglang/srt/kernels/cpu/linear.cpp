// y = x W^T + b for few rows, where reading W costs more than the arithmetic.
#include "vec.h"

namespace {

// The part of W that comes next, asked for a cache line at a time, so that reading it from memory
// and computing go on together.
struct Ahead {
  const char* next;
  const char* end;
};

// NB outputs of MB rows: dot products along k, NB * MB of them in registers.
template <int NB, int MB, typename W>
INLINE void tile(const float* x, const W* w, const float* bias, float* y, int64_t k, int64_t ldx,
                 int64_t ldy, Ahead& ahead) {
  v8 acc[NB][MB] = {};
  const int64_t whole = k & ~int64_t{7};
  for (int64_t i = 0; i < whole; i += 8) {
    if (ahead.next < ahead.end) {
      __builtin_prefetch(ahead.next, 0, 2);
      ahead.next += 64;
    }
    v8 xs[MB];
    for (int m = 0; m < MB; m++) xs[m] = load(x + m * ldx + i);
    for (int n = 0; n < NB; n++) {
      const v8 ws = load(w + n * k + i);
      for (int m = 0; m < MB; m++) acc[n][m] += ws * xs[m];
    }
  }
  for (int m = 0; m < MB; m++) {
    for (int n = 0; n < NB; n++) {
      float total = sum(acc[n][m]);
      for (int64_t i = whole; i < k; i++) total += x[m * ldx + i] * widen(w[n * k + i]);
      y[m * ldy + n] = total + (bias ? bias[n] : 0.0f);
    }
  }
}

// NB outputs of all rows; the rows of W stay in the first-level cache between tiles.
template <int NB, typename W>
INLINE void strip(const float* x, const W* w, const float* bias, float* y, int64_t m, int64_t k,
                  int64_t ldx, int64_t ldy, Ahead ahead) {
  int64_t i = 0;
  for (; i + 3 <= m; i += 3) tile<NB, 3>(x + i * ldx, w, bias, y + i * ldy, k, ldx, ldy, ahead);
  if (m - i == 2) tile<NB, 2>(x + i * ldx, w, bias, y + i * ldy, k, ldx, ldy, ahead);
  if (m - i == 1) tile<NB, 1>(x + i * ldx, w, bias, y + i * ldy, k, ldx, ldy, ahead);
}

template <typename W>
void linear(const float* x, const W* w, const float* bias, float* y, int64_t m, int64_t n, int64_t k,
            int64_t ldx, int64_t ldy) {
  // With few rows the processor's own prefetching is ahead of the arithmetic, and better left alone.
  const bool asks = m > 5 || (m > 3 && k <= 1024);
#pragma omp parallel for schedule(static)
  for (int64_t block = 0; block < (n + 3) / 4; block++) {
    int64_t j = block * 4;
    if (j + 4 <= n) {
      const W* after = w + (j + 4) * k;
      const W* end = asks && j + 8 <= n ? after + 4 * k : after;
      const Ahead ahead{reinterpret_cast<const char*>(after), reinterpret_cast<const char*>(end)};
      strip<4>(x, w + j * k, bias ? bias + j : nullptr, y + j, m, k, ldx, ldy, ahead);
    } else {
      for (; j < n; j++)
        strip<1>(x, w + j * k, bias ? bias + j : nullptr, y + j, m, k, ldx, ldy, Ahead{});
    }
  }
}

}  // namespace

// x: [m, k], rows ldx apart; w: [n, k]; bias: [n] or null; y: [m, n], rows ldy apart.
extern "C" void sg_linear(const float* x, const float* w, const float* bias, float* y, int64_t m,
                          int64_t n, int64_t k, int64_t ldx, int64_t ldy) {
  linear(x, w, bias, y, m, n, k, ldx, ldy);
}

// The same with weights in bfloat16; products and sums are fp32.
extern "C" void sg_linear_bf16(const float* x, const bf16* w, const float* bias, float* y, int64_t m,
                               int64_t n, int64_t k, int64_t ldx, int64_t ldy) {
  linear(x, w, bias, y, m, n, k, ldx, ldy);
}
