// SPDX-License-Identifier: MIT
// quena generate, quena chat: text from a model.
#include <algorithm>
#include <chrono>

#include <quena/chat.hpp>

#include "commands.hpp"
#include "interrupt.hpp"
#include "models.hpp"

namespace cli {
namespace {

using clock = std::chrono::steady_clock;

/// How to choose tokens and when to end. What is not given comes from the model's generation_config.json.
struct generation_flags {
  std::size_t max_tokens = 256;
  std::optional<float> temperature, top_p, min_p, repeat_penalty;
  std::optional<std::int32_t> top_k;
  std::uint64_t seed = 0;
  std::vector<std::string> stop;
  bool ignore_eos = false, stats = false;

  void add_to(CLI::App& app) {
    add_number(app, "-n,--max-tokens", max_tokens, 0, std::int64_t{1} << 31, "most tokens to write (256)")->type_name("N");
    add_real(app, "--temp", temperature, "temperature; 0 is greedy");
    add_number(app, "--top-k", top_k, 0, 1 << 30, "choose among the K best tokens; 0: all")->type_name("K");
    add_real(app, "--top-p", top_p, "choose among the best tokens that have this probability together");
    add_real(app, "--min-p", min_p, "choose among tokens with this share of the best one's probability");
    add_real(app, "--repeat-penalty", repeat_penalty, "make tokens that occurred less likely; 1: off");
    add_number(app, "--seed", seed, 0, (std::numeric_limits<std::int64_t>::max)(), "another seed, another text (0)")->type_name("S");
    add_texts(app, "--stop", stop, "end before this text; may be given several times")->type_name("TEXT");
    app.add_flag("--ignore-eos", ignore_eos, "go on after the model's end tokens");
    app.add_flag("--stats", stats, "print the speed on standard error at the end");
  }

  [[nodiscard]] quena::sampling_options sampling(quena::sampling_options o) const {
    o.temperature = temperature.value_or(o.temperature);
    o.top_k = top_k.value_or(o.top_k);
    o.top_p = top_p.value_or(o.top_p);
    o.min_p = min_p.value_or(o.min_p);
    o.repetition_penalty = repeat_penalty.value_or(o.repetition_penalty);
    o.seed = seed;
    o.ignore_eos = ignore_eos;
    return o;
  }
  template <quena::backend B>
  [[nodiscard]] quena::generate_options options(const quena::llm<B>& llm) const {
    quena::generate_options o;
    o.max_tokens = max_tokens;
    o.sampling = sampling(quena::sampling_defaults(llm));
    o.stop = stop;
    o.on_full_context = quena::context_policy::stop;
    return o;
  }
};

std::string speed(std::size_t tokens, double seconds) {
  return std::to_string(tokens) + (tokens == 1 ? " token in " : " tokens in ") + fixed(seconds, 2) + " s" +
         (tokens != 0 && seconds > 0 ? " (" + fixed(static_cast<double>(tokens) / seconds, 1) + " tokens/s)" : "");
}

void print_stats(const quena::generate_timing& t, double load_s) {
  note("loaded in " + fixed(load_s, 2) + " s; prompt: " + speed(t.prefill_tokens, t.prefill_s) + "; text: " + speed(t.decode_tokens, t.decode_s) + "; at most " +
       readable_bytes(static_cast<double>(peak_rss_bytes())) + " of memory");
}

ordered_json timing_json(const quena::generate_timing& t, double load_s) {
  return {{"load_s", load_s},           {"prefill_tokens", t.prefill_tokens}, {"prefill_s", t.prefill_s},
          {"decode_tokens", t.decode_tokens}, {"decode_s", t.decode_s},       {"peak_rss_bytes", peak_rss_bytes()}};
}

struct generate_command {
  model_options model;
  generation_flags flags;
  std::optional<std::string> prompt;
  std::optional<std::vector<token_id>> ids;
  bool parse_special = false;

