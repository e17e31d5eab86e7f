// SPDX-License-Identifier: MIT
#include <quena/sample/options.hpp>

#include <doctest/doctest.h>

#include <cmath>
#include <limits>
#include <string>

namespace {

constexpr float nan_value = std::numeric_limits<float>::quiet_NaN();
constexpr float inf = std::numeric_limits<float>::infinity();

/// The message of the error that validate() throws; empty when it throws none.
template <class Change>
std::string complaint(Change change, std::size_t vocab_size = 8) {
  quena::sampling_options options;
  change(options);
  try {
    options.validate(vocab_size);
  } catch (const quena::error& e) {
    CHECK(e.code() == quena::errc::invalid_argument);
    return e.what();
  }
  return {};
}

TEST_CASE("sampling_options: the defaults and the ends of every range are valid") {
  using options = quena::sampling_options;
  CHECK(complaint([](options&) {}).empty());
  CHECK(complaint([](options& o) { o.temperature = 0; }).empty());
  CHECK(complaint([](options& o) { o.temperature = -0.0f; }).empty());
  CHECK(complaint([](options& o) { o.temperature = 1e-45f; }).empty());
  CHECK(complaint([](options& o) { o.temperature = 1e8f; }).empty());
  CHECK(complaint([](options& o) { o.top_k = 1000; }).empty());  // more than there are: off
  CHECK(complaint([](options& o) { o.top_p = 0; }).empty());
  CHECK(complaint([](options& o) { o.min_p = 1; }).empty());
  CHECK(complaint([](options& o) { o.logit_bias = {{0, -inf}, {7, 3.0f}}; }).empty());
  CHECK(complaint([](options& o) { o.end_tokens = {2, 128001, -1}; }).empty());
  CHECK(complaint([](options& o) { o.n_logprobs = 8; }).empty());
}

TEST_CASE("sampling_options: errors name the parameter, what was expected and what came") {
  using options = quena::sampling_options;
  CHECK(complaint([](options& o) { o.temperature = -1; }) == "[sampling] temperature: expected a finite number >= 0, got -1");
  CHECK(complaint([](options& o) { o.temperature = nan_value; }) ==
        "[sampling] temperature: expected a finite number >= 0, got nan");
  CHECK(complaint([](options& o) { o.temperature = inf; }) == "[sampling] temperature: expected a finite number >= 0, got inf");
  CHECK(complaint([](options& o) { o.top_k = -1; }) == "[sampling] top_k: expected 0 or more, got -1");
  CHECK(complaint([](options& o) { o.top_p = 1.5f; }) == "[sampling] top_p: expected a number in [0, 1], got 1.5");
  CHECK(complaint([](options& o) { o.top_p = -0.1f; }) == "[sampling] top_p: expected a number in [0, 1], got -0.1");
  CHECK(complaint([](options& o) { o.top_p = nan_value; }) == "[sampling] top_p: expected a number in [0, 1], got nan");
  CHECK(complaint([](options& o) { o.min_p = 2; }) == "[sampling] min_p: expected a number in [0, 1], got 2");
  CHECK(complaint([](options& o) { o.typical_p = -1; }) == "[sampling] typical_p: expected a number in [0, 1], got -1");
  CHECK(complaint([](options& o) { o.repetition_penalty = 0; }) ==
        "[sampling] repetition_penalty: expected a finite number > 0, got 0");
  CHECK(complaint([](options& o) { o.repetition_penalty = -2; }) ==
        "[sampling] repetition_penalty: expected a finite number > 0, got -2");
  CHECK(complaint([](options& o) { o.presence_penalty = inf; }) ==
        "[sampling] presence_penalty: expected a finite number, got inf");
  CHECK(complaint([](options& o) { o.frequency_penalty = nan_value; }) ==
        "[sampling] frequency_penalty: expected a finite number, got nan");
  CHECK(complaint([](options& o) { o.penalty_last_n = -1; }) == "[sampling] penalty_last_n: expected 0 or more, got -1");
  CHECK(complaint([](options& o) { o.min_tokens = -5; }) == "[sampling] min_tokens: expected 0 or more, got -5");
  CHECK(complaint([](options& o) { o.n_logprobs = 9; }) == "[sampling] n_logprobs: expected -1 to 8, got 9");
  CHECK(complaint([](options& o) { o.n_logprobs = -2; }) == "[sampling] n_logprobs: expected -1 to 8, got -2");
  CHECK(complaint([](options& o) {
          o.logit_bias = {{1, 0}, {8, 1}};
        }) == "[sampling] logit_bias[1]: expected a token id in [0, 8), got 8");
  CHECK(complaint([](options& o) {
          o.logit_bias = {{1, inf}};
        }) == "[sampling] logit_bias[0]: expected a finite number or -infinity, got inf");
  CHECK(complaint([](options& o) {
          o.logit_bias = {{1, nan_value}};
        }) == "[sampling] logit_bias[0]: expected a finite number or -infinity, got nan");
  CHECK(complaint([](options& o) { o.banned_tokens = {-1}; }) ==
        "[sampling] banned_tokens[0]: expected a token id in [0, 8), got -1");
  CHECK(complaint([](options&) {}, 0) == "[sampling] vocab_size: expected 1 to 4194304, got 0");
  CHECK_FALSE(complaint([](options&) {}, std::size_t{1} << 40).empty());
}

}  // namespace
