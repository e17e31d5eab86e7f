// SPDX-License-Identifier: MIT
// Speed of the CPU backend's kernels as shares of what this machine can do, measured in the same run.
//   bench_kernels [--threads N] [--seconds S] [--only matmul|attend|rows] [--format F] [--shape ROWSxCOLS] [--json]
//
// matmul: one weight matrix and n rows of activations. What bounds it is reading the weights (few rows) or multiplying (many), so the
// ceiling is the roofline min(GMAC/s of FMA or, for integer weights, of 8-bit dot products, GB/s of reading * multiply-adds per byte), and both shares are printed. The matrices rotate
// through more memory than the caches hold, as a model's do.
// attend: rows of one sequence over its whole cache. rows: RMSNorm over a model's activations.
//
// Every figure is the median of repeats in which the ceilings are measured anew (machines change within seconds), with lowest and highest.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <string_view>
#include <vector>

#include <quena/backend/cpu/cpu.hpp>

#include "ceilings.hpp"

namespace {

struct options {
  int threads = 0;
  double seconds = 0.15;  ///< for each line
  std::string_view only, format;
  std::size_t rows = 8192, cols = 2048;
  bool json = false;
};

double now_s() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

/// Random enough, and fast to make.
void fill(float* to, std::size_t n, float scale) {
  std::uint32_t state = 12345;
  for (std::size_t i = 0; i < n; ++i) {
    state = state * 1664525u + 1013904223u;
    to[i] = (static_cast<float>(state >> 8) * 0x1p-24f - 0.5f) * scale;
  }
}

/// Ceilings that are measured again before every figure, in memory that is made once.
class machine {
 public:
  explicit machine(int n_threads) : n_threads_(n_threads), buffer_(quena_bench::read_buffer_bytes() / 2) { std::memset(buffer_.data(), 1, buffer_.size()); }
  /// Of the fp32 FMA or of the 8-bit integer dot product.
  double gmac_s(bool integers) const {
    const quena_bench::compute_unit unit = integers ? quena_bench::best_int8_unit(quena_bench::detect_cpu()) : quena_bench::best_fp32_unit(quena_bench::detect_cpu());
    return quena_bench::timed_rates(n_threads_, 1, n_threads_ * unit.macs_per_iteration * 200000 * 1e-9, [&](int) { unit.run(200000); }).front();
  }
  double read_gb_s() const {
    const quena_bench::read_unit unit = quena_bench::best_read_unit(quena_bench::detect_cpu());
    const std::size_t part = buffer_.size() / static_cast<std::size_t>(n_threads_) / 4096 * 4096;
    return quena_bench::timed_rates(n_threads_, 1, static_cast<double>(part) * n_threads_ * 1e-9,
                                    [&](int t) { unit.run(buffer_.data() + static_cast<std::size_t>(t) * part, part); })
        .front();
  }

