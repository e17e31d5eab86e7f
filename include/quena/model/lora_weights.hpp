// SPDX-License-Identifier: MIT
// Adapters at run time: beside the weights instead of in them, so that rows of one batch may have different ones.
#pragma once

#include <algorithm>
#include <cstddef>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "../backend/backend.hpp"
#include "../core/error.hpp"
#include "config.hpp"
#include "lora.hpp"

namespace quena::inline QUENA_ABI {

/// B A of one module.
template <backend B>
struct low_rank_pair {
  std::size_t rank = 0;
  typename B::matrix down;  ///< A: [rank, in_features]
  typename B::matrix up;    ///< scale * B: [out_features, rank]
};

/// An adapter in a backend's memory, at one strength. Immutable; llama::forward() takes any number of them.
/// Errors   unsupported: an adapter of gate_proj or up_proj on a backend that is no adapter_backend.
/// Numerics   its matrices are f32 whatever the model's weights are; the scale is multiplied into B, rounded once.
/// Cost       memory: 4 bytes for each number, A's rows filled up to whole panels.
template <backend B>
class lora_weights {
 public:
  using pair = std::optional<low_rank_pair<B>>;
  struct layer {
    pair q_proj, k_proj, v_proj, o_proj, gate_proj, up_proj, down_proj;
  };

  lora_weights(const B& b, const lora_adapter& adapter, const llama_config& c, double scale = 1) : layers_(c.n_layers) {
    const auto prepared = [&](const std::string& module) -> pair {
      const lora_module* const m = adapter.find(module);
      if (m == nullptr || scale == 0) return std::nullopt;
      if (m->a.size() != m->rank * m->cols || m->b.size() != m->rows * m->rank) fail(errc::invalid_argument, "lora", {m->name, ": expected matrices of its rank and shape"}, adapter.path());
      max_rank_ = (std::max)(max_rank_, m->rank);
      std::vector<float> up(m->b.size());
      for (std::size_t i = 0; i < up.size(); ++i) up[i] = static_cast<float>(m->scale * scale * static_cast<double>(m->b[i]));
      const auto matrix = [&](const std::vector<float>& values, std::size_t rows, std::size_t cols) {
        const matrix_source s{.name = m->name, .type = dtype::f32, .rows = rows, .cols = cols, .data = reinterpret_cast<const std::byte*>(values.data()), .bias = {}};
        return b.prepare({&s, 1}, format::f32);
      };
      return low_rank_pair<B>{m->rank, matrix(m->a, m->rank, m->cols), matrix(up, m->rows, m->rank)};
    };
    for (std::size_t l = 0; l < c.n_layers; ++l) {
      const std::string at = "model.layers." + std::to_string(l) + ".";
      layer& w = layers_[l];
      w.q_proj = prepared(at + "self_attn.q_proj"), w.k_proj = prepared(at + "self_attn.k_proj"), w.v_proj = prepared(at + "self_attn.v_proj"), w.o_proj = prepared(at + "self_attn.o_proj");
      w.gate_proj = prepared(at + "mlp.gate_proj"), w.up_proj = prepared(at + "mlp.up_proj"), w.down_proj = prepared(at + "mlp.down_proj");
    }
    lm_head_ = prepared("lm_head");
    if constexpr (!adapter_backend<B>)
      for (const layer& w : layers_)
        if (w.gate_proj || w.up_proj) fail(errc::unsupported, "lora", {"expected a backend that can add to gate and up, got ", b.name()}, adapter.path());
  }

  [[nodiscard]] const layer& at(std::size_t l) const { return layers_[l]; }
  [[nodiscard]] std::size_t n_layers() const noexcept { return layers_.size(); }
  [[nodiscard]] const pair& lm_head() const noexcept { return lm_head_; }
  /// What workspace_options::max_rank must be at least.
  [[nodiscard]] std::size_t max_rank() const noexcept { return max_rank_; }

 private:
  std::vector<layer> layers_;
  pair lm_head_;
  std::size_t max_rank_ = 0;
};

namespace detail {

/// Neighbouring rows with one adapter.
template <backend B>
struct adapter_run {
  std::size_t first = 0, n = 0;
  const lora_weights<B>* weights = nullptr;
};

/// The adapters of a batch, or of its selected rows.
template <backend B>
using adapter_runs = std::vector<adapter_run<B>>;

/// Whether one of them adds to gate or up in a layer.
template <backend B>
bool adapts_gate_up(const adapter_runs<B>& runs, std::size_t l) {
  return std::any_of(runs.begin(), runs.end(), [&](const adapter_run<B>& run) { return run.weights->at(l).gate_proj || run.weights->at(l).up_proj; });
}

/// y[i,:] += up (down x[i,:]) for the rows of every run that has the module: get(adapter) says which pair.   low: [n_rows, max_rank]
template <backend B, class Get>
void add_adapters(const B& b, typename B::stream& s, const adapter_runs<B>& runs, Get&& get, tensor_view<const float, 2> x, tensor_view<float, 2> y, tensor_view<float, 2> low) {
  for (const adapter_run<B>& run : runs) {
    const auto& pair = get(*run.weights);
    if (!pair) continue;
    const tensor_view<float, 2> t = low.slice(0, 0, run.n).slice(1, 0, pair->rank);
    b.matmul(s, pair->down, x.slice(0, run.first, run.n), t);
    b.matmul_add(s, pair->up, t, y.slice(0, run.first, run.n));
  }
}

}  // namespace detail
}  // namespace quena::inline QUENA_ABI
