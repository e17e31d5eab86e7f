// SPDX-License-Identifier: MIT
// Speed of the tokenizer on one core, in 1e6 bytes of text per second: encoding, decoding, loading.
//   bench_tokenizer FOLDER_OR_GGUF [TEXT_FILE...] [--seconds S] [--write-mixed FILE] [--json]
// Always measures a made-up text in many scripts; English needs a file (of prose, some hundred kB). Each figure is the median of several
// rounds over the whole text, with the lowest and the highest. bench/peers/tokenizer.mjs runs llama.cpp over the same files.
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include <quena/text/tokenizer.hpp>

#include "ceilings.hpp"

namespace {

/// About `n_bytes` of text: sentences of common words in fourteen languages, with numbers, code, emoji and random Han and Hangul, so that
/// neither the words nor the scripts repeat soon.
std::string mixed_scripts(std::size_t n_bytes) {
  const std::vector<std::vector<std::string_view>> languages = {
      {"the", "of", "and", "people", "because", "between", "thought", "little", "another", "country", "light", "story", "mountain"},
      {"für", "über", "Straße", "möchte", "Geschichte", "zwischen", "größer", "während", "Bücher", "Mädchen", "natürlich", "können"},
      {"où", "être", "déjà", "français", "élève", "aujourd'hui", "l'été", "garçon", "nécessaire", "théâtre", "qu'il", "forêt"},
      {"año", "niño", "corazón", "también", "mañana", "pequeño", "¿dónde?", "canción", "después", "montaña", "país", "jamás"},
      {"не", "быть", "человек", "который", "сказал", "время", "жизнь", "хорошо", "сегодня", "история", "маленький", "гора"},
      {"και", "άνθρωπος", "θάλασσα", "σήμερα", "ιστορία", "βουνό", "γιατί", "μεγάλος", "καλημέρα", "χρόνος", "φως", "ζωή"},
      {"של", "אנשים", "היום", "סיפור", "ילדה", "קטן", "הר", "לילה", "שלום", "עולם", "ספר", "אור"},
      {"في", "الناس", "اليوم", "قصة", "صغير", "جبل", "ليلة", "السلام", "العالم", "كتاب", "ضوء", "مدرسة"},
      {"और", "लोग", "आज", "कहानी", "छोटा", "पहाड़", "रात", "नमस्ते", "दुनिया", "किताब", "रोशनी", "क्योंकि"},
      {"คน", "วันนี้", "เรื่อง", "เล็ก", "ภูเขา", "กลางคืน", "สวัสดี", "โลก", "หนังสือ", "แสง", "เพราะ", "ประเทศ"},
      {"người", "hôm", "nay", "chuyện", "nhỏ", "núi", "đêm", "thế", "giới", "sách", "ánh", "sáng", "Việt", "Nam"},
      {"人们", "今天", "故事", "小", "山", "夜晚", "你好", "世界", "书", "光", "因为", "国家", "的", "了", "在"},
      {"ひと", "今日", "物語", "ちいさい", "やま", "こんばんは", "セカイ", "本", "ヒカリ", "だから", "です", "の", "は"},
      {"사람", "오늘", "이야기", "작은", "산", "밤", "안녕하세요", "세계", "책", "빛", "왜냐하면", "나라", "그리고"}};
  const std::string_view extra[] = {"2048", "3.14", "1,234,567", "x += 1;", "std::vector<int>", "https://example.org/a?b=c", "\U0001F600", "\U0001F44D\U0001F3FD",
                                    "\u2764\uFE0F", "\"", "(…)", "—", "\t", "C++20", "№ 7", "½"};
  std::mt19937 random(2024);
  const auto below = [&random](std::size_t n) { return static_cast<std::size_t>(random() % n); };
  std::string out;
  while (out.size() < n_bytes) {
    const std::size_t language = below(languages.size());
    const bool spaced = language != 9 && language != 11 && language != 12;
    for (std::size_t n = 4 + below(16); n > 0; --n) {
      if (below(12) == 0) {
        out += extra[below(std::size(extra))];
      } else if (below(3) == 0 && language >= 11) {
        for (std::size_t k = 1 + below(4); k > 0; --k)
          quena::append_utf8(out, language == 13 ? 0xAC00 + static_cast<std::uint32_t>(below(11172)) : 0x4E00 + static_cast<std::uint32_t>(below(6000)));
      } else {
        out += languages[language][below(languages[language].size())];
      }
      if (spaced) out += ' ';
    }
    out += spaced ? ".\n" : "。\n";
  }
  return out;
}

std::string read_file(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

/// Rounds of `body`, as `amount` of work per second, for about `seconds` and at least five times.
template <class F>
quena_bench::figure measure(double amount, double seconds, F&& body) {
  using clock = std::chrono::steady_clock;
  body();
  std::vector<double> rates;
  const auto start = clock::now();
  do {
    const auto t = clock::now();
    body();
    rates.push_back(amount / std::chrono::duration<double>(clock::now() - t).count());
  } while (rates.size() < 5 || std::chrono::duration<double>(clock::now() - start).count() < seconds);
  return quena_bench::summary(std::move(rates));
}

}  // namespace

int main(int argc, char** argv) {
  std::string model;
  std::vector<std::string> files;
  double seconds = 1;
  bool as_json = false;
  for (int i = 1; i < argc; ++i) {
    const std::string_view a = argv[i];
    if (a == "--json") as_json = true;
    else if (a == "--seconds" && i + 1 < argc) seconds = std::atof(argv[++i]);
    else if (a == "--write-mixed" && i + 1 < argc) std::ofstream(argv[++i], std::ios::binary) << mixed_scripts(1000000);
    else if (model.empty()) model = a;
    else files.emplace_back(a);
  }
  if (model.empty()) return std::fprintf(stderr, "usage: bench_tokenizer FOLDER_OR_GGUF [TEXT_FILE...] [--seconds S] [--write-mixed FILE] [--json]\n"), 2;
  try {
    const quena::checkpoint files_of_model = quena::checkpoint::open(model, {.weights = false});
    const quena_bench::figure loads = measure(1, seconds, [&] { (void)quena::tokenizer::open(files_of_model); });
    const quena::tokenizer t = quena::tokenizer::open(files_of_model);
    if (as_json)
      std::printf("{\"machine\": \"%s\", \"vocab_size\": %zu, \"load_s\": %.4f, \"texts\": [", quena_bench::facts_line(1).c_str(), t.vocab_size(), 1 / loads.median);
    else
      std::printf("%s\nloading %.0f ms, %zu tokens\n%-28s %10s %10s %10s %10s %12s %12s\n", quena_bench::facts_line(1).c_str(), 1e3 / loads.median, t.vocab_size(), "text",
                  "MB", "MB/s", "lowest", "highest", "bytes/token", "decode MB/s");
    files.emplace_back("mixed scripts");
    for (std::size_t i = 0; i < files.size(); ++i) {
      const std::string text = i + 1 == files.size() ? mixed_scripts(1000000) : read_file(files[i]);
      if (text.empty()) return std::fprintf(stderr, "bench_tokenizer: %s is empty or cannot be read\n", files[i].c_str()), 1;
      const double mb = static_cast<double>(text.size()) * 1e-6;
      std::vector<quena::token_id> ids;
      const quena_bench::figure encode = measure(mb, seconds, [&] {
        ids.clear();
        t.encode(text, {.add_bos = false}, ids);
      });
      std::string back;
      const quena_bench::figure decode = measure(mb, seconds / 4, [&] { back = t.decode(ids); });
      if (back != text) return std::fprintf(stderr, "bench_tokenizer: %s does not come back\n", files[i].c_str()), 1;
      const double per_token = static_cast<double>(text.size()) / static_cast<double>(ids.size());
      const std::string name = files[i].substr(files[i].find_last_of('/') + 1);
      if (as_json)
        std::printf("%s{\"text\": \"%s\", \"mb\": %.3f, \"encode_mb_s\": {\"median\": %.2f, \"lowest\": %.2f, \"highest\": %.2f}, \"bytes_per_token\": %.3f, \"decode_mb_s\": %.1f}",
                    i == 0 ? "" : ", ", name.c_str(), mb, encode.median, encode.lowest, encode.highest, per_token, decode.median);
      else
        std::printf("%-28s %10.2f %10.1f %10.1f %10.1f %12.2f %12.0f\n", name.c_str(), mb, encode.median, encode.lowest, encode.highest, per_token, decode.median);
    }
    if (as_json) std::printf("]}\n");
  } catch (const quena::error& e) {
    return std::fprintf(stderr, "bench_tokenizer: %s\n", e.what()), 1;
  }
}
