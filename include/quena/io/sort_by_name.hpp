// SPDX-License-Identifier: MIT
// Sorting records by name: one instance of the sort for all of them.
#pragma once

#include <algorithm>
#include <cstddef>
#include <string_view>
#include <utility>
#include <vector>

#include "../core/config.hpp"

namespace quena::inline QUENA_ABI {
namespace detail {

inline void sort_names(std::vector<std::pair<std::string_view, std::size_t>>& names) { std::sort(names.begin(), names.end()); }

/// Sorts by name(record), a string view; records of one name keep their order.
template <class Record, class Name>
void sort_by_name(std::vector<Record>& records, Name&& name) {
  std::vector<std::pair<std::string_view, std::size_t>> names;
  names.reserve(records.size());
  for (std::size_t i = 0; i < records.size(); ++i) names.emplace_back(name(records[i]), i);
  sort_names(names);
  std::vector<Record> sorted;
  sorted.reserve(records.size());
  for (const auto& [unused, i] : names) sorted.push_back(std::move(records[i]));
  records = std::move(sorted);
}

}  // namespace detail
}  // namespace quena::inline QUENA_ABI
