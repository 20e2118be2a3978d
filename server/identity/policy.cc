#include "server/identity/policy.h"

#include <algorithm>
#include <cmath>
#include <memory>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/printable.h"
#include "google/protobuf/text_format.h"
#include "normd/v1/policy.pb.h"
#include "server/text_format/parse_text.h"

namespace normd {
namespace {

// A policy in its file's form: read, and not yet checked. Remembers the line of each message.
class PolicyText {
 public:
  // InvalidArgument gives line and column of syntax errors, of unknown fields, and of fields that
  // come twice.
  absl::Status Parse(absl::string_view text) {
    return ParseText({v1::Policy::descriptor()}, text, policy_, &lines_);
  }

  const v1::Policy& policy() const { return policy_; }
  // "line 7: role \"user\"", with the name if it may be shown.
  std::string PlaceOfRole(int index) const {
    return Place("role", index, policy_.role(index).name());
  }
  std::string PlaceOfIdentity(int index) const {
    return Place("identity", index, policy_.identity(index).name());
  }

 private:
  std::string Place(const char* field, int index, absl::string_view name) const;

  v1::Policy policy_;
  google::protobuf::TextFormat::ParseInfoTree lines_;
};

std::string PolicyText::Place(const char* field, int index, absl::string_view name) const {
  const auto location = lines_.GetLocation(v1::Policy::descriptor()->FindFieldByName(field), index);
  return absl::StrCat("line ", location.line + 1, ": ", field, " \"", Printable(name, 64), "\"");
}

constexpr std::size_t kMaxUriBytes = 2048;
constexpr std::size_t kMaxDnsBytes = 253;
constexpr double kMaxRate = 1e9;

absl::Status Wrong(absl::string_view place, absl::string_view field, absl::string_view got,
                   absl::string_view wanted) {
  return absl::InvalidArgumentError(
      absl::StrCat(place, ": ", field, ": ", got, ", wanted ", wanted));
}

std::string Quoted(absl::string_view text) { return absl::StrCat("\"", Printable(text, 64), "\""); }

// Printable ASCII without blanks.
bool IsPlain(absl::string_view text) {
  return std::all_of(text.begin(), text.end(), [](char c) { return c > ' ' && c < 0x7f; });
}

// The form in which names are compared.
std::string Folded(absl::string_view dns_name) { return absl::AsciiStrToLower(dns_name); }

absl::Status CheckUri(absl::string_view place, absl::string_view uri) {
  if (absl::StartsWith(uri, "spiffe://") && uri.size() <= kMaxUriBytes && IsPlain(uri)) {
    return absl::OkStatus();
  }
  return Wrong(place, "spiffe", Quoted(uri), "a whole URI, such as spiffe://example.org/client");
}

absl::Status CheckDnsName(absl::string_view place, absl::string_view name) {
  if (!name.empty() && name.size() <= kMaxDnsBytes && IsPlain(name) &&
      name.find('*') == absl::string_view::npos) {
    return absl::OkStatus();
  }
  return Wrong(place, "dns", Quoted(name), "a whole name, such as client.example.org");
}

absl::Status CheckCount(absl::string_view place, absl::string_view field, bool is_set,
                        std::int64_t count) {
  if (!is_set || count > 0) return absl::OkStatus();
  return Wrong(place, field, absl::StrCat(count), "1 or more, or nothing for no limit");
}

absl::StatusOr<IdentityLimits> LimitsOf(absl::string_view place, const v1::Limits& given) {
  const double rate = given.requests_per_second();
  // NaN is not a rate either.
  if (given.has_requests_per_second() && !(rate > 0 && rate <= kMaxRate)) {
    return Wrong(place, "limits.requests_per_second", absl::StrCat(rate),
                 "above 0 and at most 1e9, or nothing for no limit");
  }
  if (given.has_burst() && !given.has_requests_per_second()) {
    return Wrong(place, "limits.burst", absl::StrCat(given.burst()),
                 "requests_per_second beside it");
  }
  absl::Status status = CheckCount(place, "limits.burst", given.has_burst(), given.burst());
  if (status.ok()) {
    status = CheckCount(place, "limits.concurrent_calls", given.has_concurrent_calls(),
                        given.concurrent_calls());
  }
  if (status.ok()) {
    status = CheckCount(place, "limits.bytes_in_flight", given.has_bytes_in_flight(),
                        given.bytes_in_flight());
  }
  if (!status.ok()) return status;
  IdentityLimits limits;
  limits.rate.per_second = rate;
  if (given.has_requests_per_second()) {
    limits.rate.burst = given.has_burst() ? given.burst() : std::llround(std::ceil(rate));
  }
  limits.concurrent_calls = given.concurrent_calls();
  limits.bytes_in_flight = given.bytes_in_flight();
  return limits;
}

struct CompiledRole {
  bool observe = false;
  bool admin = false;
  // shared: by the identities that have the role. Null: no models.
  std::shared_ptr<const ModelPatterns> infer;
};

absl::StatusOr<CompiledRole> CompileRole(absl::string_view place, const v1::Role& role) {
  if (absl::Status name = CheckIdentityName(role.name()); !name.ok()) {
    return absl::InvalidArgumentError(absl::StrCat(place, ": name: ", name.message()));
  }
  if (!role.observe() && !role.admin() && !role.health() && role.infer().empty()) {
    return Wrong(place, "rights", "none", "infer, observe, admin or health");
  }
  CompiledRole compiled{role.observe(), role.admin(), nullptr};
  if (role.infer().empty()) return compiled;
  auto patterns = std::make_shared<ModelPatterns>();
  for (const std::string& pattern : role.infer()) {
    if (absl::Status added = patterns->Add(pattern); !added.ok()) {
      return absl::InvalidArgumentError(absl::StrCat(place, ": infer: ", added.message()));
    }
  }
  compiled.infer = std::move(patterns);
  return compiled;
}

}  // namespace

// Builds a policy from its text, one identity after another.
class PolicyBuilder {
 public:
  explicit PolicyBuilder(const PolicyText& text) : text_(text) {}

