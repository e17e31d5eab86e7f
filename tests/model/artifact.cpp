// SPDX-License-Identifier: MIT
#include <quena/generate.hpp>
#include <quena/backend/reference.hpp>
#include <quena/model/session.hpp>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <string>
#include <vector>

#include <doctest/doctest.h>

#include "../support.hpp"
#include "../synthetic_model.hpp"

using namespace quena;
using quena_test::code_of;

namespace {

using bytes = std::vector<std::byte>;
const std::vector<token_id> prompt = {1, 17, 42, 99, 3, 200, 8};

template <backend B>
std::vector<float> logits_of(const llama<B>& model) {
  session<B> s(model, {.max_positions = 32});
  const std::span<const float> out = s.feed(prompt);
  return {out.begin(), out.end()};
}

bytes written(const checkpoint& files, const llama<cpu>& model) {
  bytes out;
  write_artifact(files, model, [&](std::span<const std::byte> b) { out.insert(out.end(), b.begin(), b.end()); });
  return out;
}

bytes written(const quena_test::synthetic_model& source, format f) {
  const checkpoint files = source.open();
  return written(files, llama<cpu>(files, cpu({.threads = 2}), {.format = f}));
}

llama<cpu> opened(const bytes& artifact, format f = format::automatic) {
  return llama<cpu>(checkpoint::from_memory(std::span<const std::byte>(artifact)), cpu({.threads = 2}), {.format = f});
}

std::string message_of(const bytes& artifact) {
  try {
    (void)opened(artifact);
  } catch (const error& e) {
    return e.what();
  }
  return "no error";
}

/// An artifact with one entry of the manifest or one tensor replaced, and hashes that are right: what only a forger makes.
bytes forged(const bytes& artifact, const std::function<void(json& manifest)>& change, std::string_view tensor = {}, std::size_t cut = 0) {
  const safetensors_file file = safetensors_file::from_memory(artifact);
  artifact_writer writer;
  std::string manifest;
  for (const safetensors_tensor& t : file.tensors()) {
    if (t.name.starts_with("padding/")) continue;
    if (t.name == tensor) {
      if (cut < t.data.size()) writer.add(t.name, t.data.first(t.data.size() - cut), false);
    } else if (t.name == "manifest.json") {
      json j = json::parse(std::string(reinterpret_cast<const char*>(t.data.data()), t.data.size()));
      if (change) change(j);
      manifest = j.dump();
      writer.add(t.name, std::as_bytes(std::span(manifest)));
    } else {
      writer.add(t.name, t.type, t.shape, t.data, !t.name.starts_with("packed/"));
    }
  }
  bytes out;
  writer.write([&](std::span<const std::byte> b) { out.insert(out.end(), b.begin(), b.end()); });
  return out;
}

struct scratch_folder {
  std::filesystem::path path = std::filesystem::temp_directory_path() / ("quena-artifact-" + std::to_string(detail::process_id()));
  scratch_folder() { std::filesystem::remove_all(path), std::filesystem::create_directories(path); }
  ~scratch_folder() { std::filesystem::remove_all(path); }
};

}  // namespace

TEST_CASE("artifact: the same logits as the checkpoint, bit for bit, in every format") {
  for (const bool plain : {true, false}) {
    const quena_test::synthetic_model source({.tied = plain, .biases = !plain, .type = dtype::bf16, .rope_scaling = "null"});
    for (const format f : {format::automatic, format::f32, format::f16, format::int8, format::int8_row, format::int4, format::int4z_g64}) {
      CAPTURE(format_name(f));
      const checkpoint files = source.open();
      const llama<cpu> model(files, cpu({.threads = 2}), {.format = f});
      const bytes artifact = written(files, model);
      const llama<cpu> again = opened(artifact);
      CHECK(again.weights().stored == model.weights().stored);
      CHECK(again.weights().n_bytes() == model.weights().n_bytes());
      CHECK(logits_of(again) == logits_of(model));
      CHECK(written(checkpoint::from_memory(std::span<const std::byte>(artifact)), again) == artifact);  // an artifact of an artifact
      for (const isa level : {isa::portable, isa::avx2, isa::avx512}) {
        if (level > best_isa()) continue;
        const checkpoint packed = checkpoint::from_memory(std::span<const std::byte>(artifact));
        CHECK(logits_of(llama<cpu>(packed, cpu({.threads = 1, .level = level}))) == logits_of(llama<cpu>(files, cpu({.threads = 1, .level = level}), {.format = f})));
      }
    }
  }
}

