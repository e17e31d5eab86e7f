// SPDX-License-Identifier: MIT
// quena logits, quena perplexity: what the model says about given tokens.
#include <algorithm>
#include <bit>
#include <cmath>
#include <memory>
#include <optional>
#include <span>

#include <quena/eval/perplexity.hpp>
#include <quena/io/output_file.hpp>

#include "commands.hpp"
#include "models.hpp"

namespace cli {
namespace {

/// A float32 array in NumPy's format, version 1.0, written while it is computed.
class npy_file {
 public:
  npy_file(const std::string& path, std::initializer_list<std::size_t> shape) {
    if (path != "-") file_.emplace(path);
    std::string dims;
    for (const std::size_t n : shape) dims += std::to_string(n) + ",";
    if (shape.size() > 1) dims.pop_back();
    std::string header = "{'descr': '<f4', 'fortran_order': False, 'shape': (" + dims + "), }";
    constexpr std::size_t prefix = 10;  // magic, version, length
    header.append(63 - (prefix + header.size()) % 64, ' ').append("\n");
    const char magic[prefix] = {'\x93', 'N', 'U', 'M', 'P', 'Y', 1, 0, static_cast<char>(header.size() & 255), static_cast<char>(header.size() >> 8)};
    put({magic, prefix});
    put(header);
  }

  void add(std::span<const float> row) {
    static_assert(std::endian::native == std::endian::little);
    put({reinterpret_cast<const char*>(row.data()), row.size_bytes()});
  }
  void finish() { file_ ? file_->finish() : flush(); }

 private:
  void put(std::string_view bytes) { file_ ? file_->write(std::as_bytes(std::span(bytes))) : write(bytes); }

  std::optional<quena::output_file> file_;  // none: standard output
};

struct logits_options {
  model_options model;
  ids_options ids;
  bool all = false;
  std::size_t chunk = 0;
  std::string out;

  void check() const { ids.check(); }
};

/// Rows per pass: as asked, otherwise the whole prompt as far as scratch memory stays reasonable.
quena::workspace_options scratch(const logits_options& o, std::size_t n_ids, std::size_t vocab_size) {
  constexpr std::size_t most_rows = 512, most_logits = std::size_t{64} << 20;
  const std::size_t rows = std::clamp(o.chunk != 0 ? o.chunk : most_rows, std::size_t{1}, (std::max)(n_ids, std::size_t{1}));
  if (!o.all) return {.max_rows = rows, .max_logits = 1};
  return {.max_rows = rows, .max_logits = o.chunk != 0 ? rows : std::clamp(most_logits / vocab_size, std::size_t{1}, rows)};
}

/// A model with broken weights gives no file.
void check_finite(std::span<const float> logits) {
  if (!std::all_of(logits.begin(), logits.end(), [](float x) { return std::isfinite(x); }))
    quena::fail(quena::errc::non_finite, "logits", "expected finite logits, got NaN or infinity");
}

void run_logits(const logits_options& o) {
  const std::vector<token_id> ids = o.ids.read();
  with_backend(o.model, [&]<quena::backend B>() {
    const std::size_t context = o.model.context != 0 ? o.model.context : (std::max)(ids.size(), std::size_t{1});
    const quena::llama<B> model = load_model<B>(o.model, o.model.path, o.model.format, context);
    const std::size_t vocab_size = model.config().vocab_size;
    quena::session<B> s(model, {.max_positions = context, .cell = o.model.kv}, scratch(o, ids.size(), vocab_size));
    progress_bar bar("computing");
    if (o.all) {
      std::unique_ptr<npy_file> file;  // made when the first row is there: a refused prompt leaves an old file alone
      s.feed_all(ids, [&](std::size_t i, std::span<const float> row) {
        check_finite(row);
        if (!file) file = std::make_unique<npy_file>(o.out, std::initializer_list<std::size_t>{ids.size(), vocab_size});
        file->add(row);
        bar(static_cast<double>(i + 1) / static_cast<double>(ids.size()));
      });
      file->finish();
    } else {
      const std::span<const float> last = s.feed(ids);
      check_finite(last);
      npy_file file(o.out, {vocab_size});
      file.add(last);
      file.finish();
    }
  });
}

struct perplexity_options {
  model_options model;
  std::string text, ids_file, against;
  quena::format against_format = quena::format::automatic;
  std::size_t window = 512;

