#include "server/http/connection_limits.h"

#include <algorithm>
#include <map>
#include <tuple>

namespace normd {

std::optional<std::size_t> MakesRoom(absl::Span<const HeldConnection> held, absl::string_view peer,
                                     const HttpConnectionLimits& limits) {
  std::map<absl::string_view, std::size_t> counts;
  for (const HeldConnection& connection : held) ++counts[connection.peer];
  absl::string_view from = peer;
  const auto own = counts.find(peer);
  if (own == counts.end() || own->second < limits.of_peer) {
    if (held.size() < limits.all || counts.empty()) return std::nullopt;
    from = std::max_element(counts.begin(), counts.end(), [](const auto& a, const auto& b) {
             return a.second < b.second;
           })->first;
  }
  std::optional<std::size_t> first;
  for (std::size_t i = 0; i < held.size(); ++i) {
    if (held[i].peer != from) continue;
    if (!first || std::tie(held[i].phase, held[i].number) <
                      std::tie(held[*first].phase, held[*first].number)) {
      first = i;
    }
  }
  return first;
}

}  // namespace normd