  void check() const {
    if (!prompt && !ids) throw CLI::RequiredError("-p or --ids");
  }
};

/// Token ids from token ids, for models whose files have no tokenizer.
template <quena::backend B>
quena::generate_result continue_ids(const quena::llama<B>& model, const generate_command& o, const quena::generation_defaults& defaults, std::stop_token stop) {
  quena::sampling_options sampling = o.flags.sampling(quena::sampling_defaults(defaults));
  sampling.end_tokens = defaults.eos_token_ids;
  quena::sampler sampler(sampling, model.config().vocab_size);
  quena::session<B> s(model, {.max_positions = o.model.context, .cell = o.model.kv});
  quena::generate_result r;
  r.reason = quena::finish_reason::length;
  if (o.ids->size() >= s.max_length())
    quena::fail(quena::errc::context_overflow, "generate", "expected a prompt below the context of " + std::to_string(s.max_length()) + " tokens, got " + std::to_string(o.ids->size()));
  sampler.accept_prompt(*o.ids);
  std::span<const token_id> next = *o.ids;
  while (r.ids.size() < o.flags.max_tokens && s.length() + next.size() <= s.max_length()) {
    const auto start = clock::now();
    try {
      const std::span<const float> logits = s.feed(next, {.stop = stop, .on_layer = {}});
      const bool prefill = r.timing.prefill_tokens == 0;
      (prefill ? r.timing.prefill_tokens : r.timing.decode_tokens) += next.size();
      (prefill ? r.timing.prefill_s : r.timing.decode_s) += seconds_since(start);
      const token_id chosen = sampler.choose(logits).token;
      if (sampler.is_end(chosen)) {
        r.reason = quena::finish_reason::stop;
        break;
      }
      sampler.accept(chosen);
      r.ids.push_back(chosen);
      next = std::span(r.ids).last(1);
    } catch (const quena::error& e) {
      if (e.code() != quena::errc::cancelled) throw;
      r.reason = quena::finish_reason::cancelled;
      break;
    }
  }
  return r;
}

void run_generate(const generate_command& o) {
  const std::string prompt = !o.prompt ? "" : *o.prompt == "-" ? read_file("-") : *o.prompt;
  const auto report = [&](std::span<const token_id> prompt_ids, const quena::generate_result& r, const std::string* text, double load_s) {
    if (o.model.json) {
      ordered_json out{{"prompt_ids", prompt_ids}, {"ids", r.ids}};
      if (text != nullptr) out["text"] = *text;
      out["finish_reason"] = finish_reason_name(r.reason);
      out["timing"] = timing_json(r.timing, load_s);
      write_json(out);
    } else if (is_terminal(1)) {
      write("\n");
    }
    if (o.flags.stats) print_stats(r.timing, load_s);
  };

  const quena::checkpoint files = quena::checkpoint::open(o.model.path, {.weights = false, .allow_symlinks = false});
  const auto start = clock::now();
  if (!has_tokenizer(files)) {
    if (!o.ids || !o.model.json || !o.flags.stop.empty())
      quena::fail(quena::errc::io, "generate", "expected files with a tokenizer, got none: only --ids with --json and without --stop works", o.model.path);
    return with_backend(o.model, [&]<quena::backend B>() {
      const quena::generation_defaults defaults = quena::read_generation_defaults(files);
      const quena::llama<B> model = load_model<B>(o.model, o.model.path, o.model.format, o.model.context);
      const double load_s = seconds_since(start);
      interrupts ctrl_c;
      const interrupts::scope scope(ctrl_c);
      report(*o.ids, continue_ids(model, o, defaults, scope.token()), nullptr, load_s);
    });
  }
  with_backend(o.model, [&]<quena::backend B>() {
    const quena::llm<B> llm = load_llm<B>(o.model);
    const double load_s = seconds_since(start);
    interrupts ctrl_c;
    const interrupts::scope scope(ctrl_c);
    quena::generate_options options = o.flags.options(llm);
    options.stop_token = scope.token();
    const std::vector<token_id> ids = o.ids ? *o.ids : llm.tokenizer.encode(prompt, {.add_bos = true, .parse_special = o.parse_special});
    quena::generation<B> g(llm, ids, options);
    const quena::generate_result r = run(g, [&](std::string_view piece) {
      if (o.model.json) return;
      write(piece);
      flush();
    });
    report(ids, r, &r.text, load_s);
  });
}

struct chat_command {
  model_options model;
  generation_flags flags;
  std::string system;
};

void run_chat(const chat_command& o) {
  with_backend(o.model, [&]<quena::backend B>() {
    const auto start = clock::now();
    const quena::llm<B> llm = load_llm<B>(o.model);
    const double load_s = seconds_since(start);
    quena::chat<B> talk(llm, {.system = o.system, .generate = o.flags.options(llm), .variables_json = {}, .clock = {}});
    interrupts ctrl_c;
    const bool terminal = is_terminal(0) && is_terminal(1);
    for (;;) {
      if (terminal) write("> ");
      flush();
      const std::optional<std::string> line = ctrl_c.read_line();
      if (!line) break;
      if (line->empty()) continue;
      const interrupts::scope scope(ctrl_c);
      talk.options().generate.stop_token = scope.token();
      const quena::generate_result r = talk.send(*line, [](std::string_view piece) {
        write(piece);
        flush();
      });
      write("\n");
      if (o.flags.stats) print_stats(r.timing, load_s);
    }
    if (terminal) write("\n");
  });
}

}  // namespace

void add_generate(CLI::App& app, action& run) {
  auto [sub, o] = add_command<generate_command>(app, run, "generate", "Continues a text", run_generate);
  add_model_options(*sub, o->model);
  CLI::Option* prompt = sub->add_option_function<std::string>("-p,--prompt", [o = o.get()](const std::string& text) { o->prompt = text; },
                                                              "the text to continue; - reads standard input")->type_name("TEXT");
  add_ids(*sub, "--ids", o->ids, "token ids to continue")->excludes(prompt);
  sub->add_flag("--parse-special", o->parse_special, "read control tokens in the text as such");
  o->flags.add_to(*sub);
}

void add_chat(CLI::App& app, action& run) {
  auto [sub, o] = add_command<chat_command>(app, run, "chat", "A conversation in the terminal; Ctrl-C stops an answer, at the prompt it leaves", run_chat);
  add_model_options(*sub, o->model);
  sub->add_option("--system", o->system, "the system message")->type_name("TEXT");
  o->flags.add_to(*sub);
}

}  // namespace cli
