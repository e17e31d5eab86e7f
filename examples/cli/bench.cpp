// SPDX-License-Identifier: MIT
// quena bench: speed of prefill and decode as a share of what the machine can do, measured in turns in the same run.
#include <algorithm>
#include <bit>
#include <chrono>

#include <ceilings.hpp>
#include <quena/quant/codes.hpp>
#include <quena/model/session.hpp>

#include "build_info.hpp"
#include "commands.hpp"
#include "models.hpp"

namespace cli {
namespace {

struct bench_command {
  model_options model;
  std::size_t prefill = 512, decode = 64, batch = 1, reps = 5;
};

/// The same tokens in every run.
token_id some_token(std::size_t sequence, std::size_t position, std::size_t vocab_size) {
  std::uint64_t x = (sequence * 0x9E3779B97F4A7C15u + position + 1) * 0xBF58476D1CE4E5B9u;
  x ^= x >> 31;
  return static_cast<token_id>(x * 0x94D049BB133111EBu % vocab_size);
}

/// FNV-1a over the bits of the logits.
std::string hash_of(std::span<const float> logits) {
  std::uint64_t h = 0xCBF29CE484222325u;
  for (const float x : logits)
    for (int byte = 0; byte < 4; ++byte) h = (h ^ (std::bit_cast<std::uint32_t>(x) >> (8 * byte) & 255)) * 0x100000001B3u;
  std::string text(16, '0');
  for (std::size_t i = 0; i < 16; ++i) text[i] = "0123456789abcdef"[h >> (60 - 4 * i) & 15];
  return text;
}

/// Multiply-accumulates of a forward pass. Norms, RoPE and the softmax are not counted.
struct work {
  double per_row = 0;       ///< in the layers' matrices
  double per_logits = 0;    ///< in the output matrix
  double per_position = 0;  ///< attention, for each position that a row looks at: query times key, and weight times value

  explicit work(const quena::llama_config& c) {
    for (const quena::weight_spec& w : quena::layer_weights_table(c, 0)) per_row += static_cast<double>(w.rows * w.cols * c.n_layers);
    per_logits = static_cast<double>(c.vocab_size * c.hidden_size);
    per_position = static_cast<double>(2 * c.n_heads * c.head_dim * c.n_layers);
  }
  /// One sequence's rows at positions first … last - 1, of which n_logits want logits.
  [[nodiscard]] double macs(std::size_t first, std::size_t last, std::size_t n_logits) const {
    const auto a = static_cast<double>(first), b = static_cast<double>(last);
    return per_row * (b - a) + per_logits * static_cast<double>(n_logits) + per_position * (b * (b + 1) - a * (a + 1)) / 2;
  }
};

/// Sequences side by side on one model.
template <quena::backend B>
class lanes {
 public:
  lanes(const quena::llama<B>& model, const bench_command& o)
      : model_(model),
        cache_(model.make_cache({.max_positions = o.prefill + o.decode, .max_sequences = o.batch, .cell = o.model.kv})),
        ws_(model.make_workspace(cache_, {.max_rows = (std::max)((std::min)(o.prefill, std::size_t{512}), o.batch), .max_logits = o.batch})) {
    for (std::size_t i = 0; i < o.batch; ++i) sequences_.push_back(cache_.add());
  }

  [[nodiscard]] const quena::kv_cache<B>& cache() const { return cache_; }
  void rewind(std::size_t length) {
    for (const quena::sequence_id s : sequences_) cache_.rewind(s, (std::min)(length, cache_.length(s)));
  }
  /// Sequence i from empty to n tokens, with the logits of the last.
  void prefill(std::size_t i, std::size_t n) {
    cache_.rewind(sequences_[i], 0);
    for (std::size_t at = 0; at < n; at += ws_.max_rows) {
      rows_.clear();
      for (std::size_t p = at; p < (std::min)(at + ws_.max_rows, n); ++p) add_row(i, p, p + 1 == n);
      model_.forward(rows_, cache_, ws_);
    }
  }
  /// One more token of every sequence; returns the first one's logits.
  std::span<const float> decode() {
    rows_.clear();
    for (std::size_t i = 0; i < sequences_.size(); ++i) add_row(i, cache_.length(sequences_[i]), true);
    return model_.forward(rows_, cache_, ws_).logits[0].span();
  }

