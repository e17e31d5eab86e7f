// SPDX-License-Identifier: MIT
// All scratch memory of forward(), allocated once; the fields carry the shapes.
#pragma once

#include <algorithm>
#include <span>
#include <string>
#include <vector>

#include "../backend/backend.hpp"
#include "config.hpp"
#include "kv_cache.hpp"
#include "lora_weights.hpp"
#include "rope.hpp"

namespace quena::inline QUENA_ABI {

inline constexpr std::uint32_t no_adapter = 0xffffffff;

/// One row of a forward pass: a token of a sequence at its position.
struct row {
  token_id token = 0;
  std::uint32_t position = 0;
  sequence_id sequence = 0;
  bool wants_logits = false;
  std::uint32_t adapter = no_adapter;  ///< index into the adapters that forward() gets
};

/// Room for one forward pass.
struct workspace_options {
  std::size_t max_rows = 512;  ///< rows in one call
  std::size_t max_logits = 1;  ///< of them with wants_logits
  std::size_t max_rank = 0;    ///< of adapters at run time (lora_weights::max_rank); 0: none
};

namespace detail {

/// Rows of activations in the backend's memory. Rows are padded by a cache line more than their width, so that the same column
/// of neighbouring rows never falls into the same cache set.
template <backend B>
class activation {
 public:
  activation(const B& b, std::size_t max_rows, std::size_t width)
      : width_(width), stride_((width + 15) / 16 * 16 + 16), buffer_(b.allocate(checked_product(max_rows, stride_, "workspace"))) {}
  /// The first n rows: [n, width].
  [[nodiscard]] tensor_view<float, 2> rows(std::size_t n) { return {buffer_.data(), {n, width_}, {static_cast<std::ptrdiff_t>(stride_), 1}}; }

 private:
  std::size_t width_, stride_;
  typename B::buffer buffer_;
};

}  // namespace detail

/// Scratch for one forward pass at a time; make one per thread that runs the model.
template <backend B>
struct workspace {
  workspace(const B& b, const llama_config& c, const kv_cache<B>& cache, const workspace_options& o)
      : max_rows(o.max_rows),
        max_logits(o.max_logits),
        max_rank(o.max_rank),
        max_positions(cache.max_positions()),
        stream(b.make_stream({o.max_rows, widest(c), c.n_heads, c.head_dim, cache.max_positions()})),
        x(b, o.max_rows, c.hidden_size),
        h(b, o.max_rows, c.hidden_size),
        qkv(b, o.max_rows, (c.n_heads + 2 * c.n_kv_heads) * c.head_dim),
        attended(b, o.max_rows, c.n_heads * c.head_dim),
        activated(b, o.max_rows, c.intermediate_size),
        selected(b, o.max_logits, c.hidden_size),
        logits(b, o.max_logits, c.vocab_size),
        low(b, o.max_rank == 0 ? 0 : o.max_rows, o.max_rank),
        gate_up(b, o.max_rank == 0 ? 0 : o.max_rows, 2 * c.intermediate_size),
        cos({o.max_rows, c.head_dim / 2}),
        sin({o.max_rows, c.head_dim / 2}),
        host_logits({o.max_logits, c.vocab_size}),
        host_hidden({o.max_logits, c.hidden_size}) {
    if (o.max_rows == 0) fail(errc::invalid_argument, "workspace", "expected max_rows of at least 1, got 0");
    tokens.reserve(o.max_rows);
    positions.reserve(o.max_rows);
    sequences.reserve(o.max_rows);
    selected_rows.reserve(o.max_logits);
    if (o.max_rank != 0) adapters.reserve(o.max_rows), selected_adapters.reserve(o.max_logits);
    new_lengths.resize(cache.max_sequences());
    page_tables.resize(cache.max_sequences());
  }

  std::size_t max_rows, max_logits, max_rank, max_positions;
  typename B::stream stream;

  // In the backend's memory.
  detail::activation<B> x;          // [max_rows, hidden_size]                            the residual stream
  detail::activation<B> h;          // [max_rows, hidden_size]                            normalised
  detail::activation<B> qkv;        // [max_rows, (n_heads + 2 n_kv_heads) * head_dim]
  detail::activation<B> attended;   // [max_rows, n_heads * head_dim]
  detail::activation<B> activated;  // [max_rows, intermediate_size]                      silu(gate) * up
  detail::activation<B> selected;   // [max_logits, hidden_size]
  detail::activation<B> logits;     // [max_logits, vocab_size]
  detail::activation<B> low;        // [max_rows, max_rank]                               of adapters, as is the next; empty without them
  detail::activation<B> gate_up;    // [max_rows, 2 * intermediate_size]

