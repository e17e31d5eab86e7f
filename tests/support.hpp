// SPDX-License-Identifier: MIT
// Helpers that many tests share: where data lies, whole files, temporary folders.
#pragma once

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <ios>
#include <iterator>
#include <optional>
#include <random>
#include <stdexcept>
#include <string>
#include <string_view>
#include <system_error>

#include <doctest/doctest.h>

#include <quena/core/error.hpp>

namespace quena_test {

namespace fs = std::filesystem;

/// The repository's root: the build says it; in a build by hand it is where this file was compiled from.
inline std::string source_dir() {
#ifdef QUENA_SOURCE_DIR
  return QUENA_SOURCE_DIR;
#else
  return fs::absolute(__FILE__).parent_path().parent_path().string();
#endif
}

/// A file or folder of tests/data.
inline std::string data(std::string_view name) { return source_dir() + "/tests/data/" + std::string(name); }

/// The folder of reference data that does not belong to the repository: $QUENA_FIXTURES, else ../shared/fixtures beside
/// the repository. Nothing if it is not there: then the test says so and ends (see QUENA_NEEDS_FIXTURES).
inline std::optional<std::string> fixtures() {
  const char* named = std::getenv("QUENA_FIXTURES");
  const std::string path = named != nullptr && *named != '\0' ? std::string(named) : source_dir() + "/../shared/fixtures";
  std::error_code ignored;
  if (!fs::is_directory(path, ignored)) return std::nullopt;
  return path;
}

/// The bytes of a file.
inline std::string read_file(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  if (!in) throw std::runtime_error("test cannot open " + path);
  return std::string(std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>());
}

/// Makes (or replaces) a file.
inline void write_file(const std::string& path, std::string_view bytes) {
  std::ofstream out(path, std::ios::binary | std::ios::trunc);
  out.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  if (!out) throw std::runtime_error("test cannot write " + path);
}

/// The code of the quena::error that f() throws; the test fails if it throws none.
template <class F>
quena::errc code_of(F&& f) {
  try {
    f();
  } catch (const quena::error& e) {
    return e.code();
  }
  FAIL("expected an error");
  return quena::errc::io;
}

/// A new empty folder that goes, with all in it, at the end of the scope.
class temp_dir {
 public:
  temp_dir() {
    std::random_device seed;
    for (int attempt = 0; attempt < 100; ++attempt) {
      const fs::path p = fs::temp_directory_path() /
                         ("quena_test_" + std::to_string(seed()) + "_" +
                          std::to_string(std::chrono::steady_clock::now().time_since_epoch().count()));
      if (fs::create_directory(p)) {
        path_ = p.string();
        return;
      }
    }
    throw std::runtime_error("test cannot make a temporary folder");
  }
  ~temp_dir() {
    std::error_code ignored;
    fs::remove_all(path_, ignored);
  }
  temp_dir(const temp_dir&) = delete;
  temp_dir& operator=(const temp_dir&) = delete;

  [[nodiscard]] const std::string& path() const noexcept { return path_; }
  /// The path of `name` in the folder.
  [[nodiscard]] std::string operator/(std::string_view name) const { return path_ + "/" + std::string(name); }

 private:
  std::string path_;
};

}  // namespace quena_test

/// Declares `name` as the fixtures' folder, or says that the test is skipped and ends it.
#define QUENA_NEEDS_FIXTURES(name)                                             \
  const auto name##_found = quena_test::fixtures();                            \
  if (!name##_found) {                                                         \
    MESSAGE("skipped: no reference data (set QUENA_FIXTURES to its folder)");  \
    return;                                                                    \
  }                                                                            \
  const std::string name = *name##_found
