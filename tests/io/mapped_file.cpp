// SPDX-License-Identifier: MIT
#include <quena/io/mapped_file.hpp>

#include <algorithm>
#include <filesystem>
#include <string>
#include <utility>

#include "../support.hpp"

#ifndef _WIN32
#include <sys/stat.h>
#endif

using namespace quena;

TEST_CASE("mapped file: bytes, moves, release") {
  quena_test::temp_dir tmp;
  std::string content(3 * 65536 + 17, '\0');
  for (std::size_t i = 0; i < content.size(); ++i) content[i] = static_cast<char>(i * 7 + i / 256);
  const std::string path = tmp / "caf\xc3\xa9 \xe6\xad\xaa.bin";
#ifdef _WIN32
  quena_test::write_file(std::filesystem::path(std::u8string(path.begin(), path.end())).string(), content);
#else
  quena_test::write_file(path, content);
#endif
  mapped_file a = mapped_file::open(path);
  CHECK(a.text() == content);
  CHECK(a.path() == path);
  const std::byte* at = a.bytes().data();
  mapped_file b = std::move(a);
  CHECK(a.bytes().empty());
  CHECK(b.bytes().data() == at);
  mapped_file c;
  c = std::move(b);
  CHECK(c.bytes().data() == at);
  c.release(c.bytes());
  c.release(c.bytes().subspan(5, 100));
  c.release({});
  c.release(std::as_bytes(std::span(content)));  // not ours: nothing happens
  CHECK(c.text() == content);
}

TEST_CASE("mapped file: empty files and what is no file") {
  quena_test::temp_dir tmp;
  quena_test::write_file(tmp / "empty", "");
  CHECK(mapped_file::open(tmp / "empty").bytes().empty());
  CHECK_THROWS_AS((void)mapped_file::open(""), error);
  CHECK_THROWS_AS((void)mapped_file::open(std::string_view("a\0b", 3)), error);
  try {
    (void)mapped_file::open(tmp / "absent");
    FAIL_CHECK("no error");
  } catch (const error& e) {
    CHECK(e.code() == errc::io);
    CHECK(std::string(e.what()).find("[load] cannot open: ") == 0);
    CHECK(std::string(e.what()).find("absent)") != std::string::npos);
  }
  CHECK_THROWS_WITH_AS((void)mapped_file::open(tmp.path()), ("[load] expected a file, got a folder (" + tmp.path() + ")").c_str(), error);
#ifndef _WIN32
  REQUIRE(mkfifo((tmp / "pipe").c_str(), 0600) == 0);
  CHECK_THROWS_AS((void)mapped_file::open(tmp / "pipe"), error);  // and does not wait for a writer
#endif
}

TEST_CASE("file system: kinds and names") {
  quena_test::temp_dir tmp;
  quena_test::write_file(tmp / "a.gguf", "x");
  quena_test::write_file(tmp / "b.txt", "x");
  CHECK(kind_of_path(tmp.path()) == path_kind::folder);
  CHECK(kind_of_path(tmp.path() + "/") == path_kind::folder);
  CHECK(kind_of_path(tmp / "a.gguf") == path_kind::file);
  CHECK(kind_of_path(tmp / "c") == path_kind::absent);
  CHECK(names_in_folder(tmp.path(), ".gguf") == std::vector<std::string>{"a.gguf"});
  CHECK(names_in_folder(tmp.path(), ".bin").empty());
  CHECK_THROWS_AS((void)names_in_folder(tmp / "c", ""), error);
  CHECK(join_path("a", "b") == "a/b");
  CHECK(join_path("a/", "b") == "a/b");
}
