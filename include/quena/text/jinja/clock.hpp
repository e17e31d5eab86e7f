// SPDX-License-Identifier: MIT
// strftime with English names, whatever the host's locale is.
#pragma once

#include <cstdint>
#include <ctime>
#include <string>
#include <string_view>

#include "runtime.hpp"

namespace quena::inline QUENA_ABI {
namespace jinja {

inline constexpr std::string_view day_names[] = {"Sunday", "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday"};
inline constexpr std::string_view month_names[] = {"January", "February", "March",     "April",   "May",      "June",
                                                   "July",    "August",   "September", "October", "November", "December"};

/// Days since 1970-01-01 of a Gregorian date (Howard Hinnant, "chrono-Compatible Low-Level Date Algorithms").
inline std::int64_t days_from_date(std::int64_t y, std::int64_t month, std::int64_t day) {
  y -= month <= 2;
  const std::int64_t era = (y >= 0 ? y : y - 399) / 400, yoe = y - era * 400;
  const std::int64_t doy = (153 * (month + (month > 2 ? -3 : 9)) + 2) / 5 + day - 1;
  return era * 146097 + yoe * 365 + yoe / 4 - yoe / 100 + doy - 719468;
}

/// A moment with its day of the week and of the year computed, so that a caller need not fill those of std::tm.
struct moment {
  explicit moment(const std::tm& tm)
      : year(std::int64_t{tm.tm_year} + 1900), month((tm.tm_mon % 12 + 12) % 12), day(tm.tm_mday), hour(tm.tm_hour), minute(tm.tm_min), second(tm.tm_sec) {
    const std::int64_t days = days_from_date(year, month + 1, day);
    week_day = static_cast<int>(((days + 4) % 7 + 7) % 7);
    year_day = static_cast<int>(days - days_from_date(year, 1, 1));
  }
  std::int64_t year;
  int month, day, hour, minute, second, week_day = 0, year_day = 0;
};

inline std::string padded(std::int64_t v, std::size_t width, char fill = '0') {
  std::string s = std::to_string(v);
  return s.size() < width ? std::string(width - s.size(), fill) + s : s;
}

/// One conversion of strftime, in the C locale. `flag` '-' leaves the padding out, as glibc does.
inline std::string strftime_field(const moment& t, char c, char flag) {
  const auto number = [&](std::int64_t v, std::size_t width, char fill = '0') { return padded(v, flag == '-' ? 0 : width, flag == '_' ? ' ' : flag == '0' ? '0' : fill); };
  const auto all = [&](std::string_view format) {
    std::string s;
    for (std::size_t i = 0; i < format.size(); ++i) s += format[i] == '%' ? strftime_field(t, format[++i], '\0') : std::string(1, format[i]);
    return s;
  };
  const int hour12 = t.hour % 12 == 0 ? 12 : t.hour % 12;
  const int monday_based = (t.week_day + 6) % 7;
  switch (c) {
    case 'a': return std::string(day_names[t.week_day].substr(0, 3));
    case 'A': return std::string(day_names[t.week_day]);
    case 'b':
    case 'h': return std::string(month_names[t.month].substr(0, 3));
    case 'B': return std::string(month_names[t.month]);
    case 'c': return all("%a %b %e %H:%M:%S %Y");
    case 'C': return number(t.year / 100, 2);
    case 'd': return number(t.day, 2);
    case 'D':
    case 'x': return all("%m/%d/%y");
    case 'e': return number(t.day, 2, ' ');
    case 'f': return "000000";
    case 'F': return all("%Y-%m-%d");
    case 'G':
    case 'V': {  // the week that holds this week's Thursday
      const int thursday = t.year_day - monday_based + 3;
      std::int64_t year = t.year, day = thursday;
      const auto length = [](std::int64_t y) { return days_from_date(y + 1, 1, 1) - days_from_date(y, 1, 1); };
      if (day < 0) day += length(--year);
      else if (day >= length(year)) day -= length(year++);
      return c == 'G' ? std::to_string(year) : number(day / 7 + 1, 2);
    }
    case 'H': return number(t.hour, 2);
    case 'I': return number(hour12, 2);
    case 'j': return number(t.year_day + 1, 3);
    case 'k': return number(t.hour, 2, ' ');
    case 'l': return number(hour12, 2, ' ');
    case 'm': return number(t.month + 1, 2);
    case 'M': return number(t.minute, 2);
    case 'n': return "\n";
    case 'p': return t.hour < 12 ? "AM" : "PM";
    case 'P': return t.hour < 12 ? "am" : "pm";
    case 'r': return all("%I:%M:%S %p");
    case 'R': return all("%H:%M");
    case 'S': return number(t.second, 2);
    case 't': return "\t";
    case 'T':
    case 'X': return all("%H:%M:%S");
    case 'u': return std::to_string(monday_based + 1);
    case 'U': return number((t.year_day + 7 - t.week_day) / 7, 2);
    case 'w': return std::to_string(t.week_day);
    case 'W': return number((t.year_day + 7 - monday_based) / 7, 2);
    case 'y': return number(t.year % 100, 2);
    case 'Y': return std::to_string(t.year);
    case 'z':
    case 'Z': return "";  // the time has no zone, as Python's datetime.now() has none
    case '%': return "%";
    default: return flag ? std::string({'%', flag, c}) : std::string({'%', c});
  }
}

/// strftime_now(format): the format's own characters keep their provenance, the date does not count as the template's.
inline value strftime_now(runtime& rt, const arguments& args) {
  const auto a = bind(rt, "strftime_now", args, {"format"}, 1);
  if (!a[0]->is_string()) rt.fail({"expected a format string for strftime_now, got '", type_name(*a[0]), "'"});
  const text& format = a[0]->as_text();
  const moment now(rt.now());
  const std::string_view s = format.view();
  rt.m.touch(8 * s.size());
  text out;
  for (std::size_t at = 0; at < s.size();) {
    const std::size_t percent = s.find('%', at);
    out.append(format, at, percent == s.npos ? s.size() : percent);
    if (percent == s.npos) break;
    at = percent + 1;
    const char flag = at < s.size() && (s[at] == '-' || s[at] == '_' || s[at] == '0') ? s[at++] : '\0';
    if (at >= s.size()) {
      out.append(format, percent, s.size());
      break;
    }
    if (static_cast<unsigned char>(s[at]) >= 0x80) out.append(format, percent, at);
    else out.append(strftime_field(now, s[at++], flag), false);
    rt.m.check_text(out.size());
  }
  return rt.make(std::move(out));
}

}  // namespace jinja
}  // namespace quena::inline QUENA_ABI
