// SPDX-License-Identifier: MIT
#include <quena/core/dtype.hpp>

#include <limits>

#include "../support.hpp"

using namespace quena;

TEST_CASE("dtype: sizes of plain and block types") {
  CHECK(n_bytes(dtype::f32, 3) == 12);
  CHECK(n_bytes(dtype::bf16, 3) == 6);
  CHECK(n_bytes(dtype::boolean, 7) == 7);
  CHECK(n_bytes(dtype::q8_0, 64) == 68);
  CHECK(n_bytes(dtype::q4_0, 32) == 18);
  CHECK(n_bytes(dtype::q4_1, 32) == 20);
  CHECK(n_bytes(dtype::q5_0, 32) == 22);
  CHECK(n_bytes(dtype::q5_1, 32) == 24);
  CHECK(n_bytes(dtype::q4_k, 512) == 288);
  CHECK(n_bytes(dtype::q5_k, 256) == 176);
  CHECK(n_bytes(dtype::q6_k, 256) == 210);
  CHECK(n_bytes(dtype::q6_k, 0) == 0);
}

TEST_CASE("dtype: names follow the enumeration") {
  CHECK(dtype_name(dtype::f32) == "f32");
  CHECK(dtype_name(dtype::boolean) == "bool");
  CHECK(dtype_name(dtype::q8_0) == "q8_0");
  CHECK(dtype_name(dtype::q6_k) == "q6_k");
  CHECK(static_cast<std::size_t>(dtype::q6_k) + 1 == n_dtypes);
  CHECK(is_block_type(dtype::q8_0));
  CHECK_FALSE(is_block_type(dtype::boolean));
  CHECK(is_weight_type(dtype::bf16));
  CHECK_FALSE(is_weight_type(dtype::f64));
}

TEST_CASE("dtype: partial blocks and overflow are errors") {
  CHECK_THROWS_WITH_AS((void)n_bytes(dtype::q4_k, 128), "[dtype] expected a multiple of 256 elements of q4_k that fits in memory, got 128", error);
  constexpr std::size_t most = std::numeric_limits<std::size_t>::max();
  CHECK_THROWS_AS((void)n_bytes(dtype::f32, most / 2), error);
  CHECK(checked_n_bytes(dtype::u8, most) == most);
  CHECK_FALSE(checked_n_bytes(dtype::f16, most / 2 + 1));
}