 private:
  void add_row(std::size_t i, std::size_t position, bool wants_logits) {
    rows_.push_back({some_token(i, position, model_.config().vocab_size), static_cast<std::uint32_t>(position), sequences_[i], wants_logits});
  }

  const quena::llama<B>& model_;
  quena::kv_cache<B> cache_;
  quena::workspace<B> ws_;
  std::vector<quena::sequence_id> sequences_;
  std::vector<quena::row> rows_;
};

/// What each repeat measured, by name.
class measurements {
 public:
  void add(const std::string& name, double value) {
    for (auto& [known, values] : values_)
      if (known == name) return values.push_back(value);
    values_.push_back({name, {value}});
  }
  [[nodiscard]] quena_bench::figure figure(const std::string& name) const {
    for (const auto& [known, values] : values_)
      if (known == name) return quena_bench::summary(values);
    return {};
  }
  /// name: median, name_spread: [lowest, highest].
  void put(ordered_json& to, const std::string& prefix, std::initializer_list<const char*> names) const {
    for (const char* name : names) {
      const quena_bench::figure f = figure(prefix + name);
      to[name] = f.median;
      to[std::string(name) + "_spread"] = {f.lowest, f.highest};
    }
  }

 private:
  std::vector<std::pair<std::string, std::vector<double>>> values_;
};

void run_bench(const bench_command& o) {
  with_backend(o.model, [&]<quena::backend B>() {
    const quena::llama<B> model = load_model<B>(o.model, o.model.path, o.model.format, o.prefill + o.decode);
    const work work(model.config());
    std::size_t threads = 1;
    std::string_view isa = "none";
    if constexpr (std::same_as<B, quena::cpu>) {
      threads = model.backend().concurrency();
      isa = quena::isa_name(model.backend().level());
    }

    const bool integers = model.weights().stored == quena::format::automatic || quena::codes_of(model.weights().stored).has_value();
    lanes<B> lanes(model, o);
    const auto decode_bytes = static_cast<double>(model.weights().decode_bytes());
    const double position_bytes = static_cast<double>(lanes.cache().shape().page_bytes()) / static_cast<double>(lanes.cache().shape().page_size);
    for (std::size_t i = 0; i < o.batch; ++i) lanes.prefill(i, o.prefill);  // the first touch of all memory is not measured
    static_cast<void>(lanes.decode());
    const std::size_t peak = peak_rss_bytes();  // before the ceilings take a large buffer

    measurements m;
    std::string hash;
    progress_bar bar("measuring");
    for (std::size_t rep = 0; rep < o.reps; ++rep) {
      const quena_bench::ceilings c = quena_bench::measure_ceilings(static_cast<int>(threads), 0.3);
      m.add("read_gb_s", c.read_gb_s.median);
      m.add("fp32_gmac_s", c.fp32_gmac_s.median);
      m.add("int8_gmac_s", c.int8_gmac_s.median);

      auto start = std::chrono::steady_clock::now();
      lanes.prefill(0, o.prefill);
      const double prefill_s = seconds_since(start);
      m.add("prefill.tok_s", static_cast<double>(o.prefill) / prefill_s);
      const double prefill_gmac_s = work.macs(0, o.prefill, 1) / prefill_s * 1e-9;
      m.add("prefill.gmac_s", prefill_gmac_s);
      m.add("prefill.pct_of_ceiling", 100 * prefill_gmac_s / (integers ? c.int8_gmac_s : c.fp32_gmac_s).median);

      lanes.rewind(o.prefill);
      std::vector<float> last;
      double bytes = 0;
      start = std::chrono::steady_clock::now();
      for (std::size_t step = 0; step < o.decode; ++step) {
        const std::span<const float> logits = lanes.decode();
        bytes += decode_bytes + static_cast<double>(o.batch * (o.prefill + step + 1)) * position_bytes;
        if (step + 1 == o.decode) last.assign(logits.begin(), logits.end());
      }
      const double decode_s = seconds_since(start);
      m.add("decode.tok_s", static_cast<double>(o.batch * o.decode) / decode_s);
      m.add("decode.gb_s", bytes / decode_s * 1e-9);
      m.add("decode.gmac_s", static_cast<double>(o.batch) * work.macs(o.prefill, o.prefill + o.decode, o.decode) / decode_s * 1e-9);
      m.add("decode.pct_of_ceiling", 100 * bytes / decode_s * 1e-9 / c.read_gb_s.median);
      hash = hash_of(last);
      bar(static_cast<double>(rep + 1) / static_cast<double>(o.reps));
    }

    ordered_json out{{"machine", quena_bench::facts_line(static_cast<int>(threads))},
                     {"flags", build_flags()},
                     {"commit", build_commit()},
                     {"model", o.model.path},
                     {"backend", model.backend().name()},
                     {"format", quena::format_name(model.weights().stored)},
                     {"kv_type", quena::dtype_name(lanes.cache().shape().cell)},
                     {"batch", o.batch},
                     {"threads", threads},
                     {"isa", isa},
                     {"reps", o.reps},
                     {"weight_bytes", model.weights().n_bytes()},
                     {"peak_rss_bytes", peak}};
    ordered_json prefill{{"tokens", o.prefill}}, decode{{"tokens", o.decode}}, ceilings;
    m.put(prefill, "prefill.", {"tok_s", "gmac_s", "pct_of_ceiling"});
    m.put(decode, "decode.", {"tok_s", "gb_s", "gmac_s", "pct_of_ceiling"});
    m.put(ceilings, "", {"read_gb_s", "fp32_gmac_s", "int8_gmac_s"});
    out["prefill"] = prefill;
    out["decode"] = decode;
    out["ceilings"] = ceilings;
    out["logits_hash"] = hash;
    if (o.model.json) return write_json(out);

    const auto line = [&](const std::string& what, const std::string& name, const std::string& unit) {
      const quena_bench::figure f = m.figure(name);
      write(what + fixed(f.median, 1) + " " + unit + " (" + fixed(f.lowest, 1) + " to " + fixed(f.highest, 1) + ")\n");
    };
    write(out["machine"].get<std::string>() + "\nflags " + build_flags() + ", commit " + build_commit() + "\n");
    write(o.model.path + ": " + out["format"].get<std::string>() + ", " + readable_bytes(static_cast<double>(model.weights().n_bytes())) + ", backend " +
          std::string(model.backend().name()) + ", " + std::to_string(threads) + " threads, last logits " + hash + "\n");
    line("prefill of " + std::to_string(o.prefill) + "    ", "prefill.tok_s", "tokens/s");
    line("                  ", "prefill.gmac_s", "GMAC/s");
    line("                  ", "prefill.pct_of_ceiling", integers ? "% of int8" : "% of fp32");
    line("decode, batch " + std::to_string(o.batch) + "   ", "decode.tok_s", "tokens/s");
    line("                  ", "decode.gb_s", "GB/s");
    line("                  ", "decode.pct_of_ceiling", "% of read");
    line("ceilings: read    ", "read_gb_s", "GB/s");
    line("          fp32    ", "fp32_gmac_s", "GMAC/s");
    line("          int8    ", "int8_gmac_s", "GMAC/s");
  });
}

}  // namespace

void add_bench(CLI::App& app, action& run) {
  auto [sub, o] = add_command<bench_command>(app, run, "bench", "Measures the speed of prefill and decode", run_bench);
  add_model_options(*sub, o->model);
  add_number(*sub, "--prefill", o->prefill, 1, 1 << 24, "tokens of the prompt (512)")->type_name("N");
  add_number(*sub, "--decode", o->decode, 1, 1 << 24, "tokens after it (64)")->type_name("N");
  add_number(*sub, "--batch", o->batch, 1, 1 << 16, "sequences that are decoded together (1)")->type_name("N");
  add_number(*sub, "--reps", o->reps, 1, 1 << 16, "repeats; medians are reported (5)")->type_name("N");
}

}  // namespace cli
