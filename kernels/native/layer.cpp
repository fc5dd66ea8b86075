// The two blocks of a decoder layer, put together from the calls of gk.h: between them nothing goes back to Python.
#include <cmath>
#include <cstring>

#include "gk.h"
#include "pool.h"

namespace gk {
namespace {

int64_t out_features(const gk_linear& linear) {
    int64_t total = 0;
    for (int64_t i = 0; i < linear.count; i++) total += linear.parts[i].out_features;
    return total;
}

// Rounded to nearest, ties to even; what is not a number becomes a quiet one.
uint16_t to_bfloat(float x) {
    uint32_t bits;
    std::memcpy(&bits, &x, sizeof bits);
    if (std::isnan(x)) return bits >> 16 | 0x40;
    return (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
}

uint16_t to_half(float x) {
    uint32_t bits;
    std::memcpy(&bits, &x, sizeof bits);
    const uint16_t sign = bits >> 16 & 0x8000;
    const float magnitude = std::fabs(x);
    if (std::isnan(x)) return sign | 0x7e00 | (bits >> 13 & 0x3ff);
    if (magnitude >= 65520.0f) return sign | 0x7c00;
    if (magnitude < 0x1p-14f) {
        // Subnormal: adding this leaves the rounded multiple of 2^-24 in the low bits.
        const float shifted = magnitude + 0.5f;
        std::memcpy(&bits, &shifted, sizeof bits);
        return sign | (bits - 0x3f000000);
    }
    bits &= 0x7fffffff;
    return sign | ((bits - (112u << 23) + 0xfff + (bits >> 13 & 1)) >> 13);
}

template <class Stored, class Convert>
void write(const gk_call& call, int64_t width, const float* x, int64_t stride, void* pool, Convert convert) {
    for (int64_t row = 0; row < call.rows; row++) {
        Stored* to = static_cast<Stored*>(pool) + call.slots[row] * width;
        for (int64_t i = 0; i < width; i++) to[i] = convert(x[row * stride + i]);
    }
}

void write_entries(const gk_call& call, int64_t kv, int64_t width, const float* x, int64_t stride, void* pool) {
    if (kv == GK_KV_F16) return write<uint16_t>(call, width, x, stride, pool, to_half);
    if (kv == GK_KV_BF16) return write<uint16_t>(call, width, x, stride, pool, to_bfloat);
    write<float>(call, width, x, stride, pool, [](float value) { return value; });
}

// y = x + delta. y may be x.
void add_rows(int64_t count, const float* x, const float* delta, float* y) {
    for (int64_t i = 0; i < count; i++) y[i] = x[i] + delta[i];
}

}  // namespace
}  // namespace gk

void gk_attention_forward(const gk_attention_block* block, const gk_call* call, void* keys, void* values,
                          const float* x, float* y, int64_t add) {
    using namespace gk;
    const int64_t rows = call->rows, hidden = block->qkv->parts[0].in_features, dim = block->dim;
    const int64_t query = block->heads * dim, kv = block->kv_heads * dim, fused = query + 2 * kv;
    const int64_t width = out_features(*block->o);
    float* normed = scratch<float>(LAYER_INPUT, rows * hidden);
    float* qkv = scratch<float>(LAYER_WIDE, rows * fused);
    float* heads = scratch<float>(LAYER_NARROW, rows * query);
    gk_rms_norm(rows, hidden, x, hidden, block->norm, static_cast<float>(block->eps), normed, hidden);
    gk_linear_forward(block->qkv, rows, normed, hidden, qkv, fused);
    gk_rotate(rows, block->heads + block->kv_heads, dim, qkv, fused, call->cosine, call->sine, 0);
    write_entries(*call, block->kv, kv, qkv + query, fused, keys);
    write_entries(*call, block->kv, kv, qkv + query + kv, fused, values);
    gk_attend(call, block->heads, block->kv_heads, dim, block->kv, keys, values, qkv, fused, heads, query);
    float* out = add ? scratch<float>(LAYER_WIDE, rows * width) : y;
    gk_linear_forward(block->o, rows, heads, query, out, width);
    if (add) add_rows(rows * width, x, out, y);
}

void gk_mlp_forward(const gk_mlp_block* block, int64_t rows, const float* x, float* y, int64_t add) {
    using namespace gk;
    const int64_t hidden = block->gate_up->parts[0].in_features, inner = block->down->parts[0].in_features;
    const int64_t width = out_features(*block->down);
    float* normed = scratch<float>(LAYER_INPUT, rows * hidden);
    float* gate_up = scratch<float>(LAYER_WIDE, rows * 2 * inner);
    float* activated = scratch<float>(LAYER_NARROW, rows * inner);
    gk_rms_norm(rows, hidden, x, hidden, block->norm, static_cast<float>(block->eps), normed, hidden);
    gk_linear_forward(block->gate_up, rows, normed, hidden, gate_up, 2 * inner);
    gk_swiglu(rows, inner, gate_up, 2 * inner, activated);
    float* out = add ? scratch<float>(LAYER_WIDE, rows * width) : y;
    gk_linear_forward(block->down, rows, activated, inner, out, width);
    if (add) add_rows(rows * width, x, out, y);
}
