// SPDX-License-Identifier: MIT
// What rounding costs a model, by format and method, beside the types of other programs' files: bits per weight, divergence from the
// model as it is, perplexity.   bench_quality MODEL TEXT [THREADS]
//
// The first third of TEXT calibrates, the rest measures. Q4_0, Q4_K_M and the like are rounded as quena writes them (encode_row), with
// the mix of types that Q4_K_M has, and then run in f32, so that their figure holds no rounding of activations, which ours do.
#include <quena/eval/perplexity.hpp>
#include <quena/io/gguf_writer.hpp>
#include <quena/model/quantize.hpp>
#include <quena/text/tokenizer.hpp>

#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

namespace {

using namespace quena;

/// A checkpoint in f32 whose matrices went through a type of GGUF files.
struct rounded_checkpoint {
  std::string config, weights;
  double bits = 0;

  rounded_checkpoint(const checkpoint& files, const llama_config& c, const gguf_target& target) : config(*files.text_file("config.json")) {
    std::string header, data;
    double n_bits = 0, n_weights = 0;
    std::vector<weight_spec> specs = outer_weights(c);
    for (std::size_t l = 0; l < c.n_layers; ++l)
      for (weight_spec& s : layer_weights_table(c, l)) specs.push_back(std::move(s));
    for (const weight_spec& s : specs) {
      const checkpoint_tensor& t = *files.find(s.name);
      const std::size_t cols = s.cols == 0 ? s.rows : s.cols, rows = s.cols == 0 ? 1 : s.rows, begin = data.size();
      dtype type = dtype::f32;
      if (s.cols != 0) {
        const gguf_source_tensor named{.name = gguf_name(s.name), .type = t.type, .dims = {cols, rows}, .data = t.data};
        type = detail::gguf_target_type(target, named, c.n_layers, c.tie_word_embeddings);
        n_bits += static_cast<double>(n_bytes(type, rows * cols)) * 8, n_weights += static_cast<double>(rows * cols);
      }
      std::vector<float> row(cols);
      std::vector<std::byte> encoded(n_bytes(type, cols));
      for (std::size_t r = 0; r < rows; ++r) {
        dequantize_row(t.type, t.data.data() + r * n_bytes(t.type, cols), row.data(), cols);
        encode_row(type, row.data(), cols, encoded.data());
        dequantize_row(type, encoded.data(), row.data(), cols);
        data.append(reinterpret_cast<const char*>(row.data()), cols * sizeof(float));
      }
      header += (header.empty() ? "{\"" : ",\"") + s.name + R"(":{"dtype":"F32","shape":[)" + std::to_string(s.rows) + (s.cols == 0 ? "" : "," + std::to_string(s.cols)) + R"(],"data_offsets":[)" +
                std::to_string(begin) + "," + std::to_string(data.size()) + "]}";
    }
    header += '}';
    header.resize((header.size() + 7) / 8 * 8, ' ');
    const std::uint64_t length = header.size();
    weights.assign(reinterpret_cast<const char*>(&length), sizeof length);
    weights += header + data;
    bits = n_bits / n_weights;
  }
  [[nodiscard]] checkpoint open() const {
    const memory_file files[] = {{"config.json", std::as_bytes(std::span(config))}, {"model.safetensors", std::as_bytes(std::span(weights))}};
    return checkpoint::from_memory(files);
  }
};

int run(const char* path, const char* text_path, int threads) {
  const checkpoint files = checkpoint::open(path);
  std::ifstream in(text_path, std::ios::binary);
  std::stringstream text;
  text << in.rdbuf();
  const std::vector<token_id> ids = tokenizer::open(files).encode(text.str());
  if (ids.size() < 300) return std::fprintf(stderr, "expected a text of at least 300 tokens, got %zu\n", ids.size()), 1;
  const std::span<const token_id> calibration = std::span(ids).first(ids.size() / 3), measured = std::span(ids).subspan(ids.size() / 3);

  const cpu_options backend{.threads = threads};
  const llama<cpu> exact(files, cpu(backend), {.format = format::f32});
  session<cpu> reference(exact, {.max_positions = 512});
  const double exact_perplexity = perplexity(reference, measured, {.window = 512}).perplexity;
  const auto n_weights = static_cast<double>(exact.weights().n_bytes()) / 4;
  std::printf("%zu tokens calibrate, %zu measure; perplexity of the model as it is %.3f\n", calibration.size(), measured.size(), exact_perplexity);
  std::printf("%-26s %9s %9s %9s %11s\n", "weights", "bits", "KL", "same top", "perplexity");
  const auto show = [&](const std::string& name, double bits, const llama<cpu>& model) {
    session<cpu> s(model, {.max_positions = 512});
    const perplexity_result r = perplexity(s, measured, {.window = 512}, &reference);
    std::printf("%-26s %9.2f %9.5f %8.2f%% %+10.2f%%\n", name.c_str(), bits, *r.kl, 100 * *r.top1, 100 * (r.perplexity / exact_perplexity - 1));
    std::fflush(stdout);
  };
  const auto own = [&](format f, quant_method m, std::optional<format> output = {}) {
    const llama<cpu> model = quantize_model(files, cpu(backend), {.format = f, .output = output, .method = m, .calibration = calibration});
    const std::string name = std::string(format_name(f)) + " " + std::string(quant_method_name(m)) + (output ? ", output " + std::string(format_name(*output)) : "");
    show(name, static_cast<double>(model.weights().n_bytes()) * 8 / n_weights, model);
  };
  const auto peers = [&](const char* name, const gguf_target& target) {
    if (files.is_gguf()) return;
    const rounded_checkpoint rounded(files, exact.config(), target);
    show(name, rounded.bits, llama<cpu>(rounded.open(), cpu(backend), {.format = format::f32}));
  };
  peers("Q8_0", {dtype::q8_0});
  peers("Q4_0", {dtype::q4_0});
  peers("Q4_K", {dtype::q4_k});
  peers("Q4_K_M", {dtype::q4_k, true});
  own(format::int8, quant_method::nearest);
  for (const quant_method m : {quant_method::nearest, quant_method::search, quant_method::hqq, quant_method::imatrix, quant_method::awq, quant_method::gptq}) own(format::int4, m);
  for (const format f : {format::int4z, format::int4, format::int4_g64, format::int4_g128}) own(f, quant_method::gptq, format::int8);
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 3) return std::fputs("usage: bench_quality MODEL TEXT [THREADS]\n", stderr), 2;
  try {
    return run(argv[1], argv[2], argc > 3 ? std::atoi(argv[3]) : 0);
  } catch (const std::exception& e) {
    std::fprintf(stderr, "%s\n", e.what());
    return 1;
  }
}
