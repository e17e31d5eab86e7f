// SPDX-License-Identifier: MIT
// The Llama model. decoder_layer() and forward() are the whole architecture: read it beside the paper (Touvron et al. 2023, arXiv:2302.13971;
// Dubey et al. 2024, arXiv:2407.21783).
#pragma once

#include <algorithm>
#include <functional>
#include <memory>
#include <stop_token>
#include <utility>

#include "../io/checkpoint.hpp"
#include "llama_weights.hpp"
#include "workspace.hpp"

namespace quena::inline QUENA_ABI {

/// What a forward pass returns, in host memory, until the workspace is used again: a line for each row that wanted logits, in
/// the order of the rows.
struct forward_output {
  tensor_view<const float, 2> logits;  ///< [n_selected, vocab_size]
  tensor_view<const float, 2> hidden;  ///< [n_selected, hidden_size], after the final norm: what the output matrix sees
};

struct forward_options {
  std::stop_token stop = {};  ///< asked before every layer; a stopped pass throws errc::cancelled and leaves the cache as it was
  /// Called after each layer with the residual stream of all rows, [n_rows, hidden_size], in the backend's memory.
  std::function<void(std::size_t layer, tensor_view<const float, 2> x)> on_layer = {};
};

namespace detail {

/// The matrices of a layer, by their inputs.
enum class layer_input : std::uint8_t { qkv_proj, o_proj, gate_up_proj, down_proj };

/// One decoder layer on the residual stream x of a batch; the cache's layer is `l`. observe(layer_input, view) sees what each matrix gets.
template <backend B, class Observe>
void decoder_layer(const B& b, workspace<B>& ws, const batch& batch, const layer_weights<B>& w, float eps, std::size_t l, typename B::kv_pool& pool, Observe&& observe) {
  const std::size_t n = batch.n_rows();
  auto& s = ws.stream;
  const auto x = ws.x.rows(n), h = ws.h.rows(n), qkv = ws.qkv.rows(n), attended = ws.attended.rows(n), activated = ws.activated.rows(n);
  using adapter = typename lora_weights<B>::layer;
  using low_rank = typename lora_weights<B>::pair;
  const auto add = [&](low_rank adapter::* module, tensor_view<const float, 2> from, tensor_view<float, 2> to) {  // of the rows that have one
    add_adapters(b, s, ws.adapters, [&](const lora_weights<B>& a) -> const low_rank& { return a.at(l).*module; }, from, to, ws.low.rows(n));
  };

  b.rmsnorm(s, x, w.input_layernorm, eps, h);                             // h          [n, hidden_size]
  observe(layer_input::qkv_proj, h);
  b.matmul(s, w.qkv_proj, h, qkv);                                        // qkv        [n, (n_heads + 2 n_kv_heads) * head_dim]
  if (!ws.adapters.empty()) {
    const std::size_t q = attended.extent(1), kv = (qkv.extent(1) - q) / 2;
    add(&adapter::q_proj, h, qkv.slice(1, 0, q));
    add(&adapter::k_proj, h, qkv.slice(1, q, kv));
    add(&adapter::v_proj, h, qkv.slice(1, q + kv, kv));
  }
  b.rope_append(s, qkv, batch, l, pool);                                  // q rotated in place; k rotated and v into the cache
  b.attend(s, qkv, batch, l, pool, attended);                             // attended   [n, n_heads * head_dim]
  observe(layer_input::o_proj, attended);
  b.matmul_add(s, w.o_proj, attended, x);                                 // x += o_proj(attended)
  add(&adapter::o_proj, attended, x);

  b.rmsnorm(s, x, w.post_attention_layernorm, eps, h);                    // h          [n, hidden_size]
  observe(layer_input::gate_up_proj, h);
  if (!adapts_gate_up(ws.adapters, l)) {
    b.matmul_swiglu(s, w.gate_up_proj, h, activated);                     // activated  [n, intermediate_size]
  } else if constexpr (adapter_backend<B>) {
    const auto gate_up = ws.gate_up.rows(n);
    const std::size_t width = activated.extent(1);
    b.matmul_gate_up(s, w.gate_up_proj, h, gate_up);                      // gate_up    [n, 2 intermediate_size]
    add(&adapter::gate_proj, h, gate_up.slice(1, 0, width));
    add(&adapter::up_proj, h, gate_up.slice(1, width, width));
    b.swiglu(s, gate_up, activated);
  }
  observe(layer_input::down_proj, activated);
  b.matmul_add(s, w.down_proj, activated, x);                             // x += down_proj(silu(gate) * up)
  add(&adapter::down_proj, activated, x);
}

}  // namespace detail

/// A Llama-family model on a backend. Immutable after construction: any number of threads may call forward() at the same time,
/// each with its own cache and workspace.
template <backend B>
class llama {
 public:
  /// Reads and packs the weights.
  /// Errors   malformed, unsupported: the checkpoint does not hold this architecture, with the tensor's name; out_of_memory.
  /// Cost     each weight is read once; memory: the packed weights and less than one tensor more.
  llama(const checkpoint& files, B b, const weight_options& options = {}) : llama(files, std::make_shared<const B>(std::move(b)), options) {}
  /// The same on a backend that others use, too.
  llama(const checkpoint& files, std::shared_ptr<const B> b, const weight_options& options = {})
      : backend_(std::move(b)), config_(read_config(files)), weights_(load_weights(files, config_, *backend_, options)) {}

