// SPDX-License-Identifier: MIT
// Does a backend do what backend.hpp says? One call answers:
//
//   const quena::conformance_report report = quena::check_backend(my_backend{});
//   for (const quena::conformance_failure& f : report.failures)
//     std::cout << f.operation << " (" << f.which << "): expected " << f.expected << ", got " << f.got << '\n';
//
// Everything goes through the operations of the concept, so the backend's memory need not be the host's.
#pragma once

#include "conformance/attention.hpp"
#include "conformance/dense.hpp"
#include "conformance/errors.hpp"
#include "conformance/report.hpp"

namespace quena::inline QUENA_ABI {

/// Runs every operation of a backend on seeded random inputs and compares with `reference` within derived tolerances, and with
/// itself, bit for bit, where the contract says that a result may not depend on something:
///   weights    every type a file may have, in every format, stacked, biased, in GGUF's row order; sizes around vector widths
///   rows       none, one, many; alone, in other company, in another order, with other distances; nothing beside them is touched
///   cache      cells of f32, f16, bf16, i8; heads of 2 to 128; 1 to 8 query heads for each KV head; pages in any order, shared,
///              copied, moved through the host; sequences in pieces, mixed; leftovers beyond a position, NaN among them, ignored
///   errors     what doesn't fit is refused, writes nothing and leaves the backend working
/// Errors   none of its own: an exception that the backend throws is a failure in the report.
/// Cost     some seconds for a backend as slow as reference.
template <backend B>
[[nodiscard]] conformance_report check_backend(const B& b, const conformance_options& options = {}) {
  detail::conformance_log log;
  log.guarded("check_backend", "errors", [&] { detail::check_errors(log, b); });  // first: what follows shows that the backend still works
  log.guarded("check_backend", "products", [&] { detail::check_products(log, b, options); });
  log.guarded("check_backend", "rmsnorm", [&] { detail::check_rmsnorm(log, b, options); });
  log.guarded("check_backend", "copies", [&] { detail::check_copies(log, b, options); });
  log.guarded("check_backend", "caches", [&] { detail::check_caches(log, b, options); });
  return log.take();
}

}  // namespace quena::inline QUENA_ABI
