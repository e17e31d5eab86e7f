// SPDX-License-Identifier: MIT
// A plot as an SVG file: cumulative distributions of times on a logarithmic axis.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdio>
#include <iterator>
#include <string>
#include <string_view>
#include <vector>

namespace quena_bench {

struct series {
  std::string_view name;
  std::vector<double> sorted;  ///< seconds, ascending, positive
};

/// For each series the share of its values up to x, over x from the smallest to the greatest value of all.
inline std::string distribution_plot(std::string_view title, const std::vector<series>& all) {
  constexpr double left = 60, right = 700, top = 50, bottom = 380;
  double low = 1e9, high = 1e-9;
  for (const series& s : all)
    for (const double x : s.sorted) low = (std::min)(low, x), high = (std::max)(high, x);
  low = std::pow(10.0, std::floor(std::log10((std::min)(low, high))));
  high = std::pow(10.0, std::ceil(std::log10((std::max)(high, 2 * low))));
  const auto x_of = [&](double seconds) { return left + (right - left) * std::log(seconds / low) / std::log(high / low); };
  const auto y_of = [&](double share) { return bottom - (bottom - top) * share; };

  std::string out = "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"760\" height=\"430\" font-family=\"sans-serif\" font-size=\"13\">\n"
                    "<rect width=\"760\" height=\"430\" fill=\"white\"/>\n";
  const auto text = [&](double x, double y, std::string_view anchor, std::string_view words, std::string_view colour = "black") {
    char place[96];
    std::snprintf(place, sizeof place, "<text x=\"%.1f\" y=\"%.1f\" text-anchor=\"", x, y);
    out.append(place).append(anchor).append("\" fill=\"").append(colour).append("\">").append(words).append("</text>\n");
  };
  const auto line = [&](double x1, double y1, double x2, double y2) {
    char whole[160];
    std::snprintf(whole, sizeof whole, "<line x1=\"%.1f\" y1=\"%.1f\" x2=\"%.1f\" y2=\"%.1f\" stroke=\"#cccccc\"/>\n", x1, y1, x2, y2);
    out += whole;
  };
  text((left + right) / 2, 28, "middle", title);
  for (double x = low; x < high * 1.01; x *= 10) {
    char label[32];
    std::snprintf(label, sizeof label, x < 0.999e-3 ? "%g us" : x < 0.999 ? "%g ms" : "%g s", x < 0.999e-3 ? 1e6 * x : x < 0.999 ? 1e3 * x : x);
    line(x_of(x), top, x_of(x), bottom);
    text(x_of(x), bottom + 20, "middle", label);
  }
  for (const int percent : {0, 25, 50, 75, 95, 100}) {
    line(left, y_of(percent / 100.0), right, y_of(percent / 100.0));
    text(left - 8, y_of(percent / 100.0) + 4, "end", std::to_string(percent) + " %");
  }
  constexpr std::string_view colours[] = {"#1f77b4", "#d62728", "#2ca02c", "#9467bd"};
  for (std::size_t i = 0; i < all.size(); ++i) {
    const std::string_view colour = colours[i % std::size(colours)];
    const std::vector<double>& sorted = all[i].sorted;
    out.append("<polyline fill=\"none\" stroke-width=\"2\" stroke=\"").append(colour).append("\" points=\"");
    const std::size_t stride = (std::max)(sorted.size() / 500, std::size_t{1});
    for (std::size_t k = 0; k < sorted.size(); k += stride) {
      char point[48];
      std::snprintf(point, sizeof point, "%.1f,%.1f ", x_of(sorted[k]), y_of(static_cast<double>(k + 1) / static_cast<double>(sorted.size())));
      out += point;
    }
    out += "\"/>\n";
    text(left + 12, top + 18 + 18 * static_cast<double>(i), "start", all[i].name, colour);
  }
  return out += "</svg>\n";
}

}  // namespace quena_bench
