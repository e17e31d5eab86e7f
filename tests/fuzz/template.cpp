// SPDX-License-Identifier: MIT
// Chat templates from untrusted bytes: a budget error or a rendering, never a crash; segments always join to the text.
// Input: the template, then after a zero byte JSON messages, then after another JSON variables; missing parts have defaults.
#include "quena/text/chat_template.hpp"

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>

namespace {

constexpr std::string_view usual_messages =
    R"([{"role":"system","content":"Be brief."},{"role":"user","content":" H\u00e9 <|eot_id|> \n"},{"role":"assistant","content":null,"tool_calls":)"
    R"([{"type":"function","function":{"name":"f","arguments":{"a":[1,2.5,true]}}}]},{"role":"tool","content":{"r":1}}])";
constexpr std::string_view usual_variables = R"({"tools":[{"type":"function","function":{"name":"f","parameters":{"type":"object"}}}],"x":[3,"b",{"k":null}],"s":"a,b c"})";

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view all(reinterpret_cast<const char*>(data), size);
  const std::size_t first = all.find('\0'), second = first == all.npos ? all.npos : all.find('\0', first + 1);
  const std::string_view messages = first == all.npos ? usual_messages : all.substr(first + 1, second == all.npos ? all.npos : second - first - 1);
  const std::string_view variables = second == all.npos ? usual_variables : all.substr(second + 1);
  quena::jinja::limits bounds;
  bounds.max_steps = 100'000;  // sanitizers are slow
  bounds.steps_per_input_byte = 16;
  bounds.max_output_bytes = std::size_t{1} << 20;
  bounds.max_memory_bytes = std::size_t{8} << 20;
  try {
    const quena::chat_template t(all.substr(0, first), "fuzz", bounds);
    quena::template_options options;
    options.bos_token = "<|begin_of_text|>";
    options.clock = [] { return std::tm{}; };
    for (int again = 0; again < 2; ++again) {
      const quena::rendered_chat r = t.render_json(messages, variables, options);
      std::string joined;
      for (const quena::text_segment& s : r.segments()) {
        if (s.text.empty()) std::abort();
        joined += s.text;
      }
      if (joined != r.text()) std::abort();
    }
  } catch (const quena::error&) {
  }
  return 0;
}