  void check() const {
    if (text.empty() && ids_file.empty()) throw CLI::RequiredError("--text or --ids-file");
  }
};

void run_perplexity(const perplexity_options& o) {
  const std::vector<token_id> ids = o.text.empty() ? ids_options{{}, o.ids_file}.read() : load_tokenizer(o.model.path).encode(read_file(o.text));
  with_backend(o.model, [&]<quena::backend B>() {
    const quena::kv_options cache{.max_positions = o.window, .cell = o.model.kv};
    const quena::workspace_options scratch{.max_rows = 64, .max_logits = 64};
    std::unique_ptr<quena::llama<B>> other;
    std::unique_ptr<quena::session<B>> reference;
    if (!o.against.empty()) {
      model_options plain = o.model;
      plain.adapters.clear();
      other = std::make_unique<quena::llama<B>>(load_model<B>(plain, o.against, o.against_format, o.window));
      reference = std::make_unique<quena::session<B>>(*other, quena::kv_options{.max_positions = o.window}, scratch);
    }
    const quena::llama<B> model = load_model<B>(o.model, o.model.path, o.model.format, o.window);
    quena::session<B> s(model, cache, scratch);
    quena::perplexity_result r;
    {
      progress_bar bar("computing");
      const auto progress = [&](std::size_t done, std::size_t total) { bar(static_cast<double>(done) / static_cast<double>(total)); };
      r = quena::perplexity(s, ids, {.window = o.window, .progress = progress, .stop = {}}, reference.get());
    }
    ordered_json out{{"tokens", r.tokens}, {"nll", r.nll}, {"perplexity", r.perplexity}};
    if (r.kl) out["kl"] = *r.kl;
    if (r.top1) out["top1"] = *r.top1;
    write_json(out);
  });
}

}  // namespace

void add_logits(CLI::App& app, action& run) {
  auto [sub, o] = add_command<logits_options>(app, run, "logits", "Writes the logits of given tokens to a NumPy file", run_logits);
  add_model_options(*sub, o->model);
  add_ids_options(*sub, o->ids);
  sub->add_flag("--all", o->all, "of every token, [n, vocab_size]; otherwise of the last one, [vocab_size]");
  add_number(*sub, "--chunk", o->chunk, 1, std::int64_t{1} << 31, "tokens per forward pass")->type_name("N");
  sub->add_option("-o,--out", o->out, "the file to write; - is standard output")->required()->type_name("OUT.npy");
}

void add_perplexity(CLI::App& app, action& run) {
  auto [sub, o] = add_command<perplexity_options>(app, run, "perplexity", "How well the model predicts a text", run_perplexity);
  add_model_options(*sub, o->model);
  CLI::Option* text = sub->add_option("--text", o->text, "a text file")->type_name("FILE");
  sub->add_option("--ids-file", o->ids_file, "a JSON array of token ids")->type_name("FILE")->excludes(text);
  add_number(*sub, "--window", o->window, 2, std::int64_t{1} << 31, "tokens that are evaluated together (512)")->type_name("N");
  sub->add_option("--against", o->against, "another model: adds the mean KL divergence from it and how often both prefer the same token")->type_name("PATH");
  sub->add_option_function<std::string>("--against-format", [o = o.get()](const std::string& name) { o->against_format = format_of(name); },
                                        "that model's weights in memory")->type_name("X")->needs("--against");
}

}  // namespace cli
