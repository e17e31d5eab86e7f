// SPDX-License-Identifier: MIT
// Rounding a model's weights to integers with care: layer by layer, so that only one layer is ever there in floats. Where a method needs
// data, each layer sees what the rounded layers before it make of the calibration text.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <new>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "../backend/cpu/cpu.hpp"
#include "../core/eigen.hpp"
#include "../quant/gptq.hpp"
#include "../quant/rounding.hpp"
#include "llama.hpp"

namespace quena::inline QUENA_ABI {

/// What rounding did to one matrix.
struct matrix_report {
  std::string name;
  double weight_error = 0;                   ///< |dW| / |W|, Frobenius
  std::optional<double> output_error = {};   ///< |dW x| / |W x| over the calibration text, where there is one
};

struct quantize_options {
  quena::format format = quena::format::int4;  ///< an integer format
  /// Of the output matrix, and of the embedding if that is the same; none: `format`. Few weights that matter most.
  std::optional<quena::format> output = {};
  quant_method method = quant_method::search;
  std::span<const token_id> calibration = {};  ///< tokens of a text like those that the model will see; some ten thousand are enough
  std::size_t window = 512;                    ///< it is read in pieces of so many tokens
  std::function<void(double fraction)> progress = {};
  std::function<void(const matrix_report&)> report = {};
};

namespace detail {

/// The second moments of a matrix's inputs, H = sum x x^T over the rows seen.
struct input_moments {
  float_matrix H;
  std::size_t n_rows = 0;

  void add(tensor_view<const float, 2> x) {
    const auto cols = static_cast<Eigen::Index>(x.extent(1));
    if (n_rows == 0) H.setZero(cols, cols);
    n_rows += x.extent(0);
    H.selfadjointView<Eigen::Lower>().rankUpdate(as_eigen(x).transpose());
  }
  /// Both halves, after the last row.
  void finish() { H.triangularView<Eigen::StrictlyUpper>() = H.transpose(); }
};

/// A tensor's rows in floats, with factors for its rows and columns (AWQ); empty: none.
struct scaled_rows {
  matrix_source source;
  std::vector<float> row_factors = {}, col_factors = {};

  void row(std::size_t r, float* out) const {
    source.row_f32(r, out);
    const float by = row_factors.empty() ? 1.0f : row_factors[r];
    for (std::size_t j = 0; j < source.cols; ++j) out[j] *= by * (col_factors.empty() ? 1.0f : col_factors[j]);
  }
};

class model_quantizer {
 public:
  model_quantizer(const checkpoint& files, std::shared_ptr<const cpu> b, const quantize_options& o)
      : files_(files), b_(std::move(b)), o_(o), config_(read_config(files)), run_(default_executor(b_->concurrency())), rope_(config_.rope, config_.head_dim, 0) {
    if (!codes_of(o.format) || (o.output && !codes_of(*o.output)))
      fail(errc::invalid_argument, "quantize", {"expected an integer format, got ", format_name(codes_of(o.format) ? *o.output : o.format)}, files.path());
    if (files.artifact() != nullptr) fail(errc::unsupported, "quantize", "expected a checkpoint with its own weights, got an artifact", files.path());
    if (o.window < 2) fail(errc::invalid_argument, "quantize", {"expected a window of at least 2 tokens, got ", o.window});
    check_tensors(files, config_);
    if (!needs_data(o.method)) return;
    window_ = (std::min)({o.window, o.calibration.size(), config_.max_position_embeddings});
    if (window_ < 2) fail(errc::invalid_argument, "quantize", {"expected calibration tokens for method ", quant_method_name(o.method), ", got ", o.calibration.size()});
    n_tokens_ = o.calibration.size() / window_ * window_;
  }

