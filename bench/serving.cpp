// SPDX-License-Identifier: MIT
// An engine under load: requests arrive by a seeded Poisson process, or all at once, and every token's time is written down.
//   bench_serving MODEL [--format F] [--threads N] [--rate R] [--requests N] [--prompt N] [--answer N] [--shared N] [--sequences N]
//                 [--budget N] [--pages N] [--no-prefixes] [--seed S] [--svg FILE] [--json]
// --rate: requests per second, 0 for all at once. Lengths of prompts and answers are drawn from log-normal distributions with the given
// medians and sigma 0.6, cut to a quarter and four times of it. --shared: so many first tokens of every prompt are the same.
// Time to first token counts from the moment of arrival, whether the engine had time for the request or not.
#include <algorithm>
#include <charconv>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <fstream>
#include <optional>
#include <random>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include <quena/backend/cpu/cpu.hpp>
#include <quena/engine/engine.hpp>

#include "ceilings.hpp"
#include "svg.hpp"

namespace {

using clock_type = std::chrono::steady_clock;

struct options {
  std::string model, format = "automatic", svg;
  std::size_t threads = 0, requests = 64, prompt = 128, answer = 128, shared = 0, sequences = 32, budget = 256, pages = 0, seed = 1;
  double rate = 4;
  bool prefixes = true, json = false;
};

struct arrival {
  double at_s = 0;
  std::vector<quena::token_id> prompt;
  std::size_t answer = 0;
};

std::vector<arrival> poisson_trace(const options& o, std::size_t vocab_size) {
  std::mt19937_64 random(o.seed);
  // Written out, so that every standard library draws the same.
  const auto uniform = [&] { return (static_cast<double>(random() >> 11) + 0.5) * 0x1p-53; };
  const auto normal = [&] { return std::sqrt(-2 * std::log(uniform())) * std::cos(2 * 3.14159265358979323846 * uniform()); };
  const auto length = [&](std::size_t median) {
    const double x = static_cast<double>(median) * std::exp(0.6 * normal());
    return (std::clamp)(static_cast<std::size_t>(x), (std::max)(median / 4, std::size_t{1}), median * 4);
  };
  const auto token = [&] { return static_cast<quena::token_id>(random() % vocab_size); };
  std::vector<quena::token_id> shared(o.shared);
  for (quena::token_id& t : shared) t = token();
  std::vector<arrival> trace(o.requests);
  double now = 0;
  for (arrival& a : trace) {
    if (o.rate > 0) now -= std::log(uniform()) / o.rate;
    a.at_s = now;
    a.prompt = shared;
    for (std::size_t n = length(o.prompt); n > 0; --n) a.prompt.push_back(token());
    a.answer = length(o.answer);
  }
  return trace;
}

struct times {
  std::vector<double> first_token, inter_token;  // seconds, sorted at the end
  double total_s = 0;
  quena::engine_metrics metrics;
};

/// The host owns the loop: it submits what has arrived, and takes a step.
times replay(const std::vector<arrival>& trace, const quena::llama<quena::cpu>& model, const options& o) {
  std::size_t longest = 0;
  for (const arrival& a : trace) longest = (std::max)(longest, a.prompt.size() + a.answer);
  quena::engine<quena::cpu> engine(model, {.cache = {.max_positions = longest + 1, .max_sequences = o.sequences, .n_pages = o.pages},
                                           .token_budget = (std::max)(o.budget, o.sequences),
                                           .max_queue = trace.size(),
                                           .share_prefixes = o.prefixes});
  times t;
  const auto start = clock_type::now();
  const auto since_start = [&] { return std::chrono::duration<double>(clock_type::now() - start).count(); };
  std::vector<double> last(trace.size(), -1);
  std::size_t n_ended = 0;
  for (std::size_t next = 0; n_ended < trace.size();) {
    for (; next < trace.size() && trace[next].at_s <= since_start(); ++next) {
      quena::request r{.prompt = trace[next].prompt, .max_tokens = trace[next].answer};
      r.sampling.temperature = 0;
      r.on_event = [&, next](const quena::engine_event& e) {
        const double now = since_start();
        if (e.reason != quena::finish_reason::none) ++n_ended;
        if (!e.token) return;
        if (last[next] < 0) t.first_token.push_back(now - trace[next].at_s);
        else t.inter_token.push_back(now - last[next]);
        last[next] = now;
      };
      static_cast<void>(engine.submit(std::move(r)));
    }
    if (!engine.step() && next < trace.size()) std::this_thread::sleep_for(std::chrono::duration<double>((std::max)(0.0, trace[next].at_s - since_start())));
  }
  t.total_s = since_start();
  t.metrics = engine.metrics();
  std::sort(t.first_token.begin(), t.first_token.end());
  std::sort(t.inter_token.begin(), t.inter_token.end());
  return t;
}

double percentile(const std::vector<double>& sorted, double p) {
  if (sorted.empty()) return 0;
  return sorted[(std::min)(sorted.size() - 1, static_cast<std::size_t>(p * static_cast<double>(sorted.size())))];
}

void print_line(const char* name, const std::vector<double>& sorted) {
  std::printf("%-24s %10.2f %10.2f %10.2f   ms\n", name, 1e3 * percentile(sorted, 0.5), 1e3 * percentile(sorted, 0.95), 1e3 * percentile(sorted, 0.99));
}
void print_json(const char* name, const std::vector<double>& sorted) {
  std::printf(", \"%s_ms\": {\"median\": %.3f, \"p95\": %.3f, \"p99\": %.3f}", name, 1e3 * percentile(sorted, 0.5), 1e3 * percentile(sorted, 0.95), 1e3 * percentile(sorted, 0.99));
}

void print(const options& o, const times& t, int threads) {
  const quena::engine_metrics& m = t.metrics;
  const double generated = static_cast<double>(m.generated_tokens) / t.total_s, computed = static_cast<double>(m.computed_tokens) / t.total_s;
  const double own = (m.step_s - m.forward_s - m.choose_s) / m.step_s, rows = static_cast<double>(m.computed_tokens) / static_cast<double>(m.steps);
  if (o.json) {
    std::printf("{\"machine\": \"%s\", \"rate\": %g, \"requests\": %zu, \"generated_s\": %.2f, \"computed_s\": %.2f, \"rows_per_step\": %.2f", quena_bench::facts_line(threads).c_str(),
                o.rate, o.requests, generated, computed, rows);
    print_json("first_token", t.first_token);
    print_json("inter_token", t.inter_token);
    std::printf(", \"scheduler_share\": %.5f, \"prefix_tokens\": %zu, \"preemptions\": %zu}\n", own, m.prefix_tokens, m.preemptions);
    return;
  }
  std::printf("%s\n", quena_bench::facts_line(threads).c_str());
  std::printf("%zu requests, %s, prompts of about %zu + %zu tokens, answers of about %zu; %zu sequences, %zu rows a step, seed %zu\n", o.requests,
              o.rate > 0 ? (std::to_string(o.rate) + " per second").c_str() : "all at once", o.shared, o.prompt, o.answer, o.sequences, (std::max)(o.budget, o.sequences), o.seed);
  std::printf("%-24s %10.1f   tokens/s in %.2f s\n", "generated", generated, t.total_s);
  std::printf("%-24s %10.1f   tokens/s, %.1f rows a step\n", "computed", computed, rows);
  std::printf("%-24s %10s %10s %10s\n", "", "median", "p95", "p99");
  print_line("time to first token", t.first_token);
  print_line("between tokens", t.inter_token);
  std::printf("scheduler %.3f %% of a step, sampling %.2f %%; %zu of %zu prompt tokens from the prefix cache; %zu preemptions\n", 100 * own, 100 * m.choose_s / m.step_s, m.prefix_tokens,
              m.prompt_tokens, m.preemptions);
}

template <class Number>
bool parse(std::string_view text, Number& out) {
  const auto [end, code] = std::from_chars(text.data(), text.data() + text.size(), out);
  return code == std::errc() && end == text.data() + text.size();
}

std::optional<options> parse_arguments(int argc, char** argv) {
  options o;
  const std::pair<std::string_view, std::size_t*> sizes[] = {{"--threads", &o.threads}, {"--requests", &o.requests}, {"--prompt", &o.prompt},       {"--answer", &o.answer}, {"--shared", &o.shared},
                                                             {"--budget", &o.budget},   {"--pages", &o.pages},       {"--sequences", &o.sequences}, {"--seed", &o.seed}};
  for (int i = 1; i < argc; ++i) {
    const std::string_view a = argv[i];
    const bool more = i + 1 < argc;
    const auto size = std::find_if(std::begin(sizes), std::end(sizes), [&](const auto& s) { return s.first == a; });
    if (a == "--json") o.json = true;
    else if (a == "--no-prefixes") o.prefixes = false;
    else if (a == "--svg" && more) o.svg = argv[++i];
    else if (a == "--format" && more) o.format = argv[++i];
    else if (a == "--rate" && more && parse(argv[i + 1], o.rate)) ++i;
    else if (size != std::end(sizes) && more && parse(argv[i + 1], *size->second)) ++i;
    else if (o.model.empty() && !a.starts_with('-')) o.model = a;
    else return {};
  }
  if (o.model.empty() || o.requests == 0 || o.prompt == 0 || o.answer == 0) return {};
  return o;
}

int run(const options& o) {
  const auto format = quena::parse_format(o.format);
  if (!format) return std::fprintf(stderr, "bench_serving: no format %s\n", o.format.c_str()), 2;
  const quena::llama<quena::cpu> model(quena::checkpoint::open(o.model), quena::cpu({.threads = static_cast<int>(o.threads), .level = {}}), {.format = *format, .progress = {}});
  const times t = replay(poisson_trace(o, model.config().vocab_size), model, o);
  print(o, t, static_cast<int>(model.backend().concurrency()));
  if (!o.svg.empty()) {
    std::ofstream out(o.svg);
    out << quena_bench::distribution_plot("Share of all that took at most so long", {{"time to first token", t.first_token}, {"between tokens", t.inter_token}});
    if (!out.flush()) return std::fprintf(stderr, "bench_serving: cannot write %s\n", o.svg.c_str()), 1;
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  const std::optional<options> o = parse_arguments(argc, argv);
  if (!o)
    return std::fprintf(stderr, "usage: bench_serving MODEL [--format F] [--threads N] [--rate R] [--requests N] [--prompt N] [--answer N] [--shared N]\n"
                                "       [--sequences N] [--budget N] [--pages N] [--no-prefixes] [--seed S] [--svg FILE] [--json]\n"),
           2;
  try {
    return run(*o);
  } catch (const quena::error& e) {
    return std::fprintf(stderr, "bench_serving: %s\n", e.what()), 1;
  }
}
