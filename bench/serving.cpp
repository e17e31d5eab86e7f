// SPDX-License-Identifier: MIT
// Requests that arrive at random against the engine: throughput, time to the first token, time between tokens.
//   bench_serving MODEL [FORMAT] [--rate R] [--requests N] [--prompt P] [--answer A] [--sequences S] [--threads T] [--svg FILE]
// Arrivals are a Poisson process of R requests per second, lengths of prompts and answers geometric with means P and A, all seeded. Rate 0:
// everything is there at once, which gives the throughput.
#include <quena/backend/cpu/cpu.hpp>
#include <quena/engine/engine.hpp>

#include <algorithm>
#include <charconv>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <random>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "ceilings.hpp"
#include "speed.hpp"

namespace {

using clock_type = std::chrono::steady_clock;

struct options {
  std::string model, format = "auto", svg;
  double rate = 0;
  std::size_t requests = 32, prompt = 128, answer = 128, sequences = 32, threads = 0;
};

/// One request: what it asks, and when its tokens came, in seconds since the start.
struct replayed {
  double arrives = 0;
  quena::engine_request<quena::cpu> request = {};
  std::vector<double> tokens = {};
};

std::vector<replayed> trace(const options& o, std::size_t vocab_size, std::size_t context) {
  std::mt19937_64 random(1);
  const auto uniform = [&] { return (static_cast<double>(random() >> 11) + 0.5) * 0x1p-53; };
  const auto length = [&](std::size_t mean) {
    const double n = o.rate == 0 ? static_cast<double>(mean) : 1 + std::floor(std::log(uniform()) / std::log(1 - 1 / static_cast<double>(mean)));
    return static_cast<std::size_t>(std::clamp(n, 1.0, static_cast<double>(context / 2 - 1)));
  };
  std::vector<replayed> all(o.requests);
  double now = 0;
  for (replayed& r : all) {
    if (o.rate > 0) now -= std::log(uniform()) / o.rate;
    r.arrives = now;
    r.request.prompt.resize(length(o.prompt));
    for (quena::token_id& t : r.request.prompt) t = static_cast<quena::token_id>(random() % (vocab_size * 15 / 16));
    r.request.max_tokens = length(o.answer);
    r.request.sampling.temperature = 0;
  }
  return all;
}

/// Replays it in this thread. Returns the seconds that it took.
double replay(quena::engine<quena::cpu>& e, std::vector<replayed>& all) {
  std::vector<quena::engine_handle> handles;
  const auto start = clock_type::now();
  std::size_t next = 0, open = all.size();
  while (open != 0) {
    const double now = quena_bench::seconds_since(start);
    for (; next < all.size() && all[next].arrives <= now; ++next) handles.push_back(e.submit(all[next].request));
    if (!e.step() && next < all.size()) std::this_thread::sleep_for(std::chrono::duration<double>((std::max)(0.0, all[next].arrives - now)));
    const double after = quena_bench::seconds_since(start);
    for (std::size_t i = 0; i < handles.size(); ++i)
      while (const auto event = handles[i].poll()) {
        if (event->token >= 0) all[i].tokens.push_back(after);
        else --open;
      }
  }
  return quena_bench::seconds_since(start);
}

double share(std::vector<double> values, double part) {
  if (values.empty()) return 0;
  std::sort(values.begin(), values.end());
  return values[(std::min)(values.size() - 1, static_cast<std::size_t>(part * static_cast<double>(values.size())))];
}

/// Each request as a line: waiting, then a dot for every token.
void write_svg(const std::string& path, const std::vector<replayed>& all, double seconds) {
  std::ofstream out(path);
  const double width = 900, row = 6, left = 40, scale = (width - left - 10) / seconds;
  out << "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"" << width << "\" height=\"" << row * static_cast<double>(all.size()) + 40 << "\" font-family=\"sans-serif\" font-size=\"11\">\n";
  for (std::size_t i = 0; i < all.size(); ++i) {
    const double y = 10 + row * static_cast<double>(i);
    const double first = all[i].tokens.empty() ? seconds : all[i].tokens.front(), last = all[i].tokens.empty() ? seconds : all[i].tokens.back();
    out << "<rect x=\"" << left + all[i].arrives * scale << "\" y=\"" << y << "\" width=\"" << (first - all[i].arrives) * scale << "\" height=\"4\" fill=\"#c9c9c9\"/>"
        << "<rect x=\"" << left + first * scale << "\" y=\"" << y << "\" width=\"" << (last - first) * scale << "\" height=\"4\" fill=\"#3a7bd5\"/>\n";
  }
  const double bottom = 24 + row * static_cast<double>(all.size());
  for (int tick = 0; tick <= 5; ++tick) out << "<text x=\"" << left + seconds * scale * tick / 5 << "\" y=\"" << bottom << "\" text-anchor=\"middle\">" << std::round(seconds * tick / 5 * 10) / 10 << " s</text>\n";
  out << "</svg>\n";
}

options parse(int argc, char** argv) {
  options o;
  for (int i = 1; i < argc; ++i) {
    const std::string_view word = argv[i];
    const auto number = [&](auto& to) {
      const char* const text = ++i < argc ? argv[i] : "";
      const char* const end = text + std::strlen(text);
      if (*text == 0 || std::from_chars(text, end, to).ptr != end) quena::fail(quena::errc::invalid_argument, word, "expected a number");
    };
    if (word == "--rate") number(o.rate);
    else if (word == "--requests") number(o.requests);
    else if (word == "--prompt") number(o.prompt);
    else if (word == "--answer") number(o.answer);
    else if (word == "--sequences") number(o.sequences);
    else if (word == "--threads") number(o.threads);
    else if (word == "--svg" && i + 1 < argc) o.svg = argv[++i];
    else if (!word.starts_with("--") && o.model.empty()) o.model = word;
    else if (!word.starts_with("--") && o.format == "auto") o.format = word;
    else quena::fail(quena::errc::invalid_argument, "bench_serving", {"unexpected ", word});
  }
  if (o.model.empty() || o.requests == 0 || o.prompt < 2 || o.answer < 2 || o.sequences == 0 || !(o.rate >= 0)) quena::fail(quena::errc::invalid_argument, "bench_serving", "usage: see the head of bench/serving.cpp");
  if (o.threads == 0) o.threads = (std::max)(std::thread::hardware_concurrency(), 1u);
  return o;
}

int run(const options& o) {
  const auto format = quena::parse_format(o.format);
  if (!format) quena::fail(quena::errc::invalid_argument, "bench_serving", {"no format ", o.format});
  const std::size_t context = 4 * (o.prompt + o.answer);
  const quena::llama<quena::cpu> model(quena::checkpoint::open(o.model), quena::cpu(quena::cpu_options{.threads = static_cast<int>(o.threads)}), {.format = *format, .context = context, .progress = {}});
  std::printf("%s\n", quena_bench::facts_line(static_cast<int>(o.threads)).c_str());

  quena::session<quena::cpu> one(model, {.max_positions = o.prompt + o.answer + 1});
  const double decode = quena_bench::decode_speed(one, 16);
  quena::engine<quena::cpu> e(model, {.max_sequences = o.sequences, .max_positions = context});
  std::vector<replayed> all = trace(o, model.config().vocab_size, context);
  const double seconds = replay(e, all);

  std::vector<double> first, between;
  std::size_t generated = 0;
  for (const replayed& r : all) {
    generated += r.tokens.size();
    if (!r.tokens.empty()) first.push_back(r.tokens.front() - r.arrives);
    for (std::size_t i = 1; i < r.tokens.size(); ++i) between.push_back(r.tokens[i] - r.tokens[i - 1]);
  }
  const quena::engine_metrics m = e.metrics();
  const double speed = static_cast<double>(generated) / seconds;
  std::printf("%zu requests, %zu sequences at a time: %zu tokens in %.1f s, %.1f tokens/s; one sequence alone decodes %.1f: %.2f x\n", all.size(), o.sequences, generated, seconds, speed, decode, speed / decode);
  std::printf("first token   median %.3f s   p95 %.3f   p99 %.3f\n", share(first, 0.5), share(first, 0.95), share(first, 0.99));
  std::printf("next tokens   median %.3f s   p95 %.3f   p99 %.3f\n", share(between, 0.5), share(between, 0.95), share(between, 0.99));
  std::printf("%llu passes, %llu tokens of prompts, %llu preemptions\n", static_cast<unsigned long long>(m.steps), static_cast<unsigned long long>(m.prompt_tokens), static_cast<unsigned long long>(m.preemptions));
  if (!o.svg.empty()) write_svg(o.svg, all, seconds);
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    return run(parse(argc, argv));
  } catch (const std::exception& e) {
    return std::fprintf(stderr, "bench_serving: %s\n", e.what()), 1;
  }
}
