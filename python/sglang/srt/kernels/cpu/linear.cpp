// y = x W^T + b for few rows, where reading W costs more than the arithmetic.
#include "vec.h"

namespace {

// NB outputs of MB rows: dot products along k, NB * MB of them in registers. With AHEAD the next NB
// rows of W are asked for meanwhile (beyond the end of W this does nothing).
template <int NB, int MB, bool AHEAD>
INLINE void tile(const float* x, const float* w, const float* bias, float* y, int64_t k, int64_t ldx,
                 int64_t ldy) {
  v8 acc[NB][MB] = {};
  const int64_t whole = k & ~int64_t{7};
  for (int64_t i = 0; i < whole; i += 8) {
    v8 xs[MB];
    for (int m = 0; m < MB; m++) xs[m] = load(x + m * ldx + i);
    for (int n = 0; n < NB; n++) {
      const v8 ws = load(w + n * k + i);
      if (AHEAD && i % 16 == 0) __builtin_prefetch(w + (n + NB) * k + i, 0, 2);
      for (int m = 0; m < MB; m++) acc[n][m] += ws * xs[m];
    }
  }
  for (int m = 0; m < MB; m++) {
    for (int n = 0; n < NB; n++) {
      float total = sum(acc[n][m]);
      for (int64_t i = whole; i < k; i++) total += x[m * ldx + i] * w[n * k + i];
      y[m * ldy + n] = total + (bias ? bias[n] : 0.0f);
    }
  }
}

// NB outputs of all rows; the rows of W stay in the first-level cache between tiles.
template <int NB>
INLINE void strip(const float* x, const float* w, const float* bias, float* y, int64_t m, int64_t k,
                  int64_t ldx, int64_t ldy) {
  int64_t i = m < 3 ? m : 3;
  if (m == 1) tile<NB, 1, true>(x, w, bias, y, k, ldx, ldy);
  if (m == 2) tile<NB, 2, true>(x, w, bias, y, k, ldx, ldy);
  if (m >= 3) tile<NB, 3, true>(x, w, bias, y, k, ldx, ldy);
  for (; i + 3 <= m; i += 3) tile<NB, 3, false>(x + i * ldx, w, bias, y + i * ldy, k, ldx, ldy);
  if (m - i == 2) tile<NB, 2, false>(x + i * ldx, w, bias, y + i * ldy, k, ldx, ldy);
  if (m - i == 1) tile<NB, 1, false>(x + i * ldx, w, bias, y + i * ldy, k, ldx, ldy);
}

}  // namespace

// x: [m, k], rows ldx apart; w: [n, k]; bias: [n] or null; y: [m, n], rows ldy apart.
extern "C" void sg_linear(const float* x, const float* w, const float* bias, float* y, int64_t m,
                          int64_t n, int64_t k, int64_t ldx, int64_t ldy) {
#pragma omp parallel for schedule(static)
  for (int64_t block = 0; block < (n + 3) / 4; block++) {
    int64_t j = block * 4;
    if (j + 4 <= n) {
      strip<4>(x, w + j * k, bias ? bias + j : nullptr, y + j, m, k, ldx, ldy);
    } else {
      for (; j < n; j++) strip<1>(x, w + j * k, bias ? bias + j : nullptr, y + j, m, k, ldx, ldy);
    }
  }
}
