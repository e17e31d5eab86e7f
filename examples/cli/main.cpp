// SPDX-License-Identifier: MIT
// The `quena` command: one small program over the library's public interface.
//
// Exit status 0; 2 for a usage error; 1 for any other, with one line `quena: [where] what was expected, what came`.
#include <algorithm>
#include <cstdio>
#include <exception>
#include <new>
#include <string>
#include <vector>

#include <CLI/App.hpp>
#include <CLI/Config.hpp>
#include <CLI/Formatter.hpp>

#include "commands.hpp"
#include "common.hpp"

#ifdef _WIN32
// Declared here because <windows.h> would bring its macros along.
extern "C" __declspec(dllimport) wchar_t* __stdcall GetCommandLineW();
extern "C" __declspec(dllimport) wchar_t** __stdcall CommandLineToArgvW(const wchar_t* line, int* argc);
extern "C" __declspec(dllimport) int __stdcall SetConsoleOutputCP(unsigned int page);
extern "C" __declspec(dllimport) int __stdcall SetConsoleCP(unsigned int page);
#endif

namespace {

/// The words after the program's name, in UTF-8.
std::vector<std::string> words([[maybe_unused]] int argc, [[maybe_unused]] char** argv) {
  std::vector<std::string> out;
#ifdef _WIN32
  SetConsoleOutputCP(65001);
  SetConsoleCP(65001);
  int n = 0;
  wchar_t** const wide = CommandLineToArgvW(GetCommandLineW(), &n);
  for (int i = 1; wide != nullptr && i < n; ++i) out.push_back(quena::detail::narrow(wide[i]));
#else
  for (int i = 1; i < argc; ++i) out.emplace_back(argv[i]);
#endif
  return out;
}

int run(int argc, char** argv) {
  CLI::App app("quena: Llama models on your own machine", "quena");
  app.allow_windows_style_options(false);
  app.require_subcommand(1);
  cli::action action;
  cli::add_generate(app, action);
  cli::add_chat(app, action);
  cli::add_tokenize(app, action);
  cli::add_detokenize(app, action);
  cli::add_template(app, action);
  cli::add_logits(app, action);
  cli::add_perplexity(app, action);
  cli::add_inspect(app, action);
  cli::add_bench(app, action);
  cli::add_quantize(app, action);
  for (CLI::App* command : app.get_subcommands({})) command->allow_windows_style_options(false);

  try {
    std::vector<std::string> arguments = words(argc, argv);
    if (!arguments.empty() && !arguments.front().starts_with('-')) {
      std::string known;
      for (CLI::App* command : app.get_subcommands({})) known += (known.empty() ? "" : ", ") + command->get_name();
      if (app.get_subcommands([&](const CLI::App* command) { return command->get_name() == arguments.front(); }).empty())
        throw CLI::ValidationError("expected a command (" + known + "), got '" + arguments.front() + "'");
    }
    std::reverse(arguments.begin(), arguments.end());  // as CLI11 wants them
    app.parse(std::move(arguments));
  } catch (const CLI::CallForHelp&) {
    const auto chosen = app.get_subcommands();
    cli::write(chosen.empty() ? app.help() : chosen.front()->help("quena"));
    cli::flush();
    return 0;
  } catch (const CLI::ParseError& e) {
    const auto chosen = app.get_subcommands();
    cli::note("quena: [usage] " + std::string(e.what()) + " (see quena " + (chosen.empty() ? "" : chosen.front()->get_name() + " ") + "--help)");
    return 2;
  }
  action();
  cli::flush();
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    cli::prepare_streams();
    return run(argc, argv);
  } catch (const quena::error& e) {
    cli::note("quena: " + std::string(e.what()));
  } catch (const std::bad_alloc&) {
    std::fputs("quena: [memory] expected enough memory, got too little\n", stderr);
  } catch (const std::exception& e) {
    cli::note("quena: [internal] " + std::string(e.what()));
  }
  return 1;
}
