// SPDX-License-Identifier: MIT
// The CPU backend: vector kernels chosen at run time, any number of threads, results that depend on neither batch nor threads.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstring>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "../../core/hash.hpp"
#include "../backend.hpp"
#include "dispatch.hpp"
#include "executor.hpp"
#include "kernel_table.hpp"
#include "kv_pool.hpp"
#include "packing.hpp"

namespace quena::inline QUENA_ABI {

struct cpu_options {
  int threads = 0;                ///< 0: all cores of this process
  std::optional<isa> level = {};  ///< use nothing above this instruction set
  /// Multiply-adds that are worth a thread's attention, some microseconds; operations with less to do stay on fewer threads.
  std::size_t task_work = std::size_t{1} << 16;
};

namespace detail {

inline std::size_t checked_threads(int threads) {
  if (threads < 0 || threads > 4096) fail(errc::invalid_argument, "cpu", {"expected 0 to 4096 threads, got ", threads});
  return static_cast<std::size_t>(threads);
}

}  // namespace detail

/// See backend.hpp for what each operation means.
/// Numerics f32 throughout. A product's error is at most (256 + cols / 256 + 3) * 2^-24 * sum |w x| (blocks of 256 columns, each one
///          chain of fused multiply-adds, added in order); without FMA twice the first term. Integer weights: activations are rounded
///          to 8 bits, which adds at most max |x| / 254 * sum |w| for each 256 columns; the rest is as small.
/// Threads  outputs are split among them, never a sum. Two streams may run at the same time: the second one then runs on its
///          caller's thread alone (with OpenMP: on threads of its own).
/// Errors   quena::error for shapes that don't match, before anything is written.
class cpu {
 public:
  using matrix = cpu_matrix;
  using kv_pool = cpu_kv_pool;

  class buffer {
   public:
    buffer() = default;
    explicit buffer(std::size_t n_floats) : memory_(checked_product(n_floats, sizeof(float), "allocate")) {
      if (memory_.size() != 0) std::memset(memory_.data(), 0, memory_.size());
    }
    [[nodiscard]] float* data() noexcept { return reinterpret_cast<float*>(memory_.data()); }
    [[nodiscard]] const float* data() const noexcept { return reinterpret_cast<const float*>(memory_.data()); }

   private:
    aligned_buffer memory_;
  };
  /// A norm gain.
  struct vector {
    std::size_t size = 0;
    buffer values;
  };
  /// Scratch for one pass at a time.
  struct stream {
    stream_limits limits;
    std::size_t worker_floats = 0;  ///< scratch of each worker
    aligned_buffer workers;         ///< [concurrency][worker_floats]
    std::size_t partial_floats = 0;
    aligned_buffer partials;        ///< of attention that is split along positions
    aligned_buffer rounded;         ///< the input of a product with integer weights
  };

  explicit cpu(const cpu_options& options = {})
      : kernels_(&detail::kernels_for(best_isa(options.level))),
        executor_(detail::default_executor(detail::checked_threads(options.threads))),
        n_workers_((std::max)(std::size_t{1}, executor_.concurrency())),
        task_work_((std::max)(std::size_t{1}, options.task_work)) {}
  /// On an executor of the caller's, which must outlive the backend and its copies of streams. threads caps what is used of it.
  template <executor E>
    requires(!std::same_as<std::remove_const_t<E>, cpu_options> && !std::same_as<std::remove_const_t<E>, cpu>)
  explicit cpu(E& host, const cpu_options& options = {})
      : kernels_(&detail::kernels_for(best_isa(options.level))),
        executor_(detail::any_executor::refer(host)),
        n_workers_((std::max)(std::size_t{1}, executor_.concurrency())),
        task_work_((std::max)(std::size_t{1}, options.task_work)) {
    if (const std::size_t cap = detail::checked_threads(options.threads); cap != 0) n_workers_ = (std::min)(n_workers_, cap);
  }

