// Attention of one new token a row over the paged KV pool: no copy of keys or values is made.
#include <cmath>

#include "vec.h"

namespace {

constexpr int BLOCK = 64;      // tokens between two rescalings of the running sum
constexpr int MAX_GROUP = 64;  // query heads of one key head
constexpr int MAX_DIM = 512;

}  // namespace

// q: [rows, heads, dim]; k, v: [slots, kv_heads, dim / v_dim]; table: page tables, `table_stride`
// slots a row; table_rows, starts, lens: [rows] row of the table, first token seen, tokens there
// are; y: [rows, heads, v_dim]. dim and v_dim are multiples of 8.
// The running softmax is that of arXiv:2205.14135.
extern "C" void sg_attention_decode(const float* q, const float* k, const float* v, const int32_t* table,
                                    const int64_t* table_rows, const int64_t* starts,
                                    const int64_t* lens, float* y, int64_t rows, int64_t heads,
                                    int64_t kv_heads, int64_t dim, int64_t v_dim,
                                    int64_t table_stride, double scale) {
  const int64_t group = heads / kv_heads;
#pragma omp parallel for schedule(dynamic) if (rows * kv_heads > 1)
  for (int64_t task = 0; task < rows * kv_heads; task++) {
    const int64_t row = task / kv_heads, kv_head = task % kv_heads;
    const int32_t* slots = table + table_rows[row] * table_stride;
    const float* queries = q + (row * heads + kv_head * group) * dim;
    float* out = y + (row * heads + kv_head * group) * v_dim;
    alignas(32) float scores[BLOCK];
    float best[MAX_GROUP], total[MAX_GROUP];
    for (int64_t g = 0; g < group; g++) {
      best[g] = -INFINITY;
      total[g] = 0.0f;
    }
    std::memset(out, 0, sizeof(float) * group * v_dim);
    for (int64_t first = starts[row]; first < lens[row]; first += BLOCK) {
      const int count = static_cast<int>(lens[row] - first < BLOCK ? lens[row] - first : BLOCK);
      for (int64_t g = 0; g < group; g++) {
        const float* query = queries + g * dim;
        float highest = best[g];
        for (int t = 0; t < count; t++) {
          const float* key = k + (slots[first + t] * kv_heads + kv_head) * dim;
          v8 product = {};
          for (int64_t i = 0; i < dim; i += 8) product += load(query + i) * load(key + i);
          scores[t] = sum(product) * static_cast<float>(scale);
          highest = scores[t] > highest ? scores[t] : highest;
        }
        for (int t = count; t < BLOCK; t++) scores[t] = -INFINITY;
        const float keep = std::exp(best[g] - highest);
        v8 weights = {};
        for (int t = 0; t < BLOCK; t += 8) {
          const v8 w = exp8(load(scores + t) - highest);
          store(scores + t, w);
          weights += w;
        }
        best[g] = highest;
        total[g] = total[g] * keep + sum(weights);
        v8 mixed[MAX_DIM / 8];
        for (int64_t i = 0; i < v_dim; i += 8) mixed[i / 8] = load(out + g * v_dim + i) * keep;
        for (int t = 0; t < count; t++) {
          const float* value = v + (slots[first + t] * kv_heads + kv_head) * v_dim;
          for (int64_t i = 0; i < v_dim; i += 8) mixed[i / 8] += load(value + i) * scores[t];
        }
        for (int64_t i = 0; i < v_dim; i += 8) store(out + g * v_dim + i, mixed[i / 8]);
      }
    }
    for (int64_t g = 0; g < group; g++)
      for (int64_t i = 0; i < v_dim; i += 8)
        store(out + g * v_dim + i, load(out + g * v_dim + i) / total[g]);
  }
}
