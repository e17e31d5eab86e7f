// SPDX-License-Identifier: MIT
#include <quena/io/checkpoint.hpp>

#include <filesystem>
#include <string>

#include "../support.hpp"

using namespace quena;

namespace {

/// Runs f and returns the error's text, empty if there is none.
template <class F>
std::string message_of(F&& f) {
  try {
    f();
  } catch (const error& e) {
    return e.what();
  }
  return "";
}

bool has(std::string_view text, std::string_view part) { return text.find(part) != std::string_view::npos; }

/// A safetensors file that holds one U8 tensor of one element.
std::string shard_with(const std::string& tensor) {
  const std::string header = "{\"" + tensor + R"(":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}})";
  std::string s;
  for (int i = 0; i < 8; ++i) s += static_cast<char>(header.size() >> (8 * i));
  return s + header + "x";
}

std::string index_of(const std::string& tensor, const std::string& shard) { return R"({"weight_map":{")" + tensor + "\":" + json(shard).dump() + "}}"; }

}  // namespace

TEST_CASE("checkpoint: GGUF names") {
  CHECK(hugging_face_name("token_embd.weight") == "model.embed_tokens.weight");
  CHECK(hugging_face_name("output.weight") == "lm_head.weight");
  CHECK(hugging_face_name("output_norm.weight") == "model.norm.weight");
  CHECK(hugging_face_name("blk.31.attn_k.bias") == "model.layers.31.self_attn.k_proj.bias");
  CHECK(hugging_face_name("blk.0.ffn_norm.weight") == "model.layers.0.post_attention_layernorm.weight");
  for (const char* same : {"rope_freqs.weight", "blk..attn_q.weight", "blk.x.attn_q.weight", "blk.1x.attn_q.weight", "blk.1.attn_q.scale", "blk.1", "", "."})
    CHECK(hugging_face_name(same) == same);
}

TEST_CASE("checkpoint: the two formats give the same names and shapes") {
  QUENA_NEEDS_FIXTURES(dir);
  const checkpoint hf = checkpoint::open(dir + "/models/bias-sharded-f32"), gguf = checkpoint::open(dir + "/gguf/bias-sharded-f32/bias-sharded-f32-f32.gguf");
  CHECK_FALSE(hf.is_gguf());
  CHECK(gguf.is_gguf());
  CHECK(hf.config_json().at("hidden_size") == 96);
  std::size_t compared = 0;
  for (const checkpoint_tensor& t : hf.tensors()) {
    const checkpoint_tensor* g = gguf.find(t.name);
    INFO(t.name);
    REQUIRE(g != nullptr);
    CHECK(g->shape == t.shape);
    CHECK(g->data.size() == t.data.size());
    CHECK(t.interleaved_head_dim == 0);
    const bool permuted = has(t.name, "q_proj") || has(t.name, "k_proj");
    CHECK(g->interleaved_head_dim == (permuted ? 16u : 0u));
    CHECK(has(t.file, "-of-00003.safetensors"));
    CHECK(g->file == "bias-sharded-f32-f32.gguf");
    if (!permuted) CHECK(std::equal(t.data.begin(), t.data.end(), g->data.begin()));
    ++compared;
  }
  CHECK(compared == gguf.tensors().size() - 1);  // rope_freqs.weight
  CHECK(hf.text_file("tokenizer.json").has_value());
  CHECK_FALSE(hf.text_file("nothing.json").has_value());
  CHECK_FALSE(gguf.text_file("tokenizer.json").has_value());
  for (const checkpoint_tensor& t : hf.tensors()) hf.release(t);
  CHECK(hf.tensors()[0].data[0] == hf.tensors()[0].data[0]);
}

