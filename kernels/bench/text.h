// Text of tables and JSON. Internal to the reports.

#ifndef NORMD_KERNELS_BENCH_TEXT_H_
#define NORMD_KERNELS_BENCH_TEXT_H_

#include <cmath>
#include <cstdio>
#include <string>

namespace normd::norm::bench {

// At most 511 characters.
template <typename... Values>
std::string Format(const char* format, Values... values) {
  char text[512];
  std::snprintf(text, sizeof(text), format, values...);
  return text;
}

// A JSON string.
inline std::string Quoted(const std::string& text) {
  std::string out = "\"";
  for (char c : text) {
    if (c == '"' || c == '\\') out += '\\';
    out += static_cast<unsigned char>(c) < ' ' ? ' ' : c;
  }
  return out + '"';
}

// A JSON number; null if it is not finite.
inline std::string Number(double value) {
  return std::isfinite(value) ? Format("%.9g", value) : "null";
}

}  // namespace normd::norm::bench

#endif  // NORMD_KERNELS_BENCH_TEXT_H_