  /// From weights that are prepared already (model/quantize.hpp).
  llama(std::shared_ptr<const B> b, llama_config config, llama_weights<B> weights) : backend_(std::move(b)), config_(std::move(config)), weights_(std::move(weights)) {}

  [[nodiscard]] const llama_config& config() const noexcept { return config_; }
  [[nodiscard]] const B& backend() const noexcept { return *backend_; }
  [[nodiscard]] const llama_weights<B>& weights() const noexcept { return weights_; }

  /// Errors   invalid_argument: see kv_cache; out_of_memory.
  [[nodiscard]] kv_cache<B> make_cache(const kv_options& o = {}) const {
    const std::size_t positions = o.max_positions != 0 ? o.max_positions : (std::min)(config_.max_position_embeddings, std::size_t{4096});
    const dtype cell = o.cell.value_or(weights_.stored == format::f32 ? dtype::f32 : dtype::f16);
    kv_shape shape{config_.n_layers, config_.n_kv_heads, config_.head_dim, o.page_size, o.n_pages, cell};
    if (shape.n_pages == 0 && o.page_size != 0)
      shape.n_pages = o.n_bytes != 0 ? o.n_bytes / (std::max)(shape.page_bytes(), std::size_t{1}) : checked_product(o.max_sequences, (positions + o.page_size - 1) / o.page_size, "kv_cache");
    return kv_cache<B>(backend_, shape, positions, o.max_sequences);
  }
  [[nodiscard]] workspace<B> make_workspace(const kv_cache<B>& cache, const workspace_options& o = {}) const {
    return workspace<B>(*backend_, config_, cache, o);
  }

  /// Runs the rows through the model and appends them to their sequences in the cache. Rows of one sequence continue it
  /// without a gap; rows of different sequences may be mixed in any order. row::adapter counts `adapters`, which were made for this model.
  /// Numerics a row's result does not depend, by a bit, on the other rows, on how its sequence was cut into calls, on the page
  ///          size or on the number of threads.
  /// Errors   invalid_argument: a row that does not fit, with its index; context_overflow; out_of_memory (pages); cancelled.
  ///          The sequences keep their lengths then.
  /// Cost     one pass over the weights, plus attention over each row's positions.
  forward_output forward(std::span<const row> rows, kv_cache<B>& cache, workspace<B>& ws, const forward_options& options = {}, std::span<const lora_weights<B>* const> adapters = {}) const {
    const B& b = *backend_;
    const float eps = config_.rms_norm_eps;
    const batch batch = ws.stage(rows, config_, weights_.rope, cache, adapters);
    const std::size_t n = batch.n_rows(), n_selected = batch.selected_rows.size();
    auto& s = ws.stream;
    const auto x = ws.x.rows(n);

    b.begin(s, batch);
    b.embed(s, weights_.embed_tokens, batch, x);                            // x          [n, hidden_size]
    for (std::size_t l = 0; l < config_.n_layers; ++l) {
      if (options.stop.stop_requested()) ws.abandon(cache), fail(errc::cancelled, "forward", {"stopped before layer ", l});
      detail::decoder_layer(b, ws, batch, weights_.layers[l], eps, l, cache.pool(), [](detail::layer_input, tensor_view<const float, 2>) {});
      if (options.on_layer) options.on_layer(l, x);
    }

    const auto selected = ws.selected.rows(n_selected), logits = ws.logits.rows(n_selected);
    if (n_selected != 0) {
      b.select(s, x, batch, selected);                                      // selected   [n_selected, hidden_size]
      b.rmsnorm(s, selected, weights_.norm, eps, selected);
      b.matmul(s, weights_.output(), selected, logits);                     // logits     [n_selected, vocab_size]
      if (!ws.selected_adapters.empty()) detail::add_adapters(b, s, ws.selected_adapters, [](const lora_weights<B>& a) -> const auto& { return a.lm_head(); }, selected, logits, ws.low.rows(n_selected));
    }
    b.read(s, logits, ws.host_logits.span().first(n_selected * config_.vocab_size));
    b.read(s, selected, ws.host_hidden.span().first(n_selected * config_.hidden_size));
    for (std::size_t i = 0; i < ws.new_lengths.size(); ++i)
      if (ws.new_lengths[i] != 0) cache.set_length(static_cast<sequence_id>(i), ws.new_lengths[i]);
    return {{ws.host_logits.data(), {n_selected, config_.vocab_size}}, {ws.host_hidden.data(), {n_selected, config_.hidden_size}}};
  }

 private:
  std::shared_ptr<const B> backend_;
  llama_config config_;
  llama_weights<B> weights_;
};

}  // namespace quena::inline QUENA_ABI
