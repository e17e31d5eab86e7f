// SPDX-License-Identifier: MIT
// What rounding costs: the divergence of each integer format from f32 on a trained model. Gates, so that no change makes it worse unseen.
#include <quena/eval/perplexity.hpp>
#include <quena/io/json.hpp>

#include <cmath>
#include <span>
#include <string>
#include <vector>

#include <quena/backend/cpu/cpu.hpp>

#include <doctest/doctest.h>

#include "../support.hpp"

using namespace quena;

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr bool sanitized = true;  // minutes, for code that other tests run too
#else
constexpr bool sanitized = false;
#endif

TEST_CASE("quality: each integer format stays below its divergence on a trained model [slow]" * doctest::skip(sanitized)) {
  QUENA_NEEDS_FIXTURES(fixtures);
  const std::string folder = fixtures + "/psalter-7m";
  const auto all = parse_json(quena_test::read_file(folder + "/valid_ids.json"), "test").get<std::vector<token_id>>();
  const auto ids = std::span(all).first(1024);
  const checkpoint files = checkpoint::open(folder);
  const auto load = [&](format f) { return llama<cpu>(files, cpu({.threads = 2}), {.format = f, .context = 512, .progress = {}}); };
  const llama<cpu> exact = load(format::f32);
  session<cpu> reference(exact, {.max_positions = 512});
  const double exact_perplexity = perplexity(reference, ids, {.window = 512}).perplexity;
  struct gate {
    format f;
    double kl, perplexity;  // nats; relative
  };
  // Measured on the whole text, 18,280 ids: kl 0.00023, 0.00021, 0.00024, 0.0108, 0.0125, 0.0095, perplexity off by 0.0002, 0.0002, 0.0002,
  // 0.011, 0.012, 0.010. The ceilings leave a quarter of kl for the choice of ids, and more of the perplexity, which varies more.
  for (const gate& g : {gate{format::int8, 3e-4, 3e-3}, {format::int8_g32, 3e-4, 3e-3}, {format::int8_row, 3e-4, 3e-3}, {format::int4, 0.0135, 0.03}, {format::int4_g64, 0.0156, 0.03}, {format::int4z, 0.012, 0.03}}) {
    CAPTURE(format_name(g.f));
    const llama<cpu> rounded = load(g.f);
    session<cpu> s(rounded, {.max_positions = 512});
    const perplexity_result r = perplexity(s, ids, {.window = 512}, &reference);
    CHECK(*r.kl > 0);
    CHECK(*r.kl <= g.kl);
    CHECK(std::fabs(r.perplexity / exact_perplexity - 1) <= g.perplexity);
  }
}