TEST_CASE("checkpoint: from memory") {
  QUENA_NEEDS_FIXTURES(dir);
  const std::string config = quena_test::read_file(dir + "/models/stories260K/config.json"), weights = quena_test::read_file(dir + "/models/stories260K/model.safetensors");
  const memory_file files[] = {{"config.json", std::as_bytes(std::span(config))}, {"model.safetensors", std::as_bytes(std::span(weights))}};
  const checkpoint c = checkpoint::from_memory(files);
  CHECK(c.tensors().size() == checkpoint::open(dir + "/models/stories260K").tensors().size());
  CHECK(c.text_file("config.json") == config);
  CHECK(has(message_of([&] { (void)checkpoint::from_memory(std::span(files, 1)); }), "both are absent"));
  const std::string gguf = quena_test::read_file(dir + "/gguf/stories260K/stories260K-f32.gguf");
  CHECK(checkpoint::from_memory(std::as_bytes(std::span(gguf))).find("model.norm.weight") != nullptr);
}

TEST_CASE("checkpoint: what a path may be") {
  quena_test::temp_dir tmp;
  CHECK(has(message_of([&] { (void)checkpoint::open(tmp / "absent"); }), "found nothing there"));
  CHECK(has(message_of([&] { (void)checkpoint::open(""); }), "got an empty string"));
  CHECK(has(message_of([&] { (void)checkpoint::open(std::string_view("a\0b", 3)); }), "without NUL"));
  CHECK(has(message_of([&] { (void)checkpoint::open(tmp.path()); }), "config.json is absent"));
  CHECK(checkpoint::open(tmp.path(), {.weights = false}).config_json().is_null());
  quena_test::write_file(tmp / "model.safetensors", shard_with("t"));
  CHECK(has(message_of([&] { (void)checkpoint::open(tmp / "model.safetensors"); }), "got one file of a folder"));
  quena_test::write_file(tmp / "x", "");
  CHECK(has(message_of([&] { (void)checkpoint::open(tmp / "x"); }), "expected a GGUF file, got an empty one"));
  CHECK(has(message_of([&] { (void)gguf_file::open(tmp.path()); }), "expected a file, got a folder"));
  quena_test::write_file(tmp / "config.json", "{}");
  CHECK(checkpoint::open(tmp.path()).tensors().size() == 1);
  CHECK(checkpoint::open(tmp.path() + "/").tensors().size() == 1);
  quena_test::write_file(tmp / "config.json", "{");
  CHECK(has(message_of([&] { (void)checkpoint::open(tmp.path()); }), "config.json)"));
#ifndef _WIN32
  CHECK(has(message_of([&] { (void)checkpoint::open("/dev/null"); }), "got a device, pipe or socket"));
#endif
}

TEST_CASE("checkpoint: a folder with one GGUF file") {
  QUENA_NEEDS_FIXTURES(dir);
  CHECK(checkpoint::open(dir + "/malformed/control/good-gguf").is_gguf());
  CHECK(has(message_of([&] { (void)checkpoint::open(dir + "/gguf/stories260K"); }), "name one of them"));
}

TEST_CASE("checkpoint: pickled weights are named") {
  quena_test::temp_dir tmp;
  quena_test::write_file(tmp / "config.json", "{}");
  quena_test::write_file(tmp / "pytorch_model.bin", "x");
  CHECK(has(message_of([&] { (void)checkpoint::open(tmp.path()); }), "got pickled ones"));
}