  llama<cpu> run() {
    llama_weights<cpu> w{.stored = o_.format, .rope = rope_, .embed_tokens = {}, .layers = {}, .norm = b_->prepare_vector(vector("model.norm.weight")), .lm_head = {}};
    llama_config one = config_;  // a cache and scratch for a single layer
    one.n_layers = 1;
    const std::size_t room = (std::max)(window_, std::size_t{1});
    kv_cache<cpu> cache(b_, {1, config_.n_kv_heads, config_.head_dim, 16, (room + 15) / 16, dtype::f32}, room, 1);
    workspace<cpu> ws(*b_, one, cache, {.max_rows = room, .max_logits = 1});
    const sequence_id sequence = cache.add();
    tensor<float, 2> x({n_tokens_, config_.hidden_size});  // the residual stream of the whole text
    std::vector<row> rows;
    // f(batch, rows of x in the workspace) for each window; what it made of x is kept, or not.
    const auto each_window = [&](bool keep, auto&& f) {
      for (std::size_t first = 0; first < n_tokens_; first += window_) {
        rows.clear();
        for (std::size_t i = 0; i < window_; ++i) rows.push_back({o_.calibration[first + i], static_cast<std::uint32_t>(i), sequence, false});
        const batch batch = ws.stage(rows, one, rope_, cache, {});
        const tensor_view<float, 2> here = ws.x.rows(window_);
        for (std::size_t i = 0; i < window_; ++i) std::copy_n(x.view()[first + i].data(), config_.hidden_size, here[i].data());
        f(batch, here);
        if (keep) for (std::size_t i = 0; i < window_; ++i) std::copy_n(here[i].data(), config_.hidden_size, x.view()[first + i].data());
        ws.abandon(cache);
      }
    };
    const auto through = [&](bool keep, const layer_weights<cpu>& layer, auto&& observe) {
      each_window(keep, [&](const batch& batch, tensor_view<float, 2>) { decoder_layer(*b_, ws, batch, layer, config_.rms_norm_eps, 0, cache.pool(), observe); });
    };

    if (n_tokens_ != 0) {
      const matrix_source source = matrix("model.embed_tokens");
      const cpu::matrix embed = b_->prepare(std::span(&source, 1), format::automatic);
      each_window(true, [&](const batch& batch, tensor_view<float, 2> here) { b_->embed(ws.stream, embed, batch, here); });
    }
    for (std::size_t l = 0; l < config_.n_layers; ++l) {
      std::vector<input_moments> seen(4);
      if (n_tokens_ != 0) {
        through(false, exact_layer(l), [&](layer_input i, tensor_view<const float, 2> in) { seen[static_cast<std::size_t>(i)].add(in); });
        for (input_moments& m : seen) m.finish();
        for (const input_moments& m : seen)
          if (!m.H.allFinite()) fail(errc::non_finite, "quantize", {"expected finite activations on the calibration text, got others in layer ", l}, files_.path());
      }
      w.layers.push_back(rounded_layer(l, seen));
      through(true, w.layers.back(), [](layer_input, tensor_view<const float, 2>) {});
      advance(l + 1);
    }

    input_moments last;
    each_window(false, [&](const batch&, tensor_view<float, 2> here) {
      b_->rmsnorm(ws.stream, here, w.norm, config_.rms_norm_eps, here);
      last.add(here);
    });
    if (n_tokens_ != 0) last.finish();
    const format output = o_.output.value_or(o_.format);
    const std::string_view output_name = config_.tie_word_embeddings ? "model.embed_tokens" : "lm_head";
    (config_.tie_word_embeddings ? w.embed_tokens : w.lm_head.emplace()) = rounded({{matrix(std::string(output_name))}}, output, last, false);
    if (!config_.tie_word_embeddings) w.embed_tokens = rounded({{matrix("model.embed_tokens")}}, o_.format, {}, false);
    advance(config_.n_layers + 1);
    return llama<cpu>(b_, config_, std::move(w));
  }

 private:
  void advance(std::size_t done) const {
    if (o_.progress) o_.progress(static_cast<double>(done) / static_cast<double>(config_.n_layers + 1));
  }
  [[nodiscard]] vector_source vector(const std::string& name) const { return as_vector(*files_.find(name)); }
  [[nodiscard]] matrix_source matrix(const std::string& module) const { return module_source(files_, module); }
  [[nodiscard]] std::string layer_name(std::size_t l) const { return "model.layers." + std::to_string(l) + "."; }

  [[nodiscard]] layer_weights<cpu> exact_layer(std::size_t l) const {
    const std::string layer = layer_name(l), attention = layer + "self_attn.", mlp = layer + "mlp.";
    const matrix_source qkv[] = {matrix(attention + "q_proj"), matrix(attention + "k_proj"), matrix(attention + "v_proj")};
    const matrix_source o[] = {matrix(attention + "o_proj")}, down[] = {matrix(mlp + "down_proj")};
    constexpr format as_is = format::automatic;
    return {b_->prepare_vector(vector(layer + "input_layernorm.weight")), b_->prepare(qkv, as_is), b_->prepare(o, as_is), b_->prepare_vector(vector(layer + "post_attention_layernorm.weight")),
            b_->prepare_gate_up(matrix(mlp + "gate_proj"), matrix(mlp + "up_proj"), as_is), b_->prepare(down, as_is)};
  }

