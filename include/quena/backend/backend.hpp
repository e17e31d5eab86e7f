// SPDX-License-Identifier: MIT
// The contract between the model and the hardware: what a backend is. Read this page, then reference.hpp, which says the same
// in plain loops, and examples/custom_backend.cpp, which is a whole backend on one screen.
#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "../core/dtype.hpp"
#include "../core/format.hpp"
#include "../core/tensor.hpp"
#include "../core/token.hpp"
#include "../quant/codes.hpp"
#include "../quant/gguf_blocks.hpp"

namespace quena::inline QUENA_ABI {

using page_id = std::uint32_t;

/// A one-dimensional parameter as it lies in a checkpoint: a norm gain or a bias. Empty when `size` is 0.
struct vector_source {
  dtype type = dtype::f32;
  std::size_t size = 0;
  const std::byte* data = nullptr;
};

/// What a low-rank adapter adds to a matrix: scale * B A  (LoRA: Hu et al. 2021, arXiv:2106.09685).
struct low_rank_delta {
  std::size_t rank = 0;
  const float* a = nullptr;  ///< [rank, cols]
  const float* b = nullptr;  ///< [rows, rank], rows in Hugging Face's order
  double scale = 1;
};

/// A weight matrix [rows, cols] = [out_features, in_features] as it lies in a checkpoint, with its bias if it has one.
struct matrix_source {
  std::string_view name;
  dtype type = dtype::f32;
  std::size_t rows = 0, cols = 0;
  const std::byte* data = nullptr;
  /// 0, or head_dim where the file keeps rotary pairs side by side (GGUF's q and k): then row(r) undoes the permutation.
  std::size_t interleaved_head_dim = 0;
  vector_source bias;
  /// Null, or the rows already rounded to the integer format that the matrix is prepared in, [rows][ceil(cols / 256)], in Hugging Face's
  /// order of rows; data and type are not looked at then.
  const code_block* codes = nullptr;
  std::span<const low_rank_delta> deltas = {};  ///< merged into the rows as they are read

  /// The file's row that holds row r in Hugging Face's order (per head: the first halves of all pairs, then the second halves).
  [[nodiscard]] constexpr std::size_t file_row(std::size_t r) const noexcept {
    if (interleaved_head_dim == 0) return r;
    const std::size_t half = interleaved_head_dim / 2, in_head = r % interleaved_head_dim;
    return r - in_head + 2 * (in_head % half) + in_head / half;
  }
  [[nodiscard]] std::size_t row_bytes() const noexcept { return cols / block_elements(type) * block_bytes(type); }
  [[nodiscard]] const std::byte* row(std::size_t r) const noexcept { return data + file_row(r) * row_bytes(); }
  /// Row r in f32: exactly as stored, or the sum with the deltas, computed in double and rounded once.  out: [cols]
  void row_f32(std::size_t r, float* out) const {
    for (std::size_t k = 0; k < cols; k += code_block_cols) strip_f32(r, k, cols - k < code_block_cols ? cols - k : code_block_cols, out + k);
  }
  /// Columns [k, k + n) of it, of whole blocks; n <= 256.  out: [n]
  void strip_f32(std::size_t r, std::size_t k, std::size_t n, float* out) const {
    dequantize_row(type, row(r) + k / block_elements(type) * block_bytes(type), out, n);
    if (deltas.empty()) return;
    double sums[code_block_cols] = {};
    for (const low_rank_delta& d : deltas)
      for (std::size_t j = 0; j < d.rank; ++j) {
        const double factor = d.scale * static_cast<double>(d.b[r * d.rank + j]);
        const float* const a = d.a + j * cols + k;
        for (std::size_t i = 0; i < n; ++i) sums[i] += factor * static_cast<double>(a[i]);
      }
    for (std::size_t i = 0; i < n; ++i) out[i] = static_cast<float>(static_cast<double>(out[i]) + sums[i]);
  }
  [[nodiscard]] float bias_f32(std::size_t r) const {
    float value = 0;
    if (bias.size != 0) dequantize_row(bias.type, bias.data + file_row(r) * block_bytes(bias.type), &value, 1);
    return value;
  }
};

/// A prepared matrix in a backend's own layout, as an artifact keeps it: a piece of memory that needs no more preparation.
struct packed_part {
  std::size_t rows = 0, cols = 0;  ///< of the product
  std::string_view layout;         ///< the backend's name for how the numbers are kept
  bool gate_up = false;
  std::span<const std::byte> weights, bias;
};

/// The keys and values of a model: for each page, each layer, each KV head, `page_size` positions of `head_dim` cells.
/// Cells of 8 bits are codes with one scale for each position and head, of keys and of values: quant/cells.hpp says how they are rounded.
struct kv_shape {
  std::size_t n_layers = 0, n_kv_heads = 0, head_dim = 0;
  std::size_t page_size = 16;  ///< positions per page, a multiple of 16
  std::size_t n_pages = 0;
  dtype cell = dtype::f32;  ///< f32, f16, bf16 or i8