  [[nodiscard]] std::string_view name() const noexcept {
    return kernels_->level == isa::avx512 ? "cpu (avx512)" : kernels_->level == isa::avx2 ? "cpu (avx2)" : "cpu (portable)";
  }
  [[nodiscard]] isa level() const noexcept { return kernels_->level; }
  [[nodiscard]] std::size_t concurrency() const noexcept { return n_workers_; }
  /// Before fork(), on an openmp_executor: lets its idle threads go; they come back with the next operation.
  void release_threads() const { executor_.release_threads(); }

  [[nodiscard]] stream make_stream(const stream_limits& limits) const;
  [[nodiscard]] buffer allocate(std::size_t n_floats) const { return buffer(n_floats); }
  [[nodiscard]] matrix prepare(std::span<const matrix_source> sources, format f) const;
  [[nodiscard]] matrix prepare_gate_up(const matrix_source& gate, const matrix_source& up, format f) const {
    const matrix_source both[] = {gate, up};
    return pack(detail::empty_matrix("prepare_gate_up", both, detail::layout_of(gate, up, f), true), both);
  }
  [[nodiscard]] vector prepare_vector(const vector_source& source) const {
    vector v{source.size, buffer(source.size)};
    dequantize_row(source.type, source.data, v.values.data(), source.size);
    return v;
  }
  [[nodiscard]] kv_pool make_kv_pool(const kv_shape& shape) const { return kv_pool(shape); }

  /// Panels as in packing.hpp and code_layout.hpp: the same for every instruction set.
  static constexpr std::string_view packed_form = "cpu-1";
  [[nodiscard]] std::vector<packed_part> parts(const matrix& m) const;
  [[nodiscard]] std::span<const float> values(const vector& v) const noexcept { return {v.values.data(), v.size}; }
  [[nodiscard]] matrix adopt(std::span<const packed_part> parts, const std::shared_ptr<const void>& keeper) const;
  [[nodiscard]] std::uint64_t hash(std::span<const std::byte> bytes) const {
    std::vector<std::uint64_t> pieces(n_hash_pieces(bytes.size()));
    split(pieces.size(), bytes.size(), [&](std::size_t first, std::size_t last, std::size_t) { hash_pieces(bytes, first, last, pieces); });
    return combined_hash(pieces);
  }

  void begin(stream&, const batch&) const noexcept {}
  void embed(stream&, const matrix& w, const batch& rows, tensor_view<float, 2> x) const;
  void rmsnorm(stream&, tensor_view<const float, 2> x, const vector& gain, float eps, tensor_view<float, 2> y) const;
  void matmul(stream& s, const matrix& w, tensor_view<const float, 2> x, tensor_view<float, 2> y) const { product("matmul", s, w, x, y, detail::epilogue::store); }
  void matmul_add(stream& s, const matrix& w, tensor_view<const float, 2> x, tensor_view<float, 2> y) const { product("matmul_add", s, w, x, y, detail::epilogue::add); }
  void matmul_swiglu(stream& s, const matrix& w, tensor_view<const float, 2> x, tensor_view<float, 2> y) const { product("matmul_swiglu", s, w, x, y, detail::epilogue::swiglu); }
  void matmul_gate_up(stream& s, const matrix& w, tensor_view<const float, 2> x, tensor_view<float, 2> y) const { product("matmul_gate_up", s, w, x, y, detail::epilogue::pair); }
  void swiglu(stream&, tensor_view<const float, 2> gate_up, tensor_view<float, 2> y) const;
  void rope_append(stream&, tensor_view<float, 2> qkv, const batch& rows, std::size_t layer, kv_pool& pool) const;
  void attend(stream& s, tensor_view<const float, 2> qkv, const batch& rows, std::size_t layer, const kv_pool& pool, tensor_view<float, 2> out) const;
  void select(stream&, tensor_view<const float, 2> x, const batch& rows, tensor_view<float, 2> y) const;
  void read(stream&, tensor_view<const float, 2> view, std::span<float> host) const;
  void copy_page(stream&, kv_pool& pool, page_id from, page_id to) const;
  void read_page(stream&, const kv_pool& pool, page_id page, std::span<std::byte> host) const;
  void write_page(stream&, kv_pool& pool, page_id page, std::span<const std::byte> host) const;