TEST_CASE("artifact: memory that is not aligned") {
  const quena_test::synthetic_model source;
  const bytes artifact = written(source, format::int8);
  bytes shifted(artifact.size() + 3);
  std::copy(artifact.begin(), artifact.end(), shifted.begin() + 3);
  const llama<cpu> model(checkpoint::from_memory(std::span<const std::byte>(shifted).subspan(3)), cpu({.threads = 1}));
  CHECK(logits_of(model) == logits_of(opened(artifact)));
}

TEST_CASE("artifact: what was asked for and is not there") {
  const quena_test::synthetic_model source;
  const bytes artifact = written(source, format::int8);
  CHECK(logits_of(opened(artifact, format::int8)) == logits_of(opened(artifact)));
  CHECK(code_of([&] { opened(artifact, format::int4); }) == errc::unsupported);
  CHECK(code_of([&] { llama<reference>(checkpoint::from_memory(std::span<const std::byte>(artifact)), reference()); }) == errc::unsupported);
}

TEST_CASE("artifact: every altered or shortened file is refused, with its reason") {
  const quena_test::synthetic_model source({.hidden_size = 32, .intermediate_size = 32, .n_layers = 1, .n_heads = 2, .n_kv_heads = 1, .vocab_size = 64, .biases = true, .rope_scaling = "null"});
  const bytes artifact = written(source, format::int4);
  const std::string good = message_of(artifact);
  REQUIRE(good == "no error");
  bytes changed = artifact;
  std::size_t quiet = 0;
  for (std::size_t i = 0; i < changed.size(); ++i) {  // each byte, one bit of it
    changed[i] ^= static_cast<std::byte>(1 << (i % 8));
    quiet += message_of(changed) == good;
    changed[i] = artifact[i];
  }
  CHECK(quiet == 0);
  for (std::size_t n = 0; n < artifact.size(); n += 1 + n / 7) quiet += message_of(bytes(artifact.begin(), artifact.begin() + static_cast<std::ptrdiff_t>(n))) == good;
  CHECK(quiet == 0);
  changed.push_back({});
  CHECK(message_of(changed) != good);
  changed = artifact;
  changed[changed.size() / 2] ^= std::byte{64};
  CHECK(message_of(changed).find("the file is damaged") != std::string::npos);
}

TEST_CASE("artifact: a manifest that does not fit is refused") {
  const quena_test::synthetic_model source({.biases = true, .rope_scaling = "null"});
  const bytes artifact = written(source, format::int8);
  const std::string down = "model.layers.1.mlp.down_proj", gate = "model.layers.0.mlp.gate_proj+up_proj";
  const auto refused = [&](const char* why, const std::function<void(json&)>& change, std::string_view tensor = {}, std::size_t cut = 0) {
    const std::string got = message_of(forged(artifact, change, tensor, cut));
    CAPTURE(got);
    CHECK(got.find(why) != std::string::npos);
  };
  CHECK(message_of(forged(artifact, nullptr)) == "no error");
  refused("version", [](json& m) { m["version"] = 2; });
  refused("packed as cpu-1, got cuda", [](json& m) { m["form"] = "cuda"; });
  refused("format", [](json& m) { m["format"] = "int5"; });
  refused("a format", [](json& m) { m.erase("format"); });
  refused("expected 1 to 1 parts", [&](json& m) { m["matrices"].erase(down); });
  refused("expected 1 to 1 parts", [&](json& m) { m["matrices"][down].push_back(m["matrices"][down][0]); });
  refused("expected 1 to 1 parts", [](json& m) { m.erase("matrices"); });
  refused("matrices", [](json& m) { m["matrices"] = 3; });
  refused("rows", [&](json& m) { m["matrices"][down][0]["rows"] = 1u << 30; });
  refused("expected 64 rows, got 63", [&](json& m) { m["matrices"][down][0]["rows"] = 63; });
  refused("cols", [&](json& m) { m["matrices"][down][0]["cols"] = 161; });
  refused("a known layout", [&](json& m) { m["matrices"][down][0]["layout"] = "int9"; });
  refused("the name of a layout", [&](json& m) { m["matrices"][down][0]["layout"] = 8; });
  refused("bytes of weights", [&](json& m) { m["matrices"][down][0]["layout"] = "int4"; });
  refused("one matrix", [&](json& m) { m["matrices"][down][0]["gate_up"] = true; });
  refused("a pair", [&](json& m) { m["matrices"][gate][0]["gate_up"] = false; });
  refused("bytes of weights", nullptr, "packed/" + down + "/0", 64);
  refused("which is absent", nullptr, "packed/" + down + "/0", ~std::size_t{0});
  refused("bytes of bias", nullptr, "packed/" + down + "/0/bias", 4);
  refused("config.json", nullptr, "files/config.json", ~std::size_t{0});
  refused("manifest.json", nullptr, "manifest.json", ~std::size_t{0});
  refused("absent", nullptr, "model.norm.weight", ~std::size_t{0});
  refused("a list of tensors", [](json& m) { m["tensors"] = json::object(); });
  refused("it is absent", [](json& m) { m["tensors"].erase(0); });
  refused("expected once", [](json& m) { m["tensors"].push_back(m["tensors"][0]); });
  refused("expected [", [](json& m) { m["tensors"][0]["rows"] = 5; });
  refused("type", [](json& m) { m["tensors"][0]["type"] = "q9"; });
}

