#include "server/rest/routes.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "base/printable.h"

namespace normd {
namespace {

constexpr std::size_t kMaxPathShown = 128;  // Bytes of a path that an error repeats.

// "M" stands for a model, which "/versions/V" may follow, and "R" for a region.
struct Pattern {
  absl::string_view verbs;
  absl::string_view path;
  RestMethod method;
};

// The first route that fits is taken: "stats" here is never a model's name, and the most frequent
// route comes first.
constexpr Pattern kPatterns[] = {
    {"POST", "/v2/models/M/infer", RestMethod::kInfer},
    {"GET", "/v2", RestMethod::kServerMetadata},
    {"GET", "/v2/health/live", RestMethod::kServerLive},
    {"GET", "/v2/health/ready", RestMethod::kServerReady},
    {"GET", "/v2/models/stats", RestMethod::kModelStatistics},
    {"GET", "/v2/models/M", RestMethod::kModelMetadata},
    {"GET", "/v2/models/M/ready", RestMethod::kModelReady},
    {"GET", "/v2/models/M/config", RestMethod::kModelConfig},
    {"GET", "/v2/models/M/stats", RestMethod::kModelStatistics},
    {"GET, POST", "/v2/models/M/trace/setting", RestMethod::kTraceSetting},
    {"POST", "/v2/repository/index", RestMethod::kRepositoryIndex},
    {"POST", "/v2/repository/models/M/load", RestMethod::kLoad},
    {"POST", "/v2/repository/models/M/unload", RestMethod::kUnload},
    {"GET", "/v2/systemsharedmemory/status", RestMethod::kSystemStatus},
    {"GET", "/v2/systemsharedmemory/region/R/status", RestMethod::kSystemStatus},
    {"POST", "/v2/systemsharedmemory/region/R/register", RestMethod::kSystemRegister},
    {"POST", "/v2/systemsharedmemory/unregister", RestMethod::kSystemUnregister},
    {"POST", "/v2/systemsharedmemory/region/R/unregister", RestMethod::kSystemUnregister},
    {"GET", "/v2/cudasharedmemory/status", RestMethod::kCudaStatus},
    {"GET", "/v2/cudasharedmemory/region/R/status", RestMethod::kCudaStatus},
    {"POST", "/v2/cudasharedmemory/region/R/register", RestMethod::kCudaRegister},
    {"POST", "/v2/cudasharedmemory/unregister", RestMethod::kCudaUnregister},
    {"POST", "/v2/cudasharedmemory/region/R/unregister", RestMethod::kCudaUnregister},
    {"GET, POST", "/v2/trace/setting", RestMethod::kTraceSetting},
    {"GET, POST", "/v2/logging", RestMethod::kLogSettings},
};

int HexDigit(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  const char lower = absl::ascii_tolower(static_cast<unsigned char>(c));
  return lower >= 'a' && lower <= 'f' ? lower - 'a' + 10 : -1;
}

// False if a percent sign is not followed by two digits.
bool DecodePercent(absl::string_view text, std::string& decoded) {
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '%') {
      decoded += text[i];
      continue;
    }
    if (i + 2 >= text.size()) return false;
    const int high = HexDigit(text[i + 1]);
    const int low = HexDigit(text[i + 2]);
    if (high < 0 || low < 0) return false;
    decoded += static_cast<char>(16 * high + low);
    i += 2;
  }
  return true;
}

// The path of a target, which a proxy's request gives with the server's name.
absl::string_view PathOf(absl::string_view target) {
  if (absl::ConsumePrefix(&target, "http://") || absl::ConsumePrefix(&target, "https://")) {
    target.remove_prefix(std::min(target.find('/'), target.size()));
  }
  return target.substr(0, target.find_first_of("?#"));
}

// The parts of a path between slashes, decoded.
using PathParts = absl::InlinedVector<absl::string_view, 8>;

bool Fits(absl::string_view pattern, const PathParts& path, Route& route) {
  std::size_t i = 1;  // The first is what lies in front of the path's slash.
  while (absl::ConsumePrefix(&pattern, "/")) {
    const absl::string_view wanted = pattern.substr(0, pattern.find('/'));
    pattern.remove_prefix(wanted.size());
    if (i == path.size()) return false;
    const absl::string_view part = path[i++];
    if (wanted == "R") {
      route.region = std::string(part);
    } else if (wanted == "M") {
      route.model = std::string(part);
      if (i + 1 < path.size() && path[i] == "versions") {
        if (path[i + 1].empty()) return false;
        route.version = std::string(path[i + 1]);
        i += 2;
      }
    } else if (wanted != part) {
      return false;
    }
  }
  return path[0].empty() && i == path.size();
}

bool Takes(absl::string_view verbs, absl::string_view verb) {
  if (verb == "HEAD") return absl::StartsWith(verbs, "GET");
  for (const absl::string_view one : absl::StrSplit(verbs, ", ")) {
    if (one == verb) return true;
  }
  return false;
}

}  // namespace

RestRefusal FindRoute(absl::string_view verb, absl::string_view target, Route& route) {
  const absl::string_view shown = PathOf(target);
  PathParts path = absl::StrSplit(shown, '/');
  std::vector<std::string> decoded;
  decoded.reserve(absl::StrContains(shown, '%') ? path.size() : 0);  // `path` points into it.
  for (absl::string_view& part : path) {
    if (!absl::StrContains(part, '%')) continue;
    const bool is_right = DecodePercent(part, decoded.emplace_back());
    part = decoded.back();
    if (!is_right) {
      return {400, absl::StrCat("path: \"", Printable(shown, kMaxPathShown),
                                "\", wanted two hexadecimal digits behind each %")};
    }
  }
  for (const Pattern& pattern : kPatterns) {
    Route found;
    found.method = pattern.method;
    if (!Fits(pattern.path, path, found)) continue;
    const bool repository =
        found.method == RestMethod::kLoad || found.method == RestMethod::kUnload;
    // An empty name or version would mean every one of them.
    const bool empty = (absl::StrContains(pattern.path, "/M") && found.model.empty()) ||
                       (absl::StrContains(pattern.path, "/R") && found.region.empty());
    if (empty || (repository && !found.version.empty())) continue;
    if (Takes(pattern.verbs, verb)) {
      route = std::move(found);
      return {};
    }
    const std::string allow = absl::StrCat(
        pattern.verbs, absl::StartsWith(pattern.verbs, "GET") ? ", HEAD" : "", ", OPTIONS");
    if (verb == "OPTIONS") return {204, "", allow};
    return {405,
            absl::StrCat(Printable(verb, 32), " ", Printable(shown, kMaxPathShown), ", wanted ",
                         pattern.verbs),
            allow};
  }
  return {404, absl::StrCat("path: \"", Printable(shown, kMaxPathShown), "\" does not exist")};
}

}  // namespace normd