 private:
  /// As many tasks as there are workers, `n` things and work for.
  [[nodiscard]] std::size_t tasks_for(std::size_t n, std::size_t work) const noexcept {
    return (std::max)(std::size_t{1}, (std::min)({n_workers_, n, work / task_work_}));
  }
  /// Splits [0, n) into contiguous ranges, f(first, last, range): `pieces` for each worker, so that one who is held up is helped out.
  template <class F>
  void split(std::size_t n, std::size_t work, F&& f, std::size_t pieces = 1) const {
    const std::size_t n_workers = tasks_for(n, work), n_tasks = n_workers == 1 ? 1 : (std::min)(n, n_workers * pieces);
    if (n_tasks == 1) return f(std::size_t{0}, n, std::size_t{0});
    const auto task = [&](std::size_t i) { f(n * i / n_tasks, n * (i + 1) / n_tasks, i); };
    run(n_tasks, task);
  }
  /// f(item, worker) for each of n items; workers take the next one as they get free.
  template <class F>
  void share(std::size_t n, std::size_t work, F&& f) const {
    const std::size_t n_tasks = tasks_for(n, work);
    std::atomic<std::size_t> next{0};
    const auto task = [&](std::size_t worker) {
      for (std::size_t i; (i = next.fetch_add(1, std::memory_order_relaxed)) < n;) f(i, worker);
    };
    if (n_tasks == 1) return task(0);
    run(n_tasks, task);
  }
  /// Panels in long contiguous pieces, four for each worker: f(first, last, worker).
  template <class F>
  void share_panels(const matrix& w, std::size_t work, F&& f) const {
    const std::size_t n = w.n_panels(), n_pieces = (std::min)(n, 4 * tasks_for(n, work));
    share(n_pieces, work, [&](std::size_t i, std::size_t worker) { f(n * i / n_pieces, n * (i + 1) / n_pieces, worker); });
  }
  /// Blocks of rows times groups of panels, more of them than workers: f(first panel, last, first row, last, worker).
  template <class F>
  void share_blocks(const matrix& w, std::size_t n_blocks, std::size_t block, std::size_t n_rows, std::size_t work, F&& f) const {
    const std::size_t n_groups = (w.n_panels() + detail::many_panels - 1) / detail::many_panels;
    share(n_blocks * n_groups, work, [&](std::size_t item, std::size_t worker) {
      const std::size_t panel = item / n_blocks * detail::many_panels, row = item % n_blocks * block;
      if (row < n_rows) f(panel, (std::min)(w.n_panels(), panel + detail::many_panels), row, (std::min)(n_rows, row + block), worker);
    });
  }
  template <class Task>
  void run(std::size_t n_tasks, const Task& task) const {
    executor_.run(n_tasks, {&task, [](const void* t, std::size_t i) { (*static_cast<const Task*>(t))(i); }});
  }

  [[nodiscard]] matrix pack(matrix m, std::span<const matrix_source> sources) const;
  void product(std::string_view where, stream& s, const matrix& w, tensor_view<const float, 2> x, tensor_view<float, 2> y, detail::epilogue mode) const;
  void float_product(stream& s, const matrix& w, const detail::matmul_args& args) const;
  void code_product(stream& s, const matrix& w, const detail::matmul_args& args) const;

  const detail::kernel_table* kernels_;
  detail::any_executor executor_;
  std::size_t n_workers_;
  std::size_t task_work_;
  std::size_t ahead_ = stream_ahead();
};

}  // namespace quena::inline QUENA_ABI

#include "operations.inl"

namespace quena::inline QUENA_ABI {
static_assert(packing_backend<cpu>);
}