  // In the host's memory: the batch, and what is read back.
  std::vector<token_id> tokens;
  std::vector<std::uint32_t> positions, sequences, selected_rows;
  std::vector<std::size_t> new_lengths;                    // [max_sequences]; 0: not in this pass
  std::vector<std::span<const page_id>> page_tables;       // [max_sequences]
  tensor<float, 2> cos, sin;                               // [max_rows, head_dim / 2]
  detail::adapter_runs<B> adapters, selected_adapters;     // of all rows, of the selected ones; empty without adapters
  tensor<float, 2> host_logits;                            // [max_logits, vocab_size]
  tensor<float, 2> host_hidden;                            // [max_logits, hidden_size]

  /// Checks the rows, makes room for them in the cache and lays them out for the backend.
  /// Errors   invalid_argument, with the row; context_overflow, out_of_memory from the cache, whose contents stay as they were.
  batch stage(std::span<const row> rows, const llama_config& c, const rope_table& rope, kv_cache<B>& cache, std::span<const lora_weights<B>* const> loaded) {
    const auto bad = [](std::size_t i, const error_message& what) { fail(errc::invalid_argument, "forward", {"row ", i, ": ", what}); };
    if (rows.empty() || rows.size() > max_rows)
      fail(errc::invalid_argument, "forward", {"expected 1 to ", max_rows, " rows, got ", rows.size()});
    const kv_shape& cells = cache.shape();
    if (cache.max_sequences() > new_lengths.size() || cache.max_positions() > max_positions || cells.n_layers != c.n_layers || cells.n_kv_heads != c.n_kv_heads || cells.head_dim != c.head_dim)
      fail(errc::invalid_argument, "forward", "expected the cache that the workspace was made for, or one like it, got another");
    tokens.clear(), positions.clear(), sequences.clear(), selected_rows.clear(), adapters.clear(), selected_adapters.clear();
    std::fill(page_tables.begin(), page_tables.end(), std::span<const page_id>());
    std::fill(new_lengths.begin(), new_lengths.end(), std::size_t{0});
    for (std::size_t i = 0; i < rows.size(); ++i) {
      const row& r = rows[i];
      if (r.token < 0 || static_cast<std::size_t>(r.token) >= c.vocab_size)
        bad(i, {"expected a token in [0, ", c.vocab_size, "), got ", r.token});
      const std::size_t start = cache.length(r.sequence);  // checks the sequence
      std::size_t& length = new_lengths[r.sequence];
      if (length == 0) length = start;
      if (r.position != length)
        bad(i, {"expected position ", length, " of sequence ", r.sequence, ", got ", r.position});
      ++length;
      if (r.wants_logits) {
        if (selected_rows.size() == max_logits) bad(i, {"expected at most ", max_logits, " rows that want logits, got one more"});
        selected_rows.push_back(static_cast<std::uint32_t>(i));
      }
      if (r.adapter != no_adapter) add_adapter(i, r, c, loaded);
      tokens.push_back(r.token), positions.push_back(r.position), sequences.push_back(r.sequence);
      rope.angles(r.position, cos.view()[i].span(), sin.view()[i].span());
    }
    try {
      for (std::size_t s = 0; s < new_lengths.size(); ++s)
        if (new_lengths[s] != 0) {
          cache.reserve(static_cast<sequence_id>(s), new_lengths[s]);
          page_tables[s] = cache.pages(static_cast<sequence_id>(s));
        }
    } catch (...) {
      abandon(cache);
      throw;
    }
    const std::size_t n = rows.size(), half = c.head_dim / 2;
    return {tokens, positions, sequences, page_tables, {cos.data(), {n, half}}, {sin.data(), {n, half}}, selected_rows};
  }

  /// Gives back the pages that stage() took for a pass that does not happen.
  void abandon(kv_cache<B>& cache) {
    for (const std::uint32_t s : sequences) cache.rewind(s, cache.length(s));
  }

 private:
  /// Row i, which has been looked at but for its adapter, joins the runs.
  void add_adapter(std::size_t i, const row& r, const llama_config& c, std::span<const lora_weights<B>* const> loaded) {
    const auto bad = [&](const error_message& what) { fail(errc::invalid_argument, "forward", {"row ", i, ": ", what}); };
    if (r.adapter >= loaded.size()) bad({"expected an adapter below ", loaded.size(), ", got ", r.adapter});
    const lora_weights<B>& weights = *loaded[r.adapter];
    if (weights.n_layers() != c.n_layers || weights.max_rank() > max_rank) bad({"expected an adapter of ", c.n_layers, " layers and a rank of at most ", max_rank, ", got ", weights.n_layers(), " and ", weights.max_rank()});
    const auto join = [&](detail::adapter_runs<B>& runs, std::size_t at) {
      if (!runs.empty() && runs.back().weights == &weights && runs.back().first + runs.back().n == at) ++runs.back().n;
      else runs.push_back({at, 1, &weights});
    };
    join(adapters, i);
    if (r.wants_logits) join(selected_adapters, selected_rows.size() - 1);
  }
  static std::size_t widest(const llama_config& c) {
    return (std::max)({c.hidden_size, c.intermediate_size, (c.n_heads + 2 * c.n_kv_heads) * c.head_dim});
  }
};

}  // namespace quena::inline QUENA_ABI
