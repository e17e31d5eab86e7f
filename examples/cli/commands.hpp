// SPDX-License-Identifier: MIT
// The commands. Each adds itself to the command line and, if it is the one that was given, puts what it does into `run`.
#pragma once

#include <functional>
#include <memory>
#include <utility>

#include <CLI/App.hpp>

namespace cli {

using action = std::function<void()>;

void add_generate(CLI::App& app, action& run);
void add_chat(CLI::App& app, action& run);
void add_tokenize(CLI::App& app, action& run);
void add_detokenize(CLI::App& app, action& run);
void add_template(CLI::App& app, action& run);
void add_logits(CLI::App& app, action& run);
void add_perplexity(CLI::App& app, action& run);
void add_inspect(CLI::App& app, action& run);
void add_bench(CLI::App& app, action& run);
void add_quantize(CLI::App& app, action& run);

/// A command with options of type O, which live as long as the command line does. O::check(), if there is one, throws CLI11's usage errors.
template <class O>
std::pair<CLI::App*, std::shared_ptr<O>> add_command(CLI::App& app, action& run, const char* name, const char* help, void (*command)(const O&)) {
  CLI::App* const sub = app.add_subcommand(name, help);
  auto options = std::make_shared<O>();
  sub->callback([&run, options, command] {
    if constexpr (requires { options->check(); }) options->check();
    run = [options, command] { command(*options); };
  });
  return {sub, options};
}

}  // namespace cli
