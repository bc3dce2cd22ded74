// One decode step of a gated delta net (arXiv:2412.06464): convolution, gates, recurrence, norm.
#include <cmath>

#include "vec.h"

namespace {

constexpr int MAX_DIM = 512;


// silu(convolution) of `count` channels from `first` on; their past inputs move on by one.
INLINE void convolve(const float* x, const float* taps, float* state, int64_t first, int64_t count,
                     int64_t kernel, float* out) {
  const int64_t past = kernel - 1;
  for (int64_t c = 0; c < count; c++) {
    const float* tap = taps + (first + c) * kernel;
    float* before = state + (first + c) * past;
    float total = x[first + c] * tap[past];
    for (int64_t i = 0; i < past; i++) total += before[i] * tap[i];
    for (int64_t i = 0; i + 1 < past; i++) before[i] = before[i + 1];
    if (past > 0) before[past - 1] = x[first + c];
    out[c] = total;
  }
  for (int64_t c = 0; c < count; c += 8) store(out + c, silu8(load(out + c)));
}

INLINE void normalise(float* x, int64_t dim, float scale) {
  v8 squares = {};
  for (int64_t i = 0; i < dim; i += 8) squares += load(x + i) * load(x + i);
  scale /= std::sqrt(sum(squares) + 1e-6f);
  for (int64_t i = 0; i < dim; i += 8) store(x + i, load(x + i) * scale);
}

// The state of one value head, [key_dim, value_dim], decays, is written to and read. Goes through
// 8 * WIDTH of its columns, so that as many sums are under way at once.
template <int WIDTH>
INLINE void recur_columns(float* state, const float* q, const float* k, const float* v, float decay,
                          float beta, int64_t key_dim, int64_t value_dim, float* out) {
  v8 stored[WIDTH] = {}, seen[WIDTH] = {}, change[WIDTH];
  for (int64_t i = 0; i < key_dim; i++)
    for (int j = 0; j < WIDTH; j++) stored[j] += load(state + i * value_dim + 8 * j) * k[i];
  for (int j = 0; j < WIDTH; j++) change[j] = (load(v + 8 * j) - stored[j] * decay) * beta;
  for (int64_t i = 0; i < key_dim; i++) {
    for (int j = 0; j < WIDTH; j++) {
      float* place = state + i * value_dim + 8 * j;
      const v8 now = load(place) * decay + change[j] * k[i];
      store(place, now);
      seen[j] += now * q[i];
    }
  }
  for (int j = 0; j < WIDTH; j++) store(out + 8 * j, seen[j]);
}

INLINE void recur(float* state, const float* q, const float* k, const float* v, float decay, float beta,
                  int64_t key_dim, int64_t value_dim, float* out) {
  int64_t j = 0;
  for (; j + 32 <= value_dim; j += 32)
    recur_columns<4>(state + j, q, k, v + j, decay, beta, key_dim, value_dim, out + j);
  for (; j < value_dim; j += 8)
    recur_columns<1>(state + j, q, k, v + j, decay, beta, key_dim, value_dim, out + j);
}

}  // namespace

// x: [rows, ...], `stride` apart, holds q, k, v (side by side), z, b, a of a row; taps: [channels,
// kernel]; conv: [slots, channels, kernel - 1]; states: [slots, value_heads, key_dim, value_dim];
// decay_rate (-exp(A_log)), dt_bias: [value_heads]; norm: [value_dim]; y: [rows, value_heads,
// value_dim]. key_dim and value_dim are multiples of 8 and at most 512.
extern "C" void sg_gated_delta_step(const float* x, const float* taps, float* conv, float* states,
                                    const int64_t* slots, const float* decay_rate,
                                    const float* dt_bias, const float* norm, float* y, int64_t rows,
                                    int64_t stride, int64_t key_heads, int64_t value_heads,
                                    int64_t key_dim, int64_t value_dim, int64_t kernel, double eps) {
  const int64_t keys = key_heads * key_dim, values = value_heads * value_dim;
  const int64_t channels = 2 * keys + values, repeat = value_heads / key_heads;
#pragma omp parallel for schedule(static) if (rows * key_heads > 1)
  for (int64_t task = 0; task < rows * key_heads; task++) {
    const int64_t row = task / key_heads, head = task % key_heads;
    const float* in = x + row * stride;
    const float *z = in + channels, *b = z + values, *a = b + value_heads;
    float* past = conv + slots[row] * channels * (kernel - 1);
    alignas(32) float q[MAX_DIM], k[MAX_DIM], v[MAX_DIM];
    convolve(in, taps, past, head * key_dim, key_dim, kernel, q);
    convolve(in, taps, past, keys + head * key_dim, key_dim, kernel, k);
    normalise(q, key_dim, 1.0f / std::sqrt(static_cast<float>(key_dim)));
    normalise(k, key_dim, 1.0f);
    for (int64_t h = head * repeat; h < (head + 1) * repeat; h++) {
      convolve(in, taps, past, 2 * keys + h * value_dim, value_dim, kernel, v);
      const float dt = a[h] + dt_bias[h];
      const float softplus = dt > 20.0f ? dt : std::log1p(std::exp(dt));
      const float beta = 1.0f / (1.0f + std::exp(-b[h]));
      float* state = states + (slots[row] * value_heads + h) * key_dim * value_dim;
      float* out = y + (row * value_heads + h) * value_dim;
      recur(state, q, k, v, std::exp(softplus * decay_rate[h]), beta, key_dim, value_dim, out);
      v8 squares = {};
      for (int64_t i = 0; i < value_dim; i += 8) squares += load(out + i) * load(out + i);
      const float scale =
          1.0f / std::sqrt(sum(squares) / static_cast<float>(value_dim) + static_cast<float>(eps));
      for (int64_t i = 0; i < value_dim; i += 8)
        store(out + i, load(out + i) * scale * load(norm + i) * silu8(load(z + h * value_dim + i)));
    }
  }
}
