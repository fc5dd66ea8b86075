// The C ABI of glmserve-kernels. Python loads it with ctypes; `GK_ABI_VERSION` changes with every change of it.
//
// Contract: a row of a result depends on its own input row, on the context that it sees and on the weights alone. Its
// bits do not depend on how many rows a call has, where the row stands among them, how many threads there are, or which
// instruction set was chosen. A row that holds NaN or an infinity where it is multiplied becomes NaN, and no other row
// does. Calls may come from any thread; memory belongs to the caller and is not kept beyond a call.
#pragma once
#include <stdint.h>

#define GK_ABI_VERSION 1
#define GK_API extern "C" __attribute__((visibility("default")))

// How weights are stored: GGUF's block types as its file has them, and plain floats.
enum gk_type {
    GK_F32 = 0,
    GK_F16 = 1,
    GK_BF16 = 2,
    GK_Q8_0 = 3,
    GK_Q4_0 = 4,
    GK_Q4_1 = 5,
    GK_Q5_0 = 6,
    GK_Q5_1 = 7,
    GK_Q4_K = 8,
    GK_Q5_K = 9,
    GK_Q6_K = 10,
};

GK_API int32_t gk_abi_version(void);
// The instruction set in use: "avx512", "avx2", "neon" or "portable".
GK_API const char* gk_isa(void);
// Chooses one by name; -1 when this machine or this build has it not.
GK_API int32_t gk_select_isa(const char* name);
// Threads of a call, the calling one included.
GK_API void gk_set_threads(int32_t threads);
GK_API int32_t gk_threads(void);

// ---- Linear layers ----

typedef struct {
    int64_t type;  // gk_type
    int64_t out_features, in_features;
    const void* packed;  // from gk_pack, on a 64-byte boundary
} gk_matrix;

// Matrices side by side on the output axis, all of the same in_features.
typedef struct {
    int64_t count;
    const gk_matrix* parts;
    const float* bias;  // [all out_features] or null
} gk_linear;

// Bytes of the packed form: as many as stored, up to the filling of the last strip. -1 for an unknown type or columns
// that are no whole number of blocks.
GK_API int64_t gk_packed_bytes(int64_t type, int64_t out_features, int64_t in_features);
// stored: [out_features] rows of blocks or floats, contiguous. packed: gk_packed_bytes, on a 64-byte boundary.
GK_API void gk_pack(int64_t type, int64_t out_features, int64_t in_features, const void* stored, void* packed);

// y[rows, out] = x[rows, in] @ W.T + bias. Strides in elements between rows; columns follow one another.
GK_API void gk_linear_forward(const gk_linear* linear, int64_t rows, const float* x, int64_t x_stride, float* y,
                              int64_t y_stride);
// y[rows, in] = the rows `ids` of the matrix, as floats. Ids are valid.
GK_API void gk_embed(const gk_matrix* matrix, int64_t rows, const int64_t* ids, float* y);

// ---- Rows: norms, rotations, activations, top-k. Results may stand where the operand does. ----

// y = x / sqrt(mean(x^2) + eps) * weight
GK_API void gk_rms_norm(int64_t rows, int64_t width, const float* x, int64_t x_stride, const float* weight, float eps,
                        float* y, int64_t y_stride);
// y[rows, inner] = silu(gate) * up of gate_up[rows, 2 * inner], the gate first.
GK_API void gk_swiglu(int64_t rows, int64_t inner, const float* gate_up, int64_t stride, float* y);
// Heads [rows, heads, dim] rotated in place by tables [rows, dim / 2]. half-split: element i with i + dim / 2; pairs:
// 2 i with 2 i + 1, stored first all first members, then all second ones.
GK_API void gk_rotate(int64_t rows, int64_t heads, int64_t dim, float* x, int64_t x_stride, const float* cosine,
                      const float* sine, int64_t pairs);
// The k largest of each row: values and columns, the larger first, of equal ones the lower column. NaN counts as -inf.
GK_API void gk_top_k(int64_t rows, int64_t width, const float* x, int64_t x_stride, int64_t k, float* values,
                     int64_t* columns);

// ---- Attention over pages ----

enum gk_kv { GK_KV_F32 = 0, GK_KV_F16 = 1, GK_KV_BF16 = 2, GK_KV_FLOAT8 = 3 };

// Consecutive rows of one sequence. Row i of a segment sees the entries of positions 0 .. start + i.
typedef struct {
    int64_t first_row, num_rows, start;
    const int64_t* pages;
} gk_segment;

// What all layers of a call share. Entry e of a sequence lies in slot pages[e / page_entries] * page_entries +
// e % page_entries of every pool.
typedef struct {
    int64_t rows, page_entries;
    const float* cosine;  // [rows, dim / 2], the attention factor included
    const float* sine;
    const int64_t* slots;  // [rows]: where each row's entry is written
    int64_t num_segments;
    const gk_segment* segments;
} gk_call;

// Grouped-query attention. q: [rows, heads, dim], rotated, not scaled; pools: [slots, kv_heads, dim] of kv.
// out: [rows, heads, dim].
GK_API void gk_attend(const gk_call* call, int64_t heads, int64_t kv_heads, int64_t dim, int64_t kv, const void* keys,
                      const void* values, const float* q, int64_t q_stride, float* out, int64_t out_stride);

// ---- A decoder layer's two blocks, each one call: norm, linear layers, and what lies between them ----

typedef struct {
    const gk_linear *qkv, *o;
    const float* norm;  // [hidden]
    double eps;
    int64_t heads, kv_heads, dim, kv;
} gk_attention_block;

typedef struct {
    const gk_linear *gate_up, *down;
    const float* norm;  // [hidden]
    double eps;
} gk_mlp_block;

// y = block(x), and with `add` x + block(x), for [rows, hidden]; y may be x. Writes the rows' keys and values first.
GK_API void gk_attention_forward(const gk_attention_block* block, const gk_call* call, void* keys, void* values,
                                 const float* x, float* y, int64_t add);
GK_API void gk_mlp_forward(const gk_mlp_block* block, int64_t rows, const float* x, float* y, int64_t add);