 private:
  int n_threads_;
  quena_bench::big_buffer buffer_;
};

/// One line of the report.
void report(const options& o, const std::string& what, std::vector<double> gmac_s, std::vector<double> gb_s, std::vector<double> of_fma, std::vector<double> of_read,
            std::vector<double> of_roofline) {
  const auto macs = quena_bench::summary(std::move(gmac_s)), bytes = quena_bench::summary(std::move(gb_s)), fma = quena_bench::summary(std::move(of_fma)),
             read = quena_bench::summary(std::move(of_read)), roof = quena_bench::summary(std::move(of_roofline));
  if (o.json)
    std::printf("{\"what\": \"%s\", \"gmac_s\": %.2f, \"gb_s\": %.2f, \"of_fma\": %.4f, \"of_read\": %.4f, \"of_roofline\": %.4f, \"lowest\": %.4f, \"highest\": %.4f}\n",
                what.c_str(), macs.median, bytes.median, fma.median, read.median, roof.median, roof.lowest, roof.highest);
  else
    std::printf("%-34s %8.1f GMAC/s %5.0f %%  %7.1f GB/s %5.0f %%   %5.0f %% (%.0f to %.0f)\n", what.c_str(), macs.median, 100 * fma.median, bytes.median,
                100 * read.median, 100 * roof.median, 100 * roof.lowest, 100 * roof.highest);
  std::fflush(stdout);
}

/// Repeats `run`, which does `gmac` billion multiply-adds and reads `gb` billion bytes, for about the time asked for.
template <class Run>
void measure(const options& o, const machine& m, const std::string& what, bool integers, double gmac, double gb, Run run) {
  run();
  std::vector<double> gmac_s, gb_s, of_fma, of_read, of_roofline;
  const double end = now_s() + o.seconds;
  do {
    const double fma = m.gmac_s(integers), read = m.read_gb_s();
    run();  // wakes the executor's threads
    const double start = now_s();
    int n = 0;
    while (n < 2 || (n < 1000 && now_s() - start < 0.02)) run(), ++n;
    const double s = (now_s() - start) / n;
    gmac_s.push_back(gmac / s), gb_s.push_back(gb / s);
    of_fma.push_back(gmac / s / fma), of_read.push_back(gb / s / read);
    of_roofline.push_back(std::max(gmac / fma, gb / read) / s);
  } while (now_s() < end || gmac_s.size() < 5);
  report(o, what, std::move(gmac_s), std::move(gb_s), std::move(of_fma), std::move(of_read), std::move(of_roofline));
}

void bench_matmul(const options& o, const machine& m, const quena::cpu& b) {
  const std::size_t max_n = 512;
  auto stream = b.make_stream({max_n, std::max(o.rows, o.cols), 1, 64, 1});
  std::vector<float> weights(o.rows * o.cols);
  fill(weights.data(), weights.size(), 0.1f);
  const quena::matrix_source source{"w", quena::dtype::f32, o.rows, o.cols, reinterpret_cast<const std::byte*>(weights.data()), 0, {}};
  const std::size_t x_stride = o.cols + 16, y_stride = o.rows + 16;
  auto x = b.allocate(max_n * x_stride), y = b.allocate(max_n * y_stride);
  fill(x.data(), max_n * x_stride, 1);
  using quena::format;
  for (const format f : {format::f32, format::f16, format::bf16, format::int8, format::int8_g32, format::int4, format::int4z}) {
    if (!o.format.empty() && quena::format_name(f) != o.format) continue;
    std::vector<quena::cpu_matrix> layers;
    layers.push_back(b.prepare({&source, 1}, f));
    const double gb = static_cast<double>(layers[0].n_bytes()) * 1e-9;
    while (static_cast<double>(layers.size()) * gb < 0.3) layers.push_back(b.prepare({&source, 1}, f));
    for (const std::size_t n : {1u, 2u, 4u, 6u, 8u, 12u, 16u, 32u, 64u, 128u, 512u}) {
      const quena::tensor_view<const float, 2> in(x.data(), {n, o.cols}, {static_cast<std::ptrdiff_t>(x_stride), 1});
      const quena::tensor_view<float, 2> out(y.data(), {n, o.rows}, {static_cast<std::ptrdiff_t>(y_stride), 1});
      std::size_t at = 0;
      measure(o, m, "matmul " + std::string(quena::format_name(f)) + ", rows " + std::to_string(n), quena::codes_of(f).has_value(), static_cast<double>(n * o.rows * o.cols) * 1e-9, gb,
              [&] { b.matmul(stream, layers[at++ % layers.size()], in, out); });
    }
  }
}

void bench_attend(const options& o, const machine& m, const quena::cpu& b) {
  const std::size_t n_heads = 32, n_kv_heads = 8, d = 64, n_positions = 4096, page_size = 64, width = (n_heads + 2 * n_kv_heads) * d;
  auto stream = b.make_stream({512, width, n_heads, d, n_positions});
  std::vector<quena::page_id> pages(n_positions / page_size);
  for (std::size_t i = 0; i < pages.size(); ++i) pages[i] = static_cast<quena::page_id>(i);
  const std::span<const quena::page_id> table[] = {pages};
  auto qkv = b.allocate(512 * width), out = b.allocate(512 * n_heads * d);
  fill(qkv.data(), 512 * width, 1);
  const std::vector<float> cos(512 * d / 2, 1.0f), sin(512 * d / 2, 0.0f);
  const std::size_t n_layers = 8;  // rotated through, as in a model
  for (const quena::dtype cell : {quena::dtype::f32, quena::dtype::f16, quena::dtype::bf16, quena::dtype::i8}) {
    auto pool = b.make_kv_pool({n_layers, n_kv_heads, d, page_size, pages.size(), cell});
    for (const std::size_t n : {512u, 1u, 4u}) {
      std::vector<quena::token_id> tokens(n);
      std::vector<std::uint32_t> positions(n), sequences(n, 0);
      const auto rows = [&](std::size_t from) {
        for (std::size_t i = 0; i < n; ++i) positions[i] = static_cast<std::uint32_t>(from + i);
        return quena::batch{tokens, positions, sequences, table, {cos.data(), {n, d / 2}}, {sin.data(), {n, d / 2}}, {}};
      };
      if (n == 512)
        for (std::size_t at = 0; at < n_positions; at += n)
          for (std::size_t l = 0; l < n_layers; ++l) b.rope_append(stream, {qkv.data(), {n, width}}, rows(at), l, pool);
      const std::size_t from = n_positions - n;
      const quena::batch last = rows(from);
      double positions_read = 0;
      for (const std::uint32_t p : positions) positions_read += p + 1.0;
      std::size_t at = 0;
      measure(o, m, "attend " + std::string(quena::dtype_name(cell)) + ", rows " + std::to_string(n) + " of " + std::to_string(n_positions),
              false, positions_read * static_cast<double>(2 * n_heads * d) * 1e-9, static_cast<double>(n_positions * 2 * n_kv_heads * pool.shape().row_bytes()) * 1e-9,
              [&] { b.attend(stream, {qkv.data(), {n, width}}, last, at++ % n_layers, pool, {out.data(), {n, n_heads * d}}); });
    }
  }
}

void bench_rows(const options& o, const machine& m, const quena::cpu& b) {
  auto stream = b.make_stream({512, o.cols, 1, 64, 1});
  auto x = b.allocate(512 * o.cols), y = b.allocate(512 * o.cols);
  fill(x.data(), 512 * o.cols, 1);
  const std::vector<float> ones(o.cols, 1.0f);
  const auto gain = b.prepare_vector({quena::dtype::f32, o.cols, reinterpret_cast<const std::byte*>(ones.data())});
  for (const std::size_t n : {1u, 512u})
    measure(o, m, "rmsnorm, rows " + std::to_string(n), false, static_cast<double>(n * o.cols) * 1e-9, static_cast<double>(n * o.cols * sizeof(float)) * 1e-9,
            [&] { b.rmsnorm(stream, {x.data(), {n, o.cols}}, gain, 1e-5f, {y.data(), {n, o.cols}}); });
}

}  // namespace

