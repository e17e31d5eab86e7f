// SPDX-License-Identifier: MIT
#include <quena/chat.hpp>
#include <quena/eval/perplexity.hpp>
#include <quena/generate.hpp>

#include <ranges>
#include <string>
#include <vector>

#include <doctest/doctest.h>

#include "support.hpp"

using namespace quena;

namespace {

const llm<cpu>& stories() {
  static const llm<cpu> model = load(quena_test::source_dir() + "/examples/data/stories260K", {.threads = 2, .context = 300});
  return model;
}

sampling_options greedy() {
  sampling_options o;
  o.temperature = 0;
  return o;
}

std::string text_of(const llm<cpu>& source, std::string_view prompt, const generate_options& options) {
  std::string text;
  for (const std::string_view piece : generate(source, prompt, options)) text += piece;
  return text;
}

const json& reference_story() {
  static const json story = parse_json(quena_test::read_file(quena_test::data("stories260K_greedy.json")), "test");
  return story;
}

}  // namespace

static_assert(std::ranges::input_range<generation<cpu>>);

TEST_CASE("generate: 255 greedy tokens of stories260K equal the reference") {
  const std::vector<token_id> bos = {1};
  generation<cpu> g(stories(), bos, {.max_tokens = 255, .sampling = greedy()});
  const generate_result r = run(g, [](std::string_view) {});
  CHECK(r.ids == reference_story()["ids"].get<std::vector<token_id>>());
  CHECK(r.text == reference_story()["text"].get<std::string>());
  CHECK(r.reason == finish_reason::length);
  CHECK(r.timing.prefill_tokens == 1);
  CHECK(r.timing.decode_tokens == 254);
}

TEST_CASE("generate: a prompt is continued, as a range and by callback") {
  const std::string story = reference_story()["text"], prompt = "Once upon a time";
  const generate_options options{.max_tokens = 60, .sampling = greedy()};
  const std::string text = text_of(stories(), prompt, options);
  CHECK((prompt + text) == story.substr(0, prompt.size() + text.size()));
  CHECK(text.size() > 100);
  std::string called;
  const generate_result r = generate(stories(), prompt, options, [&](std::string_view piece) { called += piece; });
  CHECK(called == text);
  CHECK(r.text == text);
  CHECK(r.ids.size() == 60);
  const generate_result cut = generate(stories(), prompt, options, [&](std::string_view) { return false; });
  CHECK(cut.reason == finish_reason::cancelled);
  CHECK(cut.ids.size() < 4);
}

TEST_CASE("generate: stop strings across tokens end the text before them") {
  const generate_result r = generate(stories(), "Once upon a time", {.max_tokens = 100, .sampling = greedy(), .stop = {"big, red", "played"}}, [](std::string_view) {});
  CHECK(r.reason == finish_reason::stop);
  CHECK(r.text == ", there was a little girl named Lily. She loved to play outside in the park. One day, she saw a ");
}

TEST_CASE("generate: every end token of the model stops it, unless told not to") {
  sampling_options force = greedy();
  const llm<cpu>& source = stories();
  REQUIRE(!source.end_tokens.empty());
  for (const token_id id : source.end_tokens) {
    force.logit_bias = {{id, 1000.0f}};
    const generate_result r = generate(source, "Once", {.max_tokens = 5, .sampling = force}, [](std::string_view) {});
    CHECK(r.reason == finish_reason::stop);
    CHECK(r.ids.empty());
    CHECK(r.text.empty());
    sampling_options ignoring = force;
    ignoring.ignore_eos = true;
    CHECK(generate(source, "Once", {.max_tokens = 5, .sampling = ignoring}, [](std::string_view) {}).ids == std::vector<token_id>(5, id));
    sampling_options least = force;
    least.min_tokens = 3;
    const generate_result three = generate(source, "Once", {.max_tokens = 5, .sampling = least}, [](std::string_view) {});
    CHECK(three.ids.size() == 3);
    CHECK(three.reason == finish_reason::stop);
  }
}

TEST_CASE("generate: a prompt that does not fit, and a context that fills up") {
  const std::vector<token_id> ids = {1, 403, 407, 261, 378, 403, 407, 261, 378, 403, 407, 261, 378, 403, 407, 261, 378, 403, 407, 261,
                                     378, 403, 407, 261, 378, 403, 407, 261, 378, 403, 407, 261, 378, 403, 407, 261, 378, 403, 407, 261};
  const auto with = [&](std::size_t n, std::size_t max_tokens, context_policy policy) {
    session<cpu> s(stories().model, {.max_positions = 32});
    generation<cpu> g(stories(), s, std::span(ids).first(n), {.max_tokens = max_tokens, .sampling = greedy(), .on_full_context = policy});
    return run(g, [](std::string_view) {});
  };
  CHECK_THROWS_WITH_AS(with(40, 1, context_policy::stop), "[generate] expected a prompt below the context of 32 tokens, got 40", error);
  CHECK_THROWS_AS(with(32, 1, context_policy::slide), error);
  CHECK(with(31, 1, context_policy::error).ids.size() == 1);
  CHECK_THROWS_AS(with(31, 5, context_policy::error), error);
  const generate_result stopped = with(30, 50, context_policy::stop);
  CHECK(stopped.reason == finish_reason::length);
  CHECK(stopped.ids.size() == 3);  // two more positions, and the token that the last one predicts
  const generate_result slid = with(30, 50, context_policy::slide);
  CHECK(slid.ids.size() == 50);
  CHECK(std::equal(stopped.ids.begin(), stopped.ids.end(), slid.ids.begin()));
  CHECK_THROWS_AS(generation<cpu>(stories(), std::span<const token_id>(), {}), error);
  CHECK_THROWS_AS(generation<cpu>(stories(), std::vector<token_id>{512}, {}).next(), error);
  CHECK_THROWS_AS(generation<cpu>(stories(), std::vector<token_id>{-1}, {}).next(), error);
}

