// SPDX-License-Identifier: MIT
// The engine's text on the CPU backend: that of generate(), for many requests at once.
#include <quena/engine/engine.hpp>
#include <quena/generate.hpp>

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include <doctest/doctest.h>

#include "../support.hpp"

using namespace quena;

namespace {

llm<cpu> stories(int threads) { return load(quena_test::source_dir() + "/examples/data/stories260K", {.threads = threads, .context = 300}); }

struct told {
  std::string text;
  std::vector<token_id> ids;
  std::vector<float> logprobs;
  finish_reason reason = finish_reason::none;
};

bool operator==(const told& a, const told& b) { return a.text == b.text && a.ids == b.ids && a.logprobs == b.logprobs && a.reason == b.reason; }

}  // namespace

TEST_CASE("engine: text, stop strings and log-probabilities are those of generate(), whatever runs beside (A14, A29, A30)") {
  for (const int threads : {1, 2}) {
    CAPTURE(threads);
    const llm<cpu> source = stories(threads);
    engine<cpu> e(source.model, {.cache = {.max_positions = 300, .max_sequences = 7, .n_pages = 60}, .token_budget = 40, .end_tokens = source.end_tokens}, &source.tokenizer);
    const std::string_view prompts[] = {"Once upon a time", "", "The dog", "Once upon a time, there was a little girl named Lily. She loved to"};
    const std::vector<std::string> stops[] = {{}, {"big, red", "played"}, {". ", "One day, she saw"}, {"never in the text"}};
    std::vector<request_handle> handles;
    std::vector<told> want;
    for (std::uint32_t i = 0; i < 24; ++i) {
      sampling_options sampling;
      sampling.temperature = i % 3 == 0 ? 0.0f : 0.9f;
      sampling.top_p = i % 2 == 0 ? 0.9f : 1.0f;
      sampling.repetition_penalty = i % 5 == 0 ? 1.2f : 1.0f;
      sampling.seed = i;
      sampling.n_logprobs = i % 2 == 0 ? 2 : -1;
      const std::vector<std::string>& stop = stops[i / 4 % 4];
      const std::vector<token_id> ids = source.tokenizer.encode(prompts[i % 4], {.add_bos = true, .parse_special = false});
      generation<cpu> g(source, ids, {.max_tokens = 60, .sampling = sampling, .stop = stop});
      const generate_result r = run(g, [](std::string_view) {});
      told& t = want.emplace_back(told{r.text, r.ids, {}, r.reason});
      for (const generated_logprobs& l : r.logprobs) t.logprobs.push_back(l.chosen);
      handles.push_back(e.submit({.prompt = ids, .max_tokens = 60, .sampling = sampling, .stop = stop}));
    }
    for (std::size_t i = 0; i < handles.size(); ++i) {
      CAPTURE(i);
      told got;
      for (const engine_event& event : handles[i]) {
        got.text += event.text;
        if (event.token) got.ids.push_back(*event.token);
        if (event.logprobs) got.logprobs.push_back(event.logprobs->chosen);
        got.reason = event.reason;
      }
      CHECK(got.text == want[i].text);
      CHECK((got == want[i]));
    }
    CHECK(e.metrics().prefix_tokens > 0);
  }
}

TEST_CASE("engine: nothing of a stop string is delivered before it is decided (A30)") {
  const llm<cpu> source = stories(1);
  engine<cpu> e(source.model, {.end_tokens = source.end_tokens}, &source.tokenizer);
  sampling_options sampling;
  sampling.temperature = 0;
  const std::vector<token_id> ids = source.tokenizer.encode("Once upon a time", {.add_bos = true, .parse_special = false});
  std::string text;
  for (const engine_event& event : e.submit({.prompt = ids, .max_tokens = 100, .sampling = sampling, .stop = {"big, red", "played"}})) {
    text += event.text;
    CHECK(text.find("big") == std::string::npos);
    if (event.reason != finish_reason::none) CHECK(event.reason == finish_reason::stop);
  }
  CHECK(text == ", there was a little girl named Lily. She loved to play outside in the park. One day, she saw a ");
  CHECK(quena_test::code_of([&] { static_cast<void>(e.submit({.prompt = ids, .stop = {""}})); }) == errc::invalid_argument);
}
