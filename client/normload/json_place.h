// Fields of JSON that are named once, for both ways: an Exchange reads its value or writes it.
// Protobuf's JSON cannot be the report's: it has 64-bit integers as text and no lists of pairs.

#ifndef NORMD_CLIENT_NORMLOAD_JSON_PLACE_H_
#define NORMD_CLIENT_NORMLOAD_JSON_PLACE_H_

#include <cstddef>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "nlohmann/json.hpp"

namespace normd::load {

using Json = nlohmann::ordered_json;

// A value that is missing, or impossible.
struct BadValue {
  std::string what;
};

// What a histogram has beside its percentiles: everything needed to rebuild it, the curve of a
// page, or nothing.
enum class Form { kBuckets, kCurve, kBrief };

// A value in the JSON, which an Exchange reads or writes. Borrows the JSON: a field that is added
// to an object ends the places of the others.
struct Place {
  Json& json;
  bool reads;
  Form form;
  std::string name;  // With the fields around it: "options.mix.dtype".

  Place In(const std::string& field) const {
    std::string inner = absl::StrCat(name, name.empty() ? "" : ".", field);
    if (reads && !json.contains(field)) throw BadValue{inner + ": missing"};
    return {reads ? json.at(field) : json[field], reads, form, std::move(inner)};
  }
  Place Element(std::size_t i) const { return {reads ? json.at(i) : json[i], reads, form, name}; }
  // The list of the JSON's elements, or the JSON for those of the list.
  template <typename T>
  void Resize(std::vector<T>& list) const {
    if (!reads) json = Json::array();
    if (!json.is_array()) throw BadValue{absl::StrCat(name, ": wanted a list")};
    if (reads) list.resize(json.size());
  }
  template <typename T>
  void Field(const std::string& field, T& value) const {
    Exchange(In(field), value);
  }
  // A field that may be missing: the value then stays.
  template <typename T>
  void Optional(const std::string& field, T& value, bool written = true) const {
    if (reads ? json.is_object() && !json.contains(field) : !written) return;
    Exchange(In(field), value);
  }
  // A field that follows from others: it is not read.
  template <typename T>
  void Derived(const std::string& field, const T& value) const {
    if (!reads) json[field] = value;
  }
};

template <typename T>
T ValueOr(absl::StatusOr<T> value, const Place& at) {
  if (value.ok()) return *std::move(value);
  throw BadValue{absl::StrCat(at.name, ": ", value.status().message())};
}

template <typename T>
T Read(const Place& at) {
  try {
    return at.json.get<T>();
  } catch (const Json::exception&) {
    throw BadValue{absl::StrCat(at.name, ": unexpected ", at.json.type_name())};
  }
}

// Numbers, text, truth and pairs.
template <typename T>
requires requires(const Json& json, T& value) { json.get_to(value); }
void Exchange(const Place& at, T& value) {
  if (at.reads) {
    value = Read<T>(at);
  } else {
    at.json = value;
  }
}

template <typename T>
void Exchange(const Place& at, std::optional<T>& value) {
  Exchange(at, at.reads ? value.emplace() : *value);
}

template <typename T>
void Exchange(const Place& at, std::vector<T>& list) {
  at.Resize(list);
  for (std::size_t i = 0; i < list.size(); ++i) Exchange(at.Element(i), list[i]);
}

template <typename T>
void Exchange(const Place& at, std::map<std::string, T>& map) {
  if (!at.reads) at.json = Json::object();
  if (at.reads) {
    for (const auto& [key, value] : at.json.items()) map[key];
  }
  for (auto& [key, value] : map) at.Field(key, value);
}

}  // namespace normd::load

#endif  // NORMD_CLIENT_NORMLOAD_JSON_PLACE_H_
