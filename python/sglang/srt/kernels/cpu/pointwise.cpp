// Norms, gates and rotations: one pass over memory each.
#include <cmath>

#include "vec.h"

namespace {

INLINE float inverse_rms(const float* x, int64_t dim, float eps) {
  v8 squares = {};
  int64_t i = 0;
  for (; i + 8 <= dim; i += 8) squares += load(x + i) * load(x + i);
  if (i < dim) squares += load_some(x + i, dim - i) * load_some(x + i, dim - i);
  return 1.0f / std::sqrt(sum(squares) / static_cast<float>(dim) + eps);
}

}  // namespace

// x: [outer, inner, dim] by strides; w: [dim]; y: the same shape, contiguous.
extern "C" void sg_rms_norm(const float* x, const float* w, float* y, int64_t outer, int64_t inner,
                            int64_t dim, int64_t stride_outer, int64_t stride_inner, double eps) {
#pragma omp parallel for schedule(static) if (outer * inner * dim > 16384)
  for (int64_t row = 0; row < outer * inner; row++) {
    const float* in = x + (row / inner) * stride_outer + (row % inner) * stride_inner;
    float* out = y + row * dim;
    const float scale = inverse_rms(in, dim, static_cast<float>(eps));
    int64_t i = 0;
    for (; i + 8 <= dim; i += 8) store(out + i, load(in + i) * scale * load(w + i));
    for (; i < dim; i++) out[i] = in[i] * scale * w[i];
  }
}

// rms_norm(x) * silu(gate); x: [outer, inner, dim] contiguous, gate by strides.
extern "C" void sg_gated_rms_norm(const float* x, const float* gate, const float* w, float* y,
                                  int64_t outer, int64_t inner, int64_t dim, int64_t gate_outer,
                                  int64_t gate_inner, double eps) {
#pragma omp parallel for schedule(static) if (outer * inner * dim > 16384)
  for (int64_t row = 0; row < outer * inner; row++) {
    const float* in = x + row * dim;
    const float* g = gate + (row / inner) * gate_outer + (row % inner) * gate_inner;
    float* out = y + row * dim;
    const float scale = inverse_rms(in, dim, static_cast<float>(eps));
    for (int64_t i = 0; i < dim; i += 8) {
      const int64_t count = dim - i < 8 ? dim - i : 8;
      const v8 normed = load_some(in + i, count) * scale * load_some(w + i, count);
      store_some(out + i, normed * silu8(load_some(g + i, count)), count);
    }
  }
}

// gate_up: [rows, 2 * n], gate first; y: [rows, n] = silu(gate) * up.
extern "C" void sg_silu_and_mul(const float* gate_up, float* y, int64_t rows, int64_t n,
                                int64_t stride) {
#pragma omp parallel for schedule(static) if (rows * n > 16384)
  for (int64_t row = 0; row < rows; row++) {
    const float* gate = gate_up + row * stride;
    const float* up = gate + n;
    float* out = y + row * n;
    int64_t i = 0;
    for (; i + 8 <= n; i += 8) store(out + i, silu8(load(gate + i)) * load(up + i));
    if (i < n) store_some(out + i, silu8(load_some(gate + i, n - i)) * load_some(up + i, n - i), n - i);
  }
}

// x: [tokens, heads, dim] by strides; cos, sin: [tokens, half]; y contiguous. Halves are pairs.
extern "C" void sg_rotary(const float* x, const float* cos, const float* sin, float* y, int64_t tokens,
                          int64_t heads, int64_t dim, int64_t half, int64_t stride_token,
                          int64_t stride_head) {
#pragma omp parallel for schedule(static) if (tokens * heads * dim > 16384)
  for (int64_t row = 0; row < tokens * heads; row++) {
    const int64_t token = row / heads;
    const float* in = x + token * stride_token + (row % heads) * stride_head;
    const float *c = cos + token * half, *s = sin + token * half;
    float* out = y + row * dim;
    for (int64_t i = 0; i < half; i++) {
      out[i] = in[i] * c[i] - in[half + i] * s[i];
      out[half + i] = in[half + i] * c[i] + in[i] * s[i];
    }
    std::memcpy(out + 2 * half, in + 2 * half, sizeof(float) * (dim - 2 * half));
  }
}