  [[nodiscard]] layer_weights<cpu> rounded_layer(std::size_t l, std::vector<input_moments>& seen) {
    const std::string layer = layer_name(l), attention = layer + "self_attn.", mlp = layer + "mlp.";
    std::vector<scaled_rows> qkv = {{matrix(attention + "q_proj")}, {matrix(attention + "k_proj")}, {matrix(attention + "v_proj")}}, o = {{matrix(attention + "o_proj")}},
                             gate_up = {{matrix(mlp + "gate_proj")}, {matrix(mlp + "up_proj")}}, down = {{matrix(mlp + "down_proj")}};
    layer_weights<cpu> w{.input_layernorm = b_->prepare_vector(vector(layer + "input_layernorm.weight")), .qkv_proj = {}, .o_proj = {},
                         .post_attention_layernorm = b_->prepare_vector(vector(layer + "post_attention_layernorm.weight")), .gate_up_proj = {}, .down_proj = {}};
    if (o_.method == quant_method::awq) {
      // A factor s for an input channel moves into the columns; 1/s into what makes that channel: v's rows, up's rows, norm gains. v's
      // rows serve several heads, so their factors are shared.
      const std::size_t per_kv = config_.n_heads / config_.n_kv_heads, dim = config_.head_dim;
      const auto kv_row = [&](std::size_t j) { return j / dim / per_kv * dim + j % dim; };
      scale_columns(o, seen[1], config_.n_kv_heads * dim, kv_row, &qkv[2]);
      scale_columns(down, seen[3], config_.intermediate_size, [](std::size_t j) { return j; }, &gate_up[1]);
      scale_columns(qkv, seen[0], config_.hidden_size, [](std::size_t j) { return j; }, nullptr, &w.input_layernorm);
      scale_columns(gate_up, seen[2], config_.hidden_size, [](std::size_t j) { return j; }, nullptr, &w.post_attention_layernorm);
    }
    w.qkv_proj = rounded(qkv, o_.format, seen[0], false);
    w.o_proj = rounded(o, o_.format, seen[1], false);
    w.gate_up_proj = rounded(gate_up, o_.format, seen[2], true);
    w.down_proj = rounded(down, o_.format, seen[3], false);
    return w;
  }

  /// f(i) for i in [0, n), on all threads.
  template <class F>
  void parallel(std::size_t n, F&& f) const {
    std::atomic<bool> failed{false};
    std::exception_ptr first;
    const auto task = [&](std::size_t i) {  // an executor's threads let no exception through
      if (!failed.load()) try {
          f(i);
        } catch (...) {
          if (!failed.exchange(true)) first = std::current_exception();
        }
    };
    if (n != 0) run_.run(n, {&task, [](const void* t, std::size_t i) { (*static_cast<const decltype(task)*>(t))(i); }});
    if (first) std::rethrow_exception(first);
  }