TEST_CASE("artifact: of a GGUF file, blocks as they are") {
  QUENA_NEEDS_FIXTURES(fixtures);
  const std::string folder = fixtures + "/gguf/stories260K/";
  for (const char* name : {"stories260K-ff192-q8_0.gguf", "stories260K-ff192-q4_1.gguf", "stories260K-q4_k_m.gguf", "stories260K-f16.gguf"}) {
    CAPTURE(name);
    const checkpoint files = checkpoint::open(folder + name);
    const llama<cpu> model(files, cpu({.threads = 1}));
    const bytes artifact = written(files, model);
    const checkpoint packed = checkpoint::from_memory(std::span<const std::byte>(artifact));
    CHECK(packed.is_gguf());
    CHECK(logits_of(opened(artifact)) == logits_of(model));
    CHECK(tokenizer::open(packed).encode("Once upon a time") == tokenizer::open(files).encode("Once upon a time"));
  }
}

TEST_CASE("artifact: the cache of loaded checkpoints") {
  const scratch_folder scratch;
  const std::string model = (scratch.path / "model").string(), cache = (scratch.path / "cache").string();
  std::filesystem::copy(quena_test::source_dir() + "/examples/data/stories260K", model);
  std::vector<std::string> lines;
  const auto text = [&](format f = format::int8) {
    lines.clear();
    const llm<cpu> source = load(model, {.format = f, .threads = 1, .context = 64, .cache_dir = cache, .log = [&](std::string_view line) { lines.emplace_back(line); }});
    return generate(source, "Once upon", {.max_tokens = 20}, [](std::string_view) {}).text;
  };
  const auto artifacts = [&] { return names_in_folder(cache, ".quena"); };
  const auto loaded_from_cache = [&] { return lines.back().find("loaded " + cache) == 0; };

  const std::string first = text();
  CHECK_FALSE(loaded_from_cache());
  REQUIRE(artifacts().size() == 1);
  CHECK(text() == first);
  CHECK(loaded_from_cache());
  (void)text(format::int4);
  CHECK_FALSE(loaded_from_cache());
  CHECK(artifacts().size() == 2);

  for (const std::string& name : artifacts()) std::filesystem::resize_file(join_path(cache, name), 5000);
  CHECK(text() == first);  // says so, loads the checkpoint, mends the cache
  CHECK(lines.front().find("the cache cannot be used") == 0);
  CHECK(text() == first);
  CHECK(loaded_from_cache());

  // A model that was changed is another one.
  const std::string weights = model + "/model.safetensors";
  std::filesystem::last_write_time(weights, std::filesystem::last_write_time(weights) + std::chrono::seconds(3));
  (void)text();
  CHECK_FALSE(loaded_from_cache());
  CHECK(names_in_folder(cache, ".part").empty());

  std::filesystem::remove_all(cache);
  std::ofstream(cache) << "a file where a folder should be";
  CHECK(text() == first);
  CHECK(lines.back().find("the cache cannot be written") == 0);
}

TEST_CASE("hash: the published values of XXH64") {
  const auto h = [](std::string_view s) { return content_hash(std::as_bytes(std::span(s))); };
  CHECK(h("") == 0xef46db3751d8e999u);
  CHECK(h("a") == 0xd24ec4f1a98c6e5bu);
  CHECK(h("abc") == 0x44bc2cf5ad770999u);
  bytes many(3 * hash_piece + 17);
  for (std::size_t i = 0; i < many.size(); ++i) many[i] = static_cast<std::byte>(i * 7 + i / 256);
  for (const int threads : {1, 2, 3}) CHECK(cpu({.threads = threads, .level = {}, .task_work = 1}).hash(many) == detail::serial_hash(many));
}