int main(int argc, char** argv) {
  options o;
  for (int i = 1; i < argc; ++i) {
    const std::string_view option = argv[i];
    char* end = nullptr;
    if (option == "--json") o.json = true;
    else if (option == "--threads" && i + 1 < argc) o.threads = std::atoi(argv[++i]);
    else if (option == "--seconds" && i + 1 < argc) o.seconds = std::atof(argv[++i]);
    else if (option == "--only" && i + 1 < argc) o.only = argv[++i];
    else if (option == "--format" && i + 1 < argc) o.format = argv[++i];
    else if (option == "--shape" && i + 1 < argc) o.rows = std::strtoul(argv[++i], &end, 10), o.cols = end != nullptr && *end == 'x' ? std::strtoul(end + 1, nullptr, 10) : 0;
    else
      return std::fprintf(stderr, "usage: bench_kernels [--threads N] [--seconds S] [--only matmul|attend|rows] [--format F] [--shape ROWSxCOLS] [--json]\n"), 2;
  }
  try {
    const quena::cpu b(quena::cpu_options{.threads = o.threads});
    const machine m(static_cast<int>(b.concurrency()));
    const std::string facts = quena_bench::facts_line(static_cast<int>(b.concurrency())), name(b.name());
    std::printf(o.json ? "{\"machine\": \"%s\", \"backend\": \"%s\"}\n" : "%s; %s\n", facts.c_str(), name.c_str());
    if (!o.json) std::printf("%-34s %s\n", "", "         rate, of ceiling;    weights or cache read, of bandwidth;   of the roofline (lowest to highest)");
    if (o.only.empty() || o.only == "matmul") bench_matmul(o, m, b);
    if (o.only.empty() || o.only == "attend") bench_attend(o, m, b);
    if (o.only.empty() || o.only == "rows") bench_rows(o, m, b);
  } catch (const quena::error& e) {
    return std::fprintf(stderr, "bench_kernels: %s\n", e.what()), 1;
  }
}