TEST_CASE("generate: the same seed, the same text; log-probabilities; cancellation") {
  sampling_options o;
  o.temperature = 0.9f;
  o.seed = 11;
  o.n_logprobs = 2;
  const generate_options options{.max_tokens = 40, .sampling = o};
  const generate_result a = generate(stories(), "Lily", options, [](std::string_view) {}), b = generate(stories(), "Lily", options, [](std::string_view) {});
  CHECK(a.ids == b.ids);
  REQUIRE(a.logprobs.size() == a.ids.size());
  for (const generated_logprobs& l : a.logprobs) {
    REQUIRE(l.top.size() == 2);
    CHECK(l.top[0].logprob >= l.top[1].logprob);
    CHECK(l.chosen <= l.top[0].logprob);
  }
  o.seed = 12;
  CHECK(generate(stories(), "Lily", {.max_tokens = 40, .sampling = o}, [](std::string_view) {}).ids != a.ids);

  std::stop_source stop;
  generation<cpu> g(stories(), std::vector<token_id>{1}, {.max_tokens = 100, .sampling = greedy(), .stop_token = stop.get_token()});
  CHECK(g.next());
  stop.request_stop();
  while (g.next()) {}
  CHECK(g.reason() == finish_reason::cancelled);
  CHECK(g.ids().size() < 100);
}

TEST_CASE("chat: needs a template; a model without one still generates") {
  CHECK_FALSE(stories().chat_template.has_value());
  CHECK_THROWS_WITH_AS(chat<cpu>{stories()}, "[chat] expected a model with a chat template, got one without", error);
}

TEST_CASE("chat: a template that cannot be read is refused by chat alone, with its line") {
  llm<cpu> source = load(quena_test::source_dir() + "/examples/data/stories260K", {.threads = 1, .context = 64});
  source.chat_template = "fine\n{% if %}";
  CHECK(generate(source, "Once", {.max_tokens = 1}, [](std::string_view) {}).ids.size() == 1);
  CHECK(quena_test::code_of([&] { chat<cpu>{source}; }) == errc::malformed);
  CHECK_THROWS_WITH_AS(chat<cpu>{source}, doctest::Contains("line 2"), error);
}

TEST_CASE("golden: trained models of the reference data") {
  QUENA_NEEDS_FIXTURES(fixtures);
  const std::string folder = fixtures + "/psalter-1m";
  const json ref = parse_json(quena_test::read_file(folder + "/reference.json"), "test", {}, {.max_depth = 64});
  const llm<cpu> source = load(folder, {.format = format::f32, .threads = 2});
  for (const json& p : ref["prompts"]) {
    const auto ids = p["ids"].get<std::vector<token_id>>();
    CHECK(source.tokenizer.encode(p["text"].get<std::string>()) == ids);
    sampling_options o = greedy();
    o.ignore_eos = true;
    generation<cpu> g(source, ids, {.max_tokens = p["greedy_ids"].size(), .sampling = o});
    CHECK(run(g, [](std::string_view) {}).ids == p["greedy_ids"].get<std::vector<token_id>>());
  }
  const json& talk = ref["chat"];
  REQUIRE(talk["messages"][0]["role"] == "system");
  chat<cpu> c(source, {.system = talk["messages"][0]["content"], .generate = {.max_tokens = talk["greedy_ids"].size(), .sampling = greedy()}});
  const generate_result answer = c.send(talk["messages"][1]["content"].get<std::string>(), [](std::string_view) {});
  std::vector<token_id> want = talk["greedy_ids"];
  if (!want.empty() && source.tokenizer.is_special(want.back())) want.pop_back();  // the end token is not part of the answer
  CHECK(answer.ids == want);
  REQUIRE(c.messages().size() == 3);
  CHECK(c.messages()[2].content == answer.text);

  // The second turn reuses the cache; a fresh conversation with the same messages gives the same ids.
  const generate_result second = c.send("And what then?", [](std::string_view) {});
  std::vector<chat_message> messages(c.messages().begin(), c.messages().end() - 1);
  const rendered_chat text = chat_template(*source.chat_template).render(messages, {.add_generation_prompt = true, .bos_token = source.bos_token, .eos_token = source.eos_token, .special_tokens = {}, .clock = {}});
  generation<cpu> fresh(source, source.tokenizer.encode_segments(text.segments(), false), {.max_tokens = talk["greedy_ids"].size(), .sampling = greedy()});
  CHECK(run(fresh, [](std::string_view) {}).ids == second.ids);

  session<cpu> s(source.model, {.max_positions = 512}, {.max_rows = 64, .max_logits = 64});
  const auto valid = parse_json(quena_test::read_file(folder + "/valid_ids.json"), "test").get<std::vector<token_id>>();
  const perplexity_result p = perplexity(s, std::span<const token_id>(valid).first(1024), {.window = 512});
  const double want_nll = (ref["perplexity"]["nll_mean_per_window"][0].get<double>() + ref["perplexity"]["nll_mean_per_window"][1].get<double>()) / 2;
  CHECK(p.tokens == 1022);
  CHECK(p.nll == doctest::Approx(want_nll).epsilon(1e-5));
}