  /// Bytes of one head's key (or value) at one position: its cells and, if it has one, its scale.
  [[nodiscard]] std::size_t row_bytes() const noexcept { return head_dim * block_bytes(cell) + (cell == dtype::i8 ? sizeof(float) : 0); }
  /// Bytes of keys and values in one page, over all layers.
  [[nodiscard]] std::size_t page_bytes() const noexcept { return 2 * n_layers * n_kv_heads * page_size * row_bytes(); }
};

/// One forward pass, seen from the backend. All arrays are in host memory and live until the pass ends. Rows of one sequence
/// come in the order of their positions; row i attends to positions 0 … positions[i] of its sequence.
struct batch {
  std::span<const token_id> tokens;                                ///< [n_rows]
  std::span<const std::uint32_t> positions;                        ///< [n_rows]
  std::span<const std::uint32_t> sequences;                        ///< [n_rows], an index into page_tables
  std::span<const std::span<const page_id>> page_tables;           ///< [n_sequences][n_pages of that sequence]
  tensor_view<const float, 2> cos, sin;                            ///< [n_rows, head_dim / 2], of the rotary angles
  std::span<const std::uint32_t> selected_rows;                    ///< rows whose final hidden state is wanted, ascending

  [[nodiscard]] std::size_t n_rows() const noexcept { return tokens.size(); }
};

/// What a stream must have room for.
struct stream_limits {
  std::size_t max_rows = 0;       ///< rows in one forward pass
  std::size_t max_width = 0;      ///< widest input or output of a matmul but the logits
  std::size_t n_heads = 0, head_dim = 0;
  std::size_t max_positions = 0;  ///< longest sequence
};

/// A backend owns weights, caches and activations in its own memory and layout; the model only names them. Activations are
/// row-major float views whose data() is an address in the backend's memory (rows may be padded: use the strides).
///
/// Types    matrix  weights in the backend's packed layout       vector  f32 norm gain       buffer  floats, data() gives them
///          kv_pool the pages of one cache                        stream  one order of execution with its scratch memory:
///                  two threads may run two streams of one backend at the same time, never one stream
///
/// Operations (x, y, qkv, out are views; every one is a pure function of its inputs)
///   begin(s, batch)                      announces a pass; the other operations get the same batch
///   embed(s, w, batch, x)                x[i,:] = w[tokens[i],:]                                       x: [n_rows, cols]
///   rmsnorm(s, x, gain, eps, y)          y[i,j] = gain[j] * x[i,j] / sqrt(mean_j x[i,j]^2 + eps)       y may be x
///   matmul(s, w, x, y)                   y[i,r] = sum_k w[r,k] * x[i,k] + bias[r]
///   matmul_add(s, w, x, y)               y[i,r] += sum_k w[r,k] * x[i,k] + bias[r]
///   matmul_swiglu(s, w, x, y)            y[i,r] = silu(g[i,r]) * u[i,r] for w from prepare_gate_up, silu(z) = z / (1 + exp(-z))
///   rope_append(s, qkv, batch, layer, pool)   qkv: [n_rows, (n_heads + 2 n_kv_heads) * head_dim]; rotates q in place and k on
///                                        its way into the cache (element t of a head's first half pairs with t + head_dim/2:
///                                        (a, b) -> (a cos - b sin, b cos + a sin)), and copies v there
///   attend(s, qkv, batch, layer, pool, out)   out[i, h, :] = sum_p softmax_p(q[i,h]·k[p,h'] / sqrt(head_dim)) v[p,h'], p = 0 … positions[i],
///                                        h' = h / (n_heads / n_kv_heads);  out: [n_rows, n_heads * head_dim]
///   select(s, x, batch, y)               y[i,:] = x[selected_rows[i],:]
///   read(s, view, host)                  copies a [n, m] view to host memory, row-major; waits for what it depends on
///   copy_page(s, pool, from, to), read_page(s, pool, page, host), write_page(s, pool, page, host)    all layers of a page
///
/// Determinism   each output element is computed in one order of operations, whatever other rows are in the batch, however many
///               threads run and however large a page is: results are equal bit for bit.
/// Errors        quena::error for shapes that don't match; nothing is written then.
template <class B>
concept backend = std::movable<B> && requires(const B b, typename B::stream& s, const typename B::matrix& w, const typename B::vector& gain,
                                              typename B::buffer& buffer, typename B::kv_pool& pool, const typename B::kv_pool& const_pool,
                                              std::span<const matrix_source> sources, const matrix_source& source, const vector_source& v,
                                              const kv_shape& shape, const batch& rows, const stream_limits& limits, std::size_t n, format f,
                                              tensor_view<const float, 2> x, tensor_view<float, 2> y, float eps, page_id page,
                                              std::span<std::byte> bytes, std::span<const std::byte> const_bytes, std::span<float> host) {
  { b.name() } -> std::convertible_to<std::string_view>;
  { b.make_stream(limits) } -> std::same_as<typename B::stream>;
  { b.allocate(n) } -> std::same_as<typename B::buffer>;
  { buffer.data() } -> std::same_as<float*>;
  { b.prepare(sources, f) } -> std::same_as<typename B::matrix>;                    // the sources' rows stacked; all have the same cols
  { b.prepare_gate_up(source, source, f) } -> std::same_as<typename B::matrix>;     // for matmul_swiglu
  { b.prepare_vector(v) } -> std::same_as<typename B::vector>;
  { w.n_bytes() } -> std::convertible_to<std::size_t>;
  { b.make_kv_pool(shape) } -> std::same_as<typename B::kv_pool>;
  { const_pool.shape() } -> std::convertible_to<const kv_shape&>;

  b.begin(s, rows);
  b.embed(s, w, rows, y);
  b.rmsnorm(s, x, gain, eps, y);
  b.matmul(s, w, x, y);
  b.matmul_add(s, w, x, y);
  b.matmul_swiglu(s, w, x, y);
  b.rope_append(s, y, rows, n, pool);
  b.attend(s, x, rows, n, const_pool, y);
  b.select(s, x, rows, y);
  b.read(s, x, host);
  b.copy_page(s, pool, page, page);
  b.read_page(s, const_pool, page, bytes);
  b.write_page(s, pool, page, const_bytes);
};

/// A backend that can add to gate and up before they meet: what adapters at run time need (model/lora_weights.hpp).
///   matmul_gate_up(s, w, x, y)           y[i,r] = g[i,r], y[i, rows + r] = u[i,r] for w from prepare_gate_up   y: [n_rows, 2 rows]
///   swiglu(s, gate_up, y)                y[i,r] = silu(gate_up[i,r]) * gate_up[i, rows + r]
/// One after the other gives the bits of matmul_swiglu.
template <class B>
concept adapter_backend = backend<B> && requires(const B b, typename B::stream& s, const typename B::matrix& w, tensor_view<const float, 2> x, tensor_view<float, 2> y) {
  b.matmul_gate_up(s, w, x, y);
  b.swiglu(s, x, y);
};

/// A backend whose prepared matrices can be written to a file and used from there without a copy.
///   B::packed_form             names the layout and its version: matrices of another form are another backend's
///   b.parts(m)                 a matrix's pieces, stacked by rows
///   b.adopt(parts, keeper)     the matrix again, on memory that `keeper` keeps alive (null: the caller does)
///   b.values(v)                a vector's values, in host memory
///   b.hash(bytes)              combined_hash() of their hash_pieces()
/// Errors   malformed: an unknown layout, or sizes that do not match.
template <class B>
concept packing_backend = backend<B> && requires(const B b, const typename B::matrix& m, const typename B::vector& v, std::span<const packed_part> parts, std::shared_ptr<const void> keeper,
                                                 std::span<const std::byte> bytes) {
  { B::packed_form } -> std::convertible_to<std::string_view>;
  { b.parts(m) } -> std::same_as<std::vector<packed_part>>;
  { b.adopt(parts, keeper) } -> std::same_as<typename B::matrix>;
  { b.values(v) } -> std::same_as<std::span<const float>>;
  { b.hash(bytes) } -> std::same_as<std::uint64_t>;
};

}  // namespace quena::inline QUENA_ABI
