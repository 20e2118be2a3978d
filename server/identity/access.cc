#include "server/identity/access.h"

#include <algorithm>
#include <cstddef>
#include <exception>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "spdlog/spdlog.h"

namespace normd {
namespace {

absl::Status InFile(const std::string& path, const absl::Status& status) {
  return absl::Status(status.code(), absl::StrCat(path, ": ", status.message()));
}

// Briefly, however many they are.
std::string List(const std::vector<std::string>& names) {
  constexpr std::size_t kMost = 10;
  if (names.size() <= kMost) return absl::StrJoin(names, ", ");
  return absl::StrCat(absl::StrJoin(names.begin(), names.begin() + kMost, ", "), " and ",
                      names.size() - kMost, " more");
}

// Tells of a state that holds from now on. A file of tokens that has none refuses all who bring
// one, as when half of an exchange was seen: that is a warning.
void Log(absl::string_view what, const AccessState& state) {
  std::string text = absl::StrCat(what, state.policy().identities().size(), " identities, ",
                                  state.tokens().size(), " tokens");
  const std::vector<std::string> unused = state.UnusedTokens();
  if (!unused.empty()) absl::StrAppend(&text, "; no identity has the token ", List(unused));
  const std::vector<std::string> missing = state.MissingTokens();
  if (!missing.empty()) absl::StrAppend(&text, "; --tokens_file has no token ", List(missing));
  const bool none = !missing.empty() && state.tokens().size() == 0;
  spdlog::log(none ? spdlog::level::warn : spdlog::level::info, "policy: {}", text);
}

}  // namespace

AccessState::AccessState(Policy policy, TokenTable tokens, AccountOf account_of)
    : policy_(std::move(policy)), tokens_(std::move(tokens)) {
  principals_.reserve(policy_.identities().size());
  for (const Identity& identity : policy_.identities()) {
    principals_.push_back({identity, account_of(identity)});
  }
  of_token_names_.reserve(tokens_.names().size());
  for (const std::string& name : tokens_.names()) {
    of_token_names_.push_back(PrincipalOf(policy_.ByToken(name)));
  }
}

const Principal* AccessState::PrincipalOf(const Identity* identity) const {
  if (identity == nullptr) return nullptr;
  return &principals_[static_cast<std::size_t>(identity - policy_.identities().data())];
}

const Principal* AccessState::Recognise(const PeerCredentials& credentials) const {
  if (credentials.authorization.has_value()) {
    const absl::StatusOr<absl::string_view> token = BearerToken(*credentials.authorization);
    if (!token.ok()) return nullptr;
    const std::optional<std::size_t> name = tokens_.Find(*token);
    return name.has_value() ? of_token_names_[*name] : nullptr;
  }
  const Identity* found = nullptr;
  for (const absl::string_view uri : credentials.uris) {
    if (found == nullptr) found = policy_.ByUri(uri);
  }
  for (const absl::string_view name : credentials.dns_names) {
    if (found == nullptr) found = policy_.ByDnsName(name);
  }
  if (found == nullptr && credentials.own_user) found = policy_.own_user();
  return PrincipalOf(found != nullptr ? found : policy_.anonymous());
}

std::vector<std::string> AccessState::UnusedTokens() const {
  std::vector<std::string> unused;
  for (std::size_t i = 0; i < of_token_names_.size(); ++i) {
    if (of_token_names_[i] == nullptr) unused.push_back(tokens_.names()[i]);
  }
  std::sort(unused.begin(), unused.end());
  return unused;
}

std::vector<std::string> AccessState::MissingTokens() const {
  std::vector<std::string> there = tokens_.names();
  std::sort(there.begin(), there.end());
  std::vector<std::string> missing;
  for (const std::string& name : policy_.TokenNames()) {
    if (!std::binary_search(there.begin(), there.end(), name)) missing.push_back(name);
  }
  return missing;
}

Access::Access(AccessFiles files, Callers& callers, Metrics& metrics)
    : files_(std::move(files)),
      callers_(callers),
      metrics_(metrics),
      policy_metrics_(metrics.ForPolicy()),
      nobody_(metrics.ForIdentity("")) {}

absl::StatusOr<std::unique_ptr<Access>> Access::Create(const AccessFiles& files, Callers& callers,
                                                       Metrics& metrics) {
  std::unique_ptr<Access> access(new Access(files, callers, metrics));
  absl::StatusOr<Read> read = access->ReadFiles();
  if (!read.ok()) return read.status();
  if (absl::Status status = access->Take(*std::move(read)); !status.ok()) return status;
  Log("", *access->state());
  return access;
}

absl::StatusOr<std::shared_ptr<const Principal>> Access::Recognise(
    const PeerCredentials& credentials) const {
  std::shared_ptr<const AccessState> state = this->state();
  const Principal* const principal = state->Recognise(credentials);
  if (principal == nullptr) {
    return absl::UnauthenticatedError(
        "the call comes without an identity that this server knows: wanted a token (authorization: "
        "Bearer ...) or a client certificate that its policy names");
  }
  return std::shared_ptr<const Principal>(std::move(state), principal);
}

std::shared_ptr<const AccessState> Access::state() const {
  MutexLock lock(mutex_);
  return state_;
}

absl::StatusOr<Access::Read> Access::ReadFiles() const {
  Read read;
  absl::StatusOr<PrivateFile> policy = ReadPrivateFile(files_.policy, Guarded::kFromWriters);
  if (!policy.ok()) return policy.status();
  read.policy = *std::move(policy);
  if (files_.tokens.empty()) return read;
  absl::StatusOr<PrivateFile> tokens = ReadPrivateFile(files_.tokens, Guarded::kFromReaders);
  if (!tokens.ok()) return tokens.status();
  read.tokens = *std::move(tokens);
  return read;
}

absl::Status Access::Take(Read read) {
  absl::StatusOr<Policy> policy = Policy::Parse(read.policy.text);
  if (!policy.ok()) return InFile(files_.policy, policy.status());
  absl::StatusOr<TokenTable> tokens = TokenTable::Parse(read.tokens.text);
  if (!tokens.ok()) return InFile(files_.tokens, tokens.status());
  auto state = std::make_shared<const AccessState>(
      *std::move(policy), *std::move(tokens),
      [this](const Identity& identity) { return AccountOf(identity); });
  read_ = std::move(read);
  MutexLock lock(mutex_);
  state_.swap(state);
  return absl::OkStatus();
}

// Its limits hold from here on, for calls that are inside too: a moment before the new state does.
std::shared_ptr<Account> Access::AccountOf(const Identity& identity) {
  std::shared_ptr<Account> account = accounts_.Find(identity.name);
  if (account == nullptr) {
    // No connection has a name like this.
    std::shared_ptr<Peer> peer = callers_.FindPeer(absl::StrCat("identity:", identity.name));
    account = accounts_.Add(std::unique_ptr<Account>(
        new Account{identity.name, std::move(peer), metrics_.ForIdentity(identity.name)}));
  }
  account->peer->holding.SetLimit(Resource::kRequests, identity.limits.concurrent_calls);
  account->peer->holding.SetLimit(Resource::kBytes, identity.limits.bytes_in_flight);
  return account;
}

absl::StatusOr<bool> Access::Changed() const {
  if (read_.policy.young || read_.tokens.young) return true;
  const absl::StatusOr<FileState> policy = VersionOfFile(files_.policy);
  if (!policy.ok()) return policy.status();
  if (!(*policy == read_.policy.version)) return true;
  if (files_.tokens.empty()) return false;
  const absl::StatusOr<FileState> tokens = VersionOfFile(files_.tokens);
  if (!tokens.ok()) return tokens.status();
  return !(*tokens == read_.tokens.version);
}

absl::Status Access::CheckFilesOrThrow() {
  const absl::StatusOr<bool> changed = Changed();
  if (!changed.ok()) return changed.status();
  // After an error the old state holds whatever the files are, and a file that is again what it was
  // is no error any more.
  if (!*changed) return absl::OkStatus();
  absl::StatusOr<Read> read = ReadFiles();
  if (!read.ok()) return read.status();
  const bool same =
      read->policy.text == read_.policy.text && read->tokens.text == read_.tokens.text;
  if (same) {
    read_ = *std::move(read);
    return absl::OkStatus();
  }
  if (absl::Status status = Take(*std::move(read)); !status.ok()) return status;
  policy_metrics_.RecordReload(/*taken=*/true);
  Log("taken anew: ", *state());
  return absl::OkStatus();
}

absl::Status Access::CheckFiles() {
  absl::Status status;
  try {
    status = CheckFilesOrThrow();
  } catch (const std::exception& error) {
    status = absl::ResourceExhaustedError(error.what());
  }
  const std::string error = status.ok() ? "" : std::string(status.message());
  if (!error.empty() && error != last_error_) {
    policy_metrics_.RecordReload(/*taken=*/false);
    spdlog::error("policy: the one before goes on to hold: {}", error);
  }
  if (error.empty() && !last_error_.empty()) spdlog::info("policy: its files are right again");
  last_error_ = error;
  return status;
}

}  // namespace normd