  /// Rounds stacked tensors that share their inputs. The inputs' memory is given up.
  [[nodiscard]] cpu::matrix rounded(const std::vector<scaled_rows>& tensors, format f, input_moments&& in, bool gate_up) const { return rounded(tensors, f, in, gate_up); }
  [[nodiscard]] cpu::matrix rounded(const std::vector<scaled_rows>& tensors, format f, input_moments& in, bool gate_up) const {
    const code_format codes = *codes_of(f);
    const std::size_t cols = tensors.front().source.cols, n_groups = (cols + group_columns(codes, cols) - 1) / group_columns(codes, cols), n_blocks = (cols + code_block_cols - 1) / code_block_cols;
    const bool data = in.n_rows != 0, solve = data && o_.method == quant_method::gptq;
    std::vector<float> importance(data ? cols : 0);
    for (std::size_t j = 0; j < importance.size(); ++j) importance[j] = in.H(static_cast<Eigen::Index>(j), static_cast<Eigen::Index>(j));
    const float least = 1e-6f * (importance.empty() ? 0 : *std::max_element(importance.begin(), importance.end()));
    for (float& h : importance) h = (std::max)(h, least);  // no column is worth nothing
    std::optional<gptq_inputs> inputs;
    if (solve) inputs.emplace(in.H);

    std::vector<std::vector<code_block>> blocks;
    std::vector<matrix_source> sources;
    for (const scaled_rows& t : tensors) {
      const std::size_t rows = t.source.rows, chunk = 64, n_chunks = (rows + chunk - 1) / chunk;
      std::vector<code_block>& out = blocks.emplace_back(rows * n_blocks);
      std::vector<std::array<double, 4>> errors(n_chunks);  // |dW|^2, |W|^2, tr(dW H dW^T), tr(W H W^T)
      parallel(n_chunks, [&](std::size_t c) {
        const std::size_t first = c * chunk, n = (std::min)(chunk, rows - first);
        float_matrix w(static_cast<Eigen::Index>(n), static_cast<Eigen::Index>(cols));
        std::vector<group_fit> fits(n * n_groups);
        std::vector<std::uint8_t> chosen(n * cols);
        for (std::size_t r = 0; r < n; ++r) {
          float* const row = w.data() + r * cols;
          t.row(first + r, row);
          fit_row(codes, o_.method, {row, cols}, data ? importance.data() : nullptr, std::span(fits).subspan(r * n_groups, n_groups));
          if (!solve) round_row(codes, {row, cols}, std::span<const group_fit>(fits).subspan(r * n_groups, n_groups), std::span(chosen).subspan(r * cols, cols));
        }
        if (solve) gptq_round(codes, *inputs, w, fits, chosen);
        float_matrix off = w;
        for (std::size_t r = 0; r < n; ++r) {
          code_block* const to = out.data() + (first + r) * n_blocks;
          make_blocks(codes, std::span<const std::uint8_t>(chosen).subspan(r * cols, cols), std::span<const group_fit>(fits).subspan(r * n_groups, n_groups), to);
          std::vector<float> back(cols);
          for (std::size_t b = 0; b < n_blocks; ++b) decode_block(codes, to[b], (std::min)(code_block_cols, cols - b * code_block_cols), back.data() + b * code_block_cols);
          for (std::size_t j = 0; j < cols; ++j) off.data()[r * cols + j] -= back[j];
        }
        errors[c] = {static_cast<double>(off.squaredNorm()), static_cast<double>(w.squaredNorm()), 0, 0};
        if (data && o_.report) errors[c][2] = output_norm(off, in), errors[c][3] = output_norm(w, in);
      });
      std::array<double, 4> sum{};
      for (const auto& e : errors) for (std::size_t i = 0; i < 4; ++i) sum[i] += e[i];
      if (!std::isfinite(sum[0])) fail(errc::non_finite, "quantize", {t.source.name, ": expected weights whose scales fit in f16, got larger ones"}, files_.path());
      if (o_.report) {
        o_.report({std::string(t.source.name), std::sqrt(sum[0] / (std::max)(sum[1], 1e-300)), data ? std::optional(std::sqrt(sum[2] / (std::max)(sum[3], 1e-300))) : std::nullopt});
      }
      sources.push_back(t.source);
    }
    for (std::size_t i = 0; i < sources.size(); ++i) sources[i].codes = blocks[i].data();
    std::vector<std::vector<float>> biases(sources.size());
    for (std::size_t i = 0; i < sources.size(); ++i) {
      if (sources[i].bias.size == 0 || tensors[i].row_factors.empty()) continue;
      // A bias is scaled with its rows; bias_f32 undoes the file's order of rows, so it is written in Hugging Face's.
      for (std::size_t r = 0; r < sources[i].rows; ++r) biases[i].push_back(sources[i].bias_f32(r) * tensors[i].row_factors[r]);
      sources[i].bias = {.type = dtype::f32, .size = biases[i].size(), .data = reinterpret_cast<const std::byte*>(biases[i].data())};
      sources[i].interleaved_head_dim = 0;
    }
    return gate_up ? b_->prepare_gate_up(sources[0], sources[1], f) : b_->prepare(sources, f);
  }

  static void round_row(const code_format& f, std::span<const float> w, std::span<const group_fit> fits, std::span<std::uint8_t> codes) noexcept {
    const std::size_t group = group_columns(f, w.size());
    for (std::size_t j = 0; j < w.size(); ++j) codes[j] = code_of(f, fits[j / group], inverse_or_zero(fits[j / group].scale), w[j]);
  }
  /// tr(W H W^T)
  static double output_norm(const float_matrix& w, const input_moments& in) { return static_cast<double>((w * in.H).cwiseProduct(w).sum()); }