  absl::StatusOr<Policy> Build() && {
    const v1::Policy& given = text_.policy();
    for (int i = 0; i < given.role_size(); ++i) {
      const std::string place = text_.PlaceOfRole(i);
      absl::StatusOr<CompiledRole> role = CompileRole(place, given.role(i));
      if (!role.ok()) return role.status();
      if (!roles_.emplace(given.role(i).name(), *std::move(role)).second) {
        return Wrong(place, "name", "a second role of this name", "each name once");
      }
    }
    if (given.identity_size() == 0 || given.identity_size() > kMaxIdentities) {
      return absl::InvalidArgumentError(
          absl::StrCat("identity: ", given.identity_size(), ", wanted 1 to ", kMaxIdentities));
    }
    policy_.identities_.reserve(static_cast<std::size_t>(given.identity_size()));
    for (int i = 0; i < given.identity_size(); ++i) {
      if (absl::Status added = Add(text_.PlaceOfIdentity(i), given.identity(i)); !added.ok()) {
        return added;
      }
    }
    return std::move(policy_);
  }

 private:
  absl::Status Add(const std::string& place, const v1::Identity& given) {
    if (absl::Status name = CheckIdentityName(given.name()); !name.ok()) {
      return absl::InvalidArgumentError(absl::StrCat(place, ": name: ", name.message()));
    }
    if (!names_.insert(given.name()).second) {
      return Wrong(place, "name", "a second identity of this name", "each name once");
    }
    Identity identity;
    identity.name = given.name();
    identity.anonymous = given.anonymous();
    if (absl::Status status = AddRoles(place, given, identity.rights); !status.ok()) return status;
    absl::StatusOr<IdentityLimits> limits = LimitsOf(place, given.limits());
    if (!limits.ok()) return limits.status();
    identity.limits = *limits;
    policy_.identities_.push_back(std::move(identity));
    return AddSigns(place, given);
  }

