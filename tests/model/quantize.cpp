// SPDX-License-Identifier: MIT
#include <quena/eval/perplexity.hpp>
#include <quena/model/artifact.hpp>
#include <quena/model/quantize.hpp>
#include <quena/model/session.hpp>
#include <quena/text/tokenizer.hpp>

#include <map>
#include <random>
#include <string>
#include <vector>

#include <doctest/doctest.h>

#include "../support.hpp"
#include "../synthetic_model.hpp"

using namespace quena;
using quena_test::code_of;

namespace {

std::vector<token_id> text(std::size_t n, std::size_t vocab_size) {
  std::mt19937 random(7);
  std::vector<token_id> ids(n);
  for (token_id& id : ids) id = static_cast<token_id>(random() % vocab_size);
  return ids;
}

std::vector<float> logits_of(const llama<cpu>& model) {
  session<cpu> s(model, {.max_positions = 64});
  const std::span<const float> out = s.feed(text(40, model.config().vocab_size));
  return {out.begin(), out.end()};
}

constexpr quant_method all_methods[] = {quant_method::nearest, quant_method::search, quant_method::hqq, quant_method::imatrix, quant_method::awq, quant_method::gptq};

}  // namespace

TEST_CASE("quantize: nearest is what loading does; threads change nothing; an artifact keeps it") {
  const quena_test::synthetic_model source({.tied = false, .biases = true, .rope_scaling = "null"});
  const checkpoint files = source.open();
  const std::vector<token_id> calibration = text(200, 211);
  for (const format f : {format::int4, format::int4z_g64, format::int8_row}) {
    CAPTURE(format_name(f));
    CHECK(logits_of(quantize_model(files, cpu({.threads = 2}), {.format = f, .method = quant_method::nearest})) == logits_of(llama<cpu>(files, cpu({.threads = 2}), {.format = f})));
    for (const quant_method m : all_methods) {
      CAPTURE(quant_method_name(m));
      const quantize_options o{.format = f, .method = m, .calibration = calibration, .window = 64};
      const llama<cpu> one = quantize_model(files, cpu({.threads = 1}), o), three = quantize_model(files, cpu({.threads = 3}), o);
      CHECK(logits_of(one) == logits_of(three));
      std::vector<std::byte> artifact;
      write_artifact(files, one, [&](std::span<const std::byte> b) { artifact.insert(artifact.end(), b.begin(), b.end()); });
      CHECK(logits_of(llama<cpu>(checkpoint::from_memory(std::span<const std::byte>(artifact)), cpu({.threads = 2}))) == logits_of(one));
    }
  }
}

TEST_CASE("quantize: the report, and another format for the output") {
  const quena_test::synthetic_model source({.rope_scaling = "null"});
  const checkpoint files = source.open();
  std::map<std::string, matrix_report> seen;
  double last = 0;
  const std::vector<token_id> calibration = text(130, 211);
  const llama<cpu> model = quantize_model(files, cpu({.threads = 2}), {.format = format::int4, .output = format::int8, .method = quant_method::gptq, .calibration = calibration, .window = 100,
      .progress = [&](double f) { CHECK(f > last); last = f; }, .report = [&](const matrix_report& r) { CHECK(seen.emplace(r.name, r).second); }});
  CHECK(last == doctest::Approx(1));
  CHECK(seen.size() == 15);
  for (const auto& entry : seen) {
    const std::string& name = entry.first;
    const matrix_report& r = entry.second;
    CAPTURE(name);
    CHECK(r.weight_error > 0.001);
    CHECK(r.weight_error < (name == "model.embed_tokens.weight" ? 0.01 : 0.2));
    REQUIRE(r.output_error.has_value());
    CHECK(*r.output_error < r.weight_error * 1.5);
  }
  CHECK(model.weights().embed_tokens.layout.codes == codes_of(format::int8));
  CHECK(model.weights().layers[0].o_proj.layout.codes == codes_of(format::int4));
}

TEST_CASE("quantize: what cannot be done is said") {
  const quena_test::synthetic_model source;
  const checkpoint files = source.open();
  const std::vector<token_id> some = text(100, 211), wrong = {1, 2, 3, 500, 4}, one = {1};
  CHECK(code_of([&] { quantize_model(files, cpu(), {.format = format::f16}); }) == errc::invalid_argument);
  CHECK(code_of([&] { quantize_model(files, cpu(), {.format = format::int4, .output = format::bf16}); }) == errc::invalid_argument);
  CHECK(code_of([&] { quantize_model(files, cpu(), {.method = quant_method::gptq}); }) == errc::invalid_argument);
  CHECK(code_of([&] { quantize_model(files, cpu(), {.method = quant_method::awq, .calibration = one}); }) == errc::invalid_argument);
  CHECK(code_of([&] { quantize_model(files, cpu(), {.method = quant_method::imatrix, .calibration = some, .window = 1}); }) == errc::invalid_argument);
  CHECK(code_of([&] { quantize_model(files, cpu(), {.method = quant_method::imatrix, .calibration = wrong}); }) == errc::invalid_argument);
}

TEST_CASE("quantize: scaled channels leave the arithmetic as it is (awq, at 8 bits)") {
  for (const bool biases : {false, true}) {
    const quena_test::synthetic_model source({.biases = biases, .rope_scaling = "null"});
    const checkpoint files = source.open();
    const std::vector<token_id> calibration = text(256, 211);
    const std::vector<float> want = logits_of(llama<cpu>(files, cpu({.threads = 2}), {.format = format::f32}));
    const auto distance = [&](quant_method m) {
      const std::vector<float> got = logits_of(quantize_model(files, cpu({.threads = 2}), {.format = format::int8_g32, .method = m, .calibration = calibration, .window = 64}));
      double sum = 0, norm = 0;
      for (std::size_t i = 0; i < want.size(); ++i) sum += std::pow(static_cast<double>(got[i] - want[i]), 2), norm += std::pow(static_cast<double>(want[i]), 2);
      return std::sqrt(sum / norm);
    };
    CHECK(distance(quant_method::awq) < 2 * distance(quant_method::imatrix));
    CHECK(distance(quant_method::awq) < 0.1);
  }
}