  /// AWQ: factors s_j = (mean square of input j)^(a/2), with the a that changes the output of some rows least, for the columns of `tensors`;
  /// 1/s for the rows of `maker` or for the gain. Columns with one shared(j) have one factor.
  /// Source   Lin et al. 2023, arXiv:2306.00978; root mean squares in place of mean magnitudes, since H is at hand.
  template <class Shared>
  void scale_columns(std::vector<scaled_rows>& tensors, input_moments& in, std::size_t n_factors, Shared&& shared, scaled_rows* maker, cpu::vector* gain = nullptr) const {
    const std::size_t cols = tensors.front().source.cols;
    const code_format codes = *codes_of(o_.format);
    std::vector<double> strength(n_factors, 0);
    for (std::size_t j = 0; j < cols; ++j) strength[shared(j)] += static_cast<double>(in.H(static_cast<Eigen::Index>(j), static_cast<Eigen::Index>(j)));
    const double strongest = *std::max_element(strength.begin(), strength.end());
    if (!(strongest > 0)) return;
    for (double& s : strength) s = std::sqrt((std::max)(s / strongest, 1e-8));

    constexpr std::size_t n_steps = 16, sample = 48;
    std::vector<float> factors[n_steps];
    std::vector<double> errors(n_steps, 0);
    parallel(n_steps, [&](std::size_t step) {
      std::vector<float>& s = factors[step];
      double log_mean = 0;
      for (const double x : strength) s.push_back(static_cast<float>(std::pow(x, static_cast<double>(step) / n_steps))), log_mean += std::log(static_cast<double>(s.back()));
      const auto mean = static_cast<float>(std::exp(log_mean / static_cast<double>(n_factors)));
      for (float& x : s) x /= mean;
      std::vector<float> row(cols), scaled(cols), h(cols);
      std::vector<group_fit> fits((cols + group_columns(codes, cols) - 1) / group_columns(codes, cols));
      std::vector<std::uint8_t> chosen(cols);
      for (std::size_t j = 0; j < cols; ++j) h[j] = in.H(static_cast<Eigen::Index>(j), static_cast<Eigen::Index>(j)) / (s[shared(j)] * s[shared(j)]) + 1e-20f;
      for (const scaled_rows& t : tensors)
        for (std::size_t i = 0; i < sample && i < t.source.rows; ++i) {
          t.row(i * t.source.rows / (std::min)(sample, t.source.rows), row.data());
          for (std::size_t j = 0; j < cols; ++j) scaled[j] = row[j] * s[shared(j)];
          fit_row(codes, quant_method::imatrix, scaled, h.data(), fits);
          round_row(codes, scaled, fits, chosen);
          float_matrix off(1, static_cast<Eigen::Index>(cols));
          for (std::size_t j = 0; j < cols; ++j) {
            const group_fit& fit = fits[j / group_columns(codes, cols)];
            off(0, static_cast<Eigen::Index>(j)) = fit.scale * static_cast<float>(chosen[j] - fit.zero) / s[shared(j)] - row[j];
          }
          errors[step] += output_norm(off, in);
        }
    });
    const std::vector<float>& best = factors[static_cast<std::size_t>(std::min_element(errors.begin(), errors.end()) - errors.begin())];
    for (scaled_rows& t : tensors) {
      if (t.col_factors.empty()) t.col_factors.assign(cols, 1);
      for (std::size_t j = 0; j < cols; ++j) t.col_factors[j] *= best[shared(j)];
    }
    for (std::size_t i = 0; i < cols; ++i)
      for (std::size_t j = 0; j < cols; ++j) in.H(static_cast<Eigen::Index>(i), static_cast<Eigen::Index>(j)) /= best[shared(i)] * best[shared(j)];
    if (maker != nullptr) for (const float s : best) maker->row_factors.push_back(1 / s);
    if (gain != nullptr) for (std::size_t j = 0; j < cols; ++j) gain->values.data()[j] /= best[j];
  }

  const checkpoint& files_;
  std::shared_ptr<const cpu> b_;
  const quantize_options& o_;
  llama_config config_;
  any_executor run_;
  rope_table rope_;
  std::size_t window_ = 0, n_tokens_ = 0;
};

}  // namespace detail

/// A checkpoint's model with its weights rounded by a method.
/// Errors   invalid_argument: not an integer format, a method that needs calibration tokens and got none; as for load.
/// Cost     without data, some hundred operations for each weight. With data, two passes of the text through each layer, and its second
///          moments; gptq also n^3 operations for each matrix with n inputs. Memory: the rounded weights, one layer in floats, the text's
///          activations of hidden_size, and 4 n^2 bytes (gptq: 24 n^2) for the widest matrix.
inline llama<cpu> quantize_model(const checkpoint& files, cpu b, const quantize_options& o) {
  try {
    return detail::model_quantizer(files, std::make_shared<const cpu>(std::move(b)), o).run();
  } catch (const std::bad_alloc&) {
    fail(errc::out_of_memory, "quantize", "expected memory for a layer and its inputs, got none", files.path());
  }
}

}  // namespace quena::inline QUENA_ABI