TEST_CASE("checkpoint: shard names that leave the folder") {
  quena_test::temp_dir tmp;
  quena_test::write_file(tmp / "outside.safetensors", shard_with("t"));
  const std::string folder = tmp / "m";
  std::filesystem::create_directory(folder);
  quena_test::write_file(folder + "/config.json", "{}");
  const auto open_with = [&](const std::string& shard) {
    quena_test::write_file(folder + "/model.safetensors.index.json", index_of("t", shard));
    return message_of([&] { (void)checkpoint::open(folder); });
  };
  for (const std::string& name : {std::string("../outside.safetensors"), std::string("/etc/hostname"), std::string("/etc/x.safetensors"), std::string("..\\x.safetensors"),
                                  std::string("C:\\x.safetensors"), std::string("C:x.safetensors"), std::string("a/../../outside.safetensors"), std::string(""), std::string(".safetensors"),
                                  std::string("a\0.safetensors", 14), std::string("model.safetensors.index.json"), std::string("./x.safetensors")})
    CHECK_MESSAGE(has(open_with(name), "expected shard names like"), name);
  CHECK(has(open_with("absent.safetensors"), "which is absent"));

  quena_test::write_file(folder + "/s.safetensors", shard_with("u"));
  CHECK(has(open_with("s.safetensors"), "t: expected in s.safetensors, which has no such tensor"));
  quena_test::write_file(folder + "/s.safetensors", shard_with("t"));
  CHECK(open_with("s.safetensors") == "");

  quena_test::write_file(folder + "/s2.safetensors", shard_with("t"));
  quena_test::write_file(folder + "/model.safetensors.index.json", R"({"weight_map":{"t":"s.safetensors","v":"s2.safetensors"}})");
  CHECK(message_of([&] { (void)checkpoint::open(folder); }) != "");
  for (const char* index : {"[]", "{}", R"({"weight_map":[]})", R"({"weight_map":{"t":1}})", "{"}) {
    quena_test::write_file(folder + "/model.safetensors.index.json", index);
    CHECK(message_of([&] { (void)checkpoint::open(folder); }) != "");
  }
#ifndef _WIN32
  std::filesystem::create_symlink(tmp / "outside.safetensors", folder + "/link.safetensors");
  CHECK(has(open_with("link.safetensors"), "got a link that leads out of it"));
  CHECK(checkpoint::open(folder, {.allow_symlinks = true}).tensors().size() == 1);
  std::filesystem::create_symlink("s.safetensors", folder + "/inner.safetensors");
  CHECK(open_with("inner.safetensors") == "");
  std::filesystem::create_directory_symlink(folder, tmp / "m2");  // the folder itself may be a link
  CHECK(message_of([&] { (void)checkpoint::open(tmp / "m2"); }) == "");

  // The layout of Hugging Face's download cache.
  const std::string cache = tmp / "models--a--b";
  std::filesystem::create_directories(cache + "/snapshots/0123");
  std::filesystem::create_directories(cache + "/blobs");
  quena_test::write_file(cache + "/blobs/abcd", shard_with("t"));
  quena_test::write_file(cache + "/snapshots/0123/config.json", "{}");
  quena_test::write_file(cache + "/snapshots/0123/model.safetensors.index.json", index_of("t", "s.safetensors"));
  std::filesystem::create_symlink("../../blobs/abcd", cache + "/snapshots/0123/s.safetensors");
  CHECK(checkpoint::open(cache + "/snapshots/0123").tensors().size() == 1);
  CHECK(checkpoint::open(cache + "/snapshots/0123/").tensors().size() == 1);
  std::filesystem::create_directories(cache + "/other");
  quena_test::write_file(cache + "/other/abcd", shard_with("t"));
  std::filesystem::remove(cache + "/snapshots/0123/s.safetensors");
  std::filesystem::create_symlink("../../other/abcd", cache + "/snapshots/0123/s.safetensors");
  CHECK(has(message_of([&] { (void)checkpoint::open(cache + "/snapshots/0123"); }), "got a link that leads out of it"));
#endif
}

TEST_CASE("checkpoint: a tensor in two shards") {
  quena_test::temp_dir tmp;
  quena_test::write_file(tmp / "config.json", "{}");
  quena_test::write_file(tmp / "a.safetensors", shard_with("t"));
  const std::string both = R"({"t":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},"v":{"dtype":"U8","shape":[0],"data_offsets":[0,0]}})";
  std::string bytes;
  for (int i = 0; i < 8; ++i) bytes += static_cast<char>(both.size() >> (8 * i));
  quena_test::write_file(tmp / "b.safetensors", bytes + both + "x");
  quena_test::write_file(tmp / "model.safetensors.index.json", R"({"weight_map":{"t":"a.safetensors","v":"b.safetensors"}})");
  CHECK(has(message_of([&] { (void)checkpoint::open(tmp.path()); }), "t: expected once, got it in a.safetensors and in b.safetensors"));
}