  absl::Status AddRoles(const std::string& place, const v1::Identity& given, Rights& rights) const {
    if (given.role_size() == 0 || given.role_size() > kMaxRolesOfIdentity) {
      return Wrong(place, "role", absl::StrCat(given.role_size()),
                   absl::StrCat("1 to ", kMaxRolesOfIdentity));
    }
    for (const std::string& name : given.role()) {
      const auto role = roles_.find(name);
      if (role == roles_.end()) {
        return Wrong(place, "role", Quoted(name), "the name of a role of this file");
      }
      rights.observe |= role->second.observe;
      rights.admin |= role->second.admin;
      if (role->second.infer != nullptr) rights.infer.push_back(role->second.infer);
    }
    return absl::OkStatus();
  }

  // Adds the credentials of the last identity.
  absl::Status AddSigns(const std::string& place, const v1::Identity& given) {
    if (given.token().empty() && given.spiffe().empty() && given.dns().empty() &&
        !given.unix_socket() && !given.anonymous()) {
      return Wrong(place, "recognised by", "nothing",
                   "token, spiffe, dns, unix_socket or anonymous");
    }
    absl::Status status;
    for (const std::string& token : given.token()) {
      status = CheckIdentityName(token);
      if (!status.ok()) {
        return absl::InvalidArgumentError(absl::StrCat(place, ": token: ", status.message()));
      }
      if (status = AddSign(place, "token", policy_.tokens_, token); !status.ok()) return status;
    }
    for (const std::string& uri : given.spiffe()) {
      if (status = CheckUri(place, uri); !status.ok()) return status;
      if (status = AddSign(place, "spiffe", policy_.uris_, uri); !status.ok()) return status;
    }
    for (const std::string& name : given.dns()) {
      if (status = CheckDnsName(place, name); !status.ok()) return status;
      status = AddSign(place, "dns", policy_.dns_names_, Folded(name));
      if (!status.ok()) return status;
    }
    if (given.unix_socket()) {
      if (policy_.own_user_ != Policy::kNobody) return Twice(place, "unix_socket", "true");
      policy_.own_user_ = last();
    }
    if (!given.anonymous()) return absl::OkStatus();
    if (policy_.anonymous_ != Policy::kNobody) return Twice(place, "anonymous", "true");
    policy_.anonymous_ = last();
    return absl::OkStatus();
  }

  absl::Status AddSign(const std::string& place, absl::string_view field, Policy::Index& index,
                       const std::string& key) {
    return index.emplace(key, last()).second ? absl::OkStatus() : Twice(place, field, Quoted(key));
  }
  static absl::Status Twice(absl::string_view place, absl::string_view field,
                            absl::string_view got) {
    return Wrong(place, field, absl::StrCat(got, " again"), "each once in the file");
  }
  std::size_t last() const { return policy_.identities_.size() - 1; }

  const PolicyText& text_;
  absl::flat_hash_map<std::string, CompiledRole> roles_;
  absl::flat_hash_set<std::string> names_;
  Policy policy_;
};

absl::StatusOr<Policy> Policy::Parse(absl::string_view text) {
  PolicyText parsed;
  if (absl::Status status = parsed.Parse(text); !status.ok()) return status;
  return PolicyBuilder(parsed).Build();
}

std::vector<std::string> Policy::TokenNames() const {
  std::vector<std::string> names;
  for (const auto& [name, identity] : tokens_) names.push_back(name);
  std::sort(names.begin(), names.end());
  return names;
}

const Identity* Policy::ByDnsName(absl::string_view name) const {
  return Find(dns_names_, Folded(name));
}

}  // namespace normd
