#include "server/config/config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "server/config/memory_budget.h"

namespace normd {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

absl::StatusOr<CommandLine> Parse(const std::vector<const char*>& args) {
  return ParseCommandLine(args);
}

std::string ErrorOf(const std::vector<const char*>& args) {
  const auto line = Parse(args);
  return line.ok() ? "" : std::string(line.status().message());
}

TEST(ParseCommandLineTest, ReadsEveryFormOfAFlag) {
  const auto line =
      Parse({"--listen=127.0.0.2:81", "-cpu_threads=3", "--lame_duck", "250ms", "--insecure"});
  ASSERT_TRUE(line.ok()) << line.status();
  EXPECT_EQ(line->config.listen, "127.0.0.2:81");
  EXPECT_TRUE(line->config.insecure);
  EXPECT_EQ(line->config.cpu_threads, 3);
  EXPECT_EQ(line->config.lame_duck, absl::Milliseconds(250));
  EXPECT_FALSE(line->help);
}

TEST(ParseCommandLineTest, KnowsHelpAndVersion) {
  EXPECT_TRUE(Parse({"--help"})->help);
  EXPECT_TRUE(Parse({"--version"})->version);
}

TEST(ParseCommandLineTest, RefusesWhatItDoesNotKnow) {
  EXPECT_THAT(ErrorOf({"--no_such_flag=1"}), HasSubstr("--no_such_flag: no such flag"));
  EXPECT_THAT(ErrorOf({"models"}), HasSubstr("\"models\": wanted only flags"));
  EXPECT_THAT(ErrorOf({"-"}), HasSubstr("wanted only flags"));
  EXPECT_THAT(ErrorOf({""}), HasSubstr("wanted only flags"));
  EXPECT_THAT(ErrorOf({"--listen"}), HasSubstr("--listen: no value"));
  // A flag of a library is none of the server's.
  EXPECT_THAT(ErrorOf({"--flagfile=x"}), HasSubstr("no such flag"));
  EXPECT_THAT(ErrorOf({"--max_request_byte=1"}), HasSubstr("did you mean --max_request_bytes?"));
}

TEST(ParseCommandLineTest, RefusesAValueThatCannotBeRead) {
  for (const char* rows : {"two", "1e3", "", "99999999999999999999"}) {
    EXPECT_EQ(ErrorOf({"--max_batch_rows", rows}),
              absl::StrCat("--max_batch_rows: \"", rows, "\", wanted N, a whole number"));
  }
  EXPECT_EQ(ErrorOf({"--max_request_bytes=1.5MiB"}),
            "--max_request_bytes: \"1.5MiB\", wanted BYTES, a whole number, alone or with a unit, "
            "such as 64MiB or 1GB");
  EXPECT_EQ(ErrorOf({"--insecure=maybe"}), "--insecure: \"maybe\", wanted true or false");
  EXPECT_THAT(ErrorOf({"--lame_duck=5"}),
              HasSubstr("--lame_duck: \"5\", wanted DURATION, a time with its unit"));
}

struct OutOfRange {
  const char* flag;
  const char* message;
};

TEST(ParseCommandLineTest, RefusesAValueOutOfRangeAndNamesTheFlag) {
  for (const OutOfRange& wrong : std::vector<OutOfRange>{
           {"--listen=8001", "--listen: \"8001\", wanted host:port"},
           {"--listen=unix:relative", "or unix:///path"},
           {"--listen=unix:///folder/", "or unix:///path"},
           {"--listen=127.0.0.1:81,", "or several with commas between"},
           {"--listen=unix:///a,8001", "or several with commas between"},
           {"--http_listen=unix:///path", "--http_listen: \"unix:///path\", wanted host:port"},
           {"--http_listen=127.0.0.1:81,", "several with commas between, or none"},
           {"--http_allow_origin=example.com", "wanted origins such as https://example.com"},
           {"--http_allow_origin=https://example.com/", "wanted origins"},
           {"--http_allow_origin=https://a,*", "wanted origins"},
           {"--metrics_listen=unix:///path",
            "--metrics_listen: \"unix:///path\", wanted host:port"},
           {"--metrics_listen=127.0.0.1:99999", "--metrics_listen"},
           {"--max_request_bytes=0", "--max_request_bytes: 0, wanted from 1"},
           {"--max_request_bytes=4294967296", "--max_request_bytes: 4294967296"},
           {"--max_inflight_bytes=100", "at least twice --max_request_bytes"},
           {"--stream_window_bytes=1000", "--stream_window_bytes: 1000, wanted from 65536"},
           {"--stream_window_bytes=1073741824", "at least twice --stream_window_bytes"},
           {"--stream_idle_timeout=25h", "--stream_idle_timeout: 25h, wanted from 0 to 24h"},
           {"--response_timeout=-1s", "--response_timeout: -1s, wanted from 0 to 24h"},
           {"--max_connection_share=0", "--max_connection_share: 0, wanted above 0, at most 1"},
           {"--max_connection_share=nan", "--max_connection_share: nan, wanted above 0"},
           {"--max_peer_share=1.01", "--max_peer_share: 1.01, wanted above 0, at most 1"},
           {"--max_inflight_requests=0", "--max_inflight_requests"},
           {"--max_connection_calls=-1", "--max_connection_calls: -1, wanted from 1"},
           {"--max_metadata_bytes=1", "--max_metadata_bytes: 1, wanted from 1024 to 1048576"},
           {"--max_transport_bytes=1000000", "0, or at least twice --max_request_bytes"},
           {"--max_queue_delay=-1ms", "--max_queue_delay: -1ms, wanted from 0"},
           {"--max_queue_delay=inf", "--max_queue_delay: inf"},
           {"--priority_aging=2h", "--priority_aging: 2h, wanted from 0 to 1h"},
           {"--cpu_lanes=-1", "--cpu_lanes: -1, wanted from 0 to 1024"},
           {"--device_spin_wait=2s", "--device_spin_wait: 2s, wanted from 0 to 1s"},
           {"--pool_bytes=-1", "--pool_bytes: -1, wanted at least 0"},
           {"--lame_duck=2h", "--lame_duck: 2h, wanted from 0 to 1h"},
           {"--log_level=loud", "--log_level: \"loud\", wanted trace"},
           {"--model_repository=", "--model_repository: empty"},
           {"--model_repository=a,,b",
            "--model_repository: \"a,,b\", wanted folders separated by commas, none of them empty"},
           {"--model_repository=a,b,a", "--model_repository: \"a,b,a\", wanted each folder once"},
           {"--model_poll_interval=9ms",
            "--model_poll_interval: 9ms, wanted 0, or from 10ms to 24h"},
           {"--model_poll_interval=-1s", "--model_poll_interval: -1s, wanted 0, or"},
       }) {
    EXPECT_THAT(ErrorOf({wrong.flag}), HasSubstr(wrong.message));
  }
}

// The names of all flags, as the help has them.
std::vector<std::string> AllFlags() {
  std::vector<std::string> names;
  for (const absl::string_view line : absl::StrSplit(FlagHelp(), '\n')) {
    if (!absl::StartsWith(line, "  --")) continue;
    names.emplace_back(line.substr(4, line.find_first_of("= ", 4) - 4));
  }
  return names;
}

bool IsBool(const std::string& name) {
  return name == "insecure" || name == "metrics_tls" || name == "shared_memory_cuda" ||
         name == "allow_no_models";
}

bool IsTlsFile(const std::string& name) {
  return name == "tls_cert" || name == "tls_key" || name == "tls_client_ca";
}

TEST(ParseCommandLineTest, EveryFlagRefusesWhatItCannotBeAndNamesItself) {
  const std::vector<std::string> names = AllFlags();
  EXPECT_EQ(names.size(), 77U);
  EXPECT_EQ(std::set<std::string>(names.begin(), names.end()).size(), names.size());
  for (const std::string& name : names) {
    // The device's name is read elsewhere, and any text but none may be a folder. Files of TLS are
    // wrong only beside each other.
    if (IsTlsFile(name)) continue;
    if (name == "shared_memory_prefix") continue;  // The beginning of any name.
    const bool is_text = name == "device" || name == "model_repository";
    // Opened elsewhere.
    const bool is_file = name == "policy_file" || name == "tokens_file" || name == "log_file";
    for (const char* wrong : {"", "wrong", "-7", "1e300", "99999999999999999999", "-inf"}) {
      if (name == "device" || is_file || (is_text && wrong[0] != '\0')) continue;
      const bool may_be_none = name == "admin_listen" || name == "shared_memory_listen" ||
                               name == "http_listen" || name == "http_allow_origin";
      if (may_be_none && wrong[0] == '\0') continue;
      EXPECT_THAT(ErrorOf({("--" + name + "=" + wrong).c_str()}), HasSubstr("--" + name + ": "))
          << wrong;
    }
    if (IsBool(name)) {
      EXPECT_EQ(ErrorOf({("--" + name).c_str()}), "");
    } else {
      EXPECT_THAT(ErrorOf({("--" + name).c_str()}), HasSubstr("--" + name + ": no value"));
    }
  }
}

TEST(TlsFlagsTest, GoTogether) {
  const std::vector<const char*> pair = {"--tls_cert=c", "--tls_key=k"};
  const auto error_of = [&](std::vector<const char*> more) {
    more.insert(more.begin(), pair.begin(), pair.end());
    return ErrorOf(more);
  };
  EXPECT_EQ(error_of({}), "");
  EXPECT_EQ(error_of({"--tls_client_ca=a", "--tls_client_auth=allow", "--tls_min_version=1.3"}),
            "");
  EXPECT_EQ(error_of({"--listen=0.0.0.0:1", "--metrics_listen=[::]:2"}), "");
  EXPECT_THAT(ErrorOf({"--tls_cert=c"}), HasSubstr("--tls_key: empty, wanted the key of"));
  EXPECT_THAT(ErrorOf({"--tls_key=k"}), HasSubstr("--tls_cert: empty, wanted the certificate of"));
  EXPECT_THAT(ErrorOf({"--tls_client_ca=a"}), HasSubstr("--tls_cert: empty, wanted the server's"));
  EXPECT_THAT(ErrorOf({"--tls_client_auth=require"}), HasSubstr("--tls_cert: empty"));
  EXPECT_THAT(error_of({"--tls_client_auth=require"}),
              HasSubstr("--tls_client_ca: empty, wanted a file for --tls_client_auth=require"));
  EXPECT_THAT(error_of({"--tls_client_auth=maybe"}), HasSubstr("none, allow or require"));
  EXPECT_THAT(error_of({"--tls_min_version=1.1"}),
              HasSubstr("--tls_min_version: \"1.1\", wanted 1.2 or 1.3"));
}

TEST(InsecureFlagTest, PlaintextBeyondThisMachineNeedsIt) {
  for (const char* flag : {"--listen", "--http_listen", "--metrics_listen"}) {
    for (const char* far : {"0.0.0.0:1", "[::]:1", "192.0.2.1:1", "normd.test:1", "128.0.0.1:1",
                            "[::2]:1", "[::ffff:10.0.0.1]:1", "localhost.test:1"}) {
      const std::string listen = absl::StrCat(flag, "=", far);
      const std::string error = ErrorOf({listen.c_str()});
      EXPECT_THAT(error, AllOf(HasSubstr(absl::StrCat(flag, ": \"", far)), HasSubstr("--insecure")))
          << far;
      EXPECT_EQ(error.find('\n'), std::string::npos);
      EXPECT_EQ(ErrorOf({listen.c_str(), "--insecure"}), "") << far;
      EXPECT_NE(ErrorOf({listen.c_str(), "--insecure=false"}), "") << far;
      EXPECT_EQ(ErrorOf({listen.c_str(), "--tls_cert=c", "--tls_key=k"}), "") << far;
    }
    for (const char* near : {"127.0.0.1:1", "127.255.0.9:1", "[::1]:1", "localhost:1",
                             "LocalHost:1", "[::ffff:127.0.0.1]:1"}) {
      EXPECT_EQ(ErrorOf({absl::StrCat(flag, "=", near).c_str()}), "") << near;
    }
  }
  EXPECT_THAT(ErrorOf({"--listen=unix:///run/n,127.0.0.1:1,192.0.2.1:2"}),
              HasSubstr("--listen: \"192.0.2.1:2\""));
  EXPECT_EQ(ErrorOf({"--listen=unix:///run/n,127.0.0.1:1"}), "");
}

// Every combination of where the four ports listen and which of them speak TLS.
TEST(InsecureFlagTest, EveryOpenPortIsNamedWhicheverTheyAre) {
  constexpr const char* kFlags[] = {"listen", "http_listen", "admin_listen", "metrics_listen"};
  for (const bool tls : {false, true}) {
    for (const bool metrics_tls : {false, true}) {
      for (int far = 0; far < 16; ++far) {
        std::vector<std::string> args;
        std::vector<std::string> open;
        for (int port = 0; port < 4; ++port) {
          const bool is_far = (far >> port & 1) != 0;
          const std::string address = absl::StrCat(is_far ? "192.0.2.1:" : "127.0.0.1:", port + 1);
          args.push_back(absl::StrCat("--", kFlags[port], "=", address));
          const bool has_tls = tls && (port < 3 || metrics_tls);
          if (is_far && !has_tls) open.push_back(absl::StrCat("--", kFlags[port], ": \"", address));
        }
        if (tls) args.insert(args.end(), {"--tls_cert=c", "--tls_key=k"});
        if (!metrics_tls) args.push_back("--metrics_tls=false");
        const std::string what = absl::StrJoin(args, " ");
        std::vector<const char*> given;
        for (const std::string& arg : args) given.push_back(arg.c_str());

        const std::string error = ErrorOf(given);
        EXPECT_EQ(error.empty(), open.empty()) << what << ": " << error;
        EXPECT_EQ(error.find('\n'), std::string::npos) << error;
        for (const std::string& name : open) EXPECT_THAT(error, HasSubstr(name)) << what;
        given.push_back("--insecure");
        const auto line = Parse(given);
        ASSERT_TRUE(line.ok()) << what << ": " << line.status();
        std::vector<std::string> told;
        for (const OpenListener& one : ListenersInTheClear(line->config)) {
          told.push_back(absl::StrCat("--", one.flag, ": \"", one.address));
        }
        EXPECT_EQ(told, open) << what;
      }
    }
  }
}

TEST(FlagHelpTest, EveryFlagHasAUnitAndASentence) {
  const std::string help = FlagHelp();
  for (const std::string& name : AllFlags()) {
    const std::size_t at = help.find("  --" + name + (IsBool(name) ? " " : "="));
    const std::string text = help.substr(at, help.find("\n  --", at + 1) - at);
    if (IsBool(name) || IsTlsFile(name)) {
      EXPECT_THAT(text, HasSubstr(".")) << name;
      continue;
    }
    EXPECT_THAT(text, ::testing::ContainsRegex("--[a-z_]+=[A-Z:]+[ \n]+")) << name;
    EXPECT_THAT(text, HasSubstr(".")) << name;
    // Nothing is the default of these.
    if (name == "policy_file" || name == "tokens_file" || name == "log_file") continue;
    if (name == "shared_memory_prefix" || name == "shared_memory_listen" ||
        name == "admin_listen" || name == "http_allow_origin") {
      continue;
    }
    EXPECT_THAT(text, HasSubstr(" (")) << name << " has no default";
  }
}

TEST(ParseCommandLineTest, TakesSeveralFoldersOfModels) {
  const auto line = Parse({"--model_repository=/models", "--model_repository=/a,/b/c,d"});
  ASSERT_TRUE(line.ok()) << line.status();
  EXPECT_THAT(ModelFolders(line->config), ::testing::ElementsAre("/a", "/b/c", "d"));
}

AdminPlace PlaceOf(const std::vector<const char*>& args) {
  const auto line = Parse(args);
  EXPECT_TRUE(line.ok()) << line.status();
  return DecideAdminPlace(line->config);
}

TEST(WideAddressesTest, AreThoseOfBothProtocolsThatAreNoLoopback) {
  ServerConfig config;
  config.listen = "127.0.0.1:1,unix:///run/n";
  config.http_listen = "127.0.0.1:2";
  EXPECT_EQ(WideAddresses(config), "");
  config.http_listen = "0.0.0.0:2,127.0.0.1:2";
  EXPECT_EQ(WideAddresses(config), "0.0.0.0:2");
  config.listen = "[::]:1";
  EXPECT_EQ(WideAddresses(config), "[::]:1,0.0.0.0:2");
}

// The default: a client that can reach the server from elsewhere can make no admin call that was
// not allowed.
TEST(AdminPlaceTest, IsEverywhereOnlyWhereAPolicyOrTheAddressBoundsWhoCalls) {
  for (const char* local : {"--listen=127.0.0.1:1", "--listen=127.8.9.1:1", "--listen=[::1]:1",
                            "--listen=localhost:1", "--listen=unix:///run/n,127.0.0.1:1"}) {
    EXPECT_EQ(PlaceOf({local}), AdminPlace::kEverywhere) << local;
    EXPECT_EQ(PlaceOf({local, "--admin=off"}), AdminPlace::kNowhere) << local;
  }
  for (const char* wide :
       {"--listen=0.0.0.0:1", "--listen=[::]:1", "--listen=192.0.2.1:1", "--listen=example.org:1",
        "--listen=127.0.0.1.example.org:1", "--listen=128.0.0.1:1",
        "--listen=unix:///run/n,0.0.0.0:1", "--listen=192.0.2.1:1,127.0.0.1:1"}) {
    ServerConfig config = Parse({})->config;
    config.listen = std::string(wide).substr(9);
    EXPECT_EQ(DecideAdminPlace(config), AdminPlace::kNowhere) << wide;
    config.policy_file = "p";
    EXPECT_EQ(DecideAdminPlace(config), AdminPlace::kEverywhere) << wide;
    config.admin_listen = "127.0.0.1:0";
    EXPECT_EQ(DecideAdminPlace(config), AdminPlace::kAdminListener) << wide;
    config.admin = "on";
    EXPECT_EQ(DecideAdminPlace(config), AdminPlace::kAdminListener) << wide;
    config.admin_listen = config.policy_file = "";
    EXPECT_EQ(DecideAdminPlace(config), AdminPlace::kEverywhere) << wide;
    config.admin = "off";
    EXPECT_EQ(DecideAdminPlace(config), AdminPlace::kNowhere) << wide;
  }
}

TEST(ParseCommandLineTest, TokensNeedAPolicyAndAnAdminAddressAdminCalls) {
  EXPECT_THAT(ErrorOf({"--tokens_file=t"}), HasSubstr("--policy_file: empty, wanted the policy"));
  EXPECT_THAT(ErrorOf({"--admin=off", "--admin_listen=127.0.0.1:1"}),
              HasSubstr("--admin_listen: \"127.0.0.1:1\", wanted none with --admin=off"));
  EXPECT_THAT(ErrorOf({"--admin=maybe"}), HasSubstr("wanted auto, on or off"));
  EXPECT_THAT(ErrorOf({"--admin_listen=8003"}), HasSubstr("wanted host:port"));
}

TEST(ParseCommandLineTest, SharedMemoryAndItsSocketGoTogether) {
  EXPECT_EQ(ErrorOf({"--shared_memory=named", "--shared_memory_prefix=normd_"}), "");
  EXPECT_EQ(ErrorOf({"--shared_memory=fd", "--shared_memory_listen=unix:///run/regions"}), "");
  EXPECT_EQ(ErrorOf({"--shared_memory=named", "--shared_memory_listen=unix:/run/regions"}), "");
  EXPECT_THAT(ErrorOf({"--shared_memory=fd"}), HasSubstr("--shared_memory_listen: empty, wanted"));
  EXPECT_THAT(ErrorOf({"--shared_memory_listen=unix:///run/regions"}),
              HasSubstr("--shared_memory: off, wanted fd or named"));
  EXPECT_THAT(ErrorOf({"--shared_memory=all"}), HasSubstr("wanted off, fd or named"));
  EXPECT_THAT(ErrorOf({"--shared_memory=fd", "--shared_memory_listen=unix:///run/"}),
              HasSubstr("wanted unix:///path"));
  EXPECT_THAT(ErrorOf({"--shared_memory=named", "--shared_memory_prefix=a/b"}),
              HasSubstr("without a slash"));
  for (const char* flag : {"--max_locked_shared_bytes", "--max_identity_locked_shared_bytes"}) {
    EXPECT_EQ(ErrorOf({absl::StrCat(flag, "=0").c_str()}), "");
    EXPECT_THAT(ErrorOf({absl::StrCat(flag, "=-1").c_str()}), HasSubstr(flag));
  }
}

ServerConfig Defaults() { return ParseCommandLine({})->config; }

TEST(FitToMemoryTest, ChangesNothingWhereAllFits) {
  ServerConfig config = Defaults();
  EXPECT_EQ(FitToMemory(config, std::int64_t{16} << 30, true), "");
  EXPECT_EQ(config.max_transport_bytes, Defaults().max_transport_bytes);
  EXPECT_EQ(config.max_request_bytes, Defaults().max_request_bytes);
}

TEST(FitToMemoryTest, StaysValidAndWithinEveryLimit) {
  for (std::int64_t left = 1; left < std::int64_t{1} << 45; left = left * 3 / 2 + 1) {
    for (const std::int64_t transport : {std::int64_t{0}, Defaults().max_transport_bytes}) {
      ServerConfig config = Defaults();
      config.max_transport_bytes = transport;
      config.shared_memory = "named";
      FitToMemory(config, left, true);
      EXPECT_TRUE(Validate(config).ok()) << left << " " << Validate(config);
      EXPECT_GT(config.max_transport_bytes, 0);
      EXPECT_LE(config.max_request_bytes, Defaults().max_request_bytes);
      if (left > std::int64_t{64} << 20) {
        EXPECT_LE(config.max_transport_bytes + config.max_inflight_bytes / 2 + config.pool_bytes +
                      config.max_locked_shared_bytes,
                  left);
      }
    }
  }
}

TEST(FitToMemoryTest, LockedPagesFitTooWhereThereIsSharedMemory) {
  for (const std::int64_t left : {std::int64_t{1} << 20, std::int64_t{1} << 32}) {
    ServerConfig config = Defaults();
    config.shared_memory = "named";
    const std::string text = FitToMemory(config, left, true);
    EXPECT_THAT(text, HasSubstr("--max_locked_shared_bytes 8589934592 -> "));
    EXPECT_THAT(text, HasSubstr("--max_identity_locked_shared_bytes 4294967296 -> "));
    EXPECT_LE(config.max_locked_shared_bytes, std::max(left / 8, std::int64_t{2} << 20));
    EXPECT_EQ(config.max_identity_locked_shared_bytes, config.max_locked_shared_bytes);
  }
  ServerConfig little = Defaults();
  little.shared_memory = "named";
  little.max_locked_shared_bytes = 0;
  little.max_identity_locked_shared_bytes = 0;
  EXPECT_THAT(FitToMemory(little, std::int64_t{1} << 32, true), Not(HasSubstr("locked")));
  EXPECT_EQ(little.max_locked_shared_bytes, 0) << "nothing is raised";
  ServerConfig off = Defaults();
  FitToMemory(off, std::int64_t{1} << 32, true);
  EXPECT_EQ(off.max_locked_shared_bytes, Defaults().max_locked_shared_bytes);
}

TEST(FitToMemoryTest, AServerWithoutDevicesKeepsLimitsThatItDoesNotUse) {
  ServerConfig config = Defaults();
  config.shared_memory = "named";
  EXPECT_THAT(FitToMemory(config, std::int64_t{1} << 32, false), Not(HasSubstr("locked")));
  EXPECT_EQ(config.max_locked_shared_bytes, Defaults().max_locked_shared_bytes);
}

TEST(FitToMemoryTest, SaysWhatItLowers) {
  ServerConfig config = Defaults();
  const std::string text = FitToMemory(config, std::int64_t{1} << 30, true);
  EXPECT_THAT(text, HasSubstr("--max_transport_bytes 1073741824 -> 268435456"));
  EXPECT_THAT(text, HasSubstr("--max_request_bytes 268435456 -> "));
}

TEST(FitToMappingsTest, RegionsLeaveHalfOfThem) {
  ServerConfig config = Defaults();
  config.shared_memory = "named";
  EXPECT_EQ(FitToMappings(config, 65000), "");
  config.max_shared_regions = 65536;
  EXPECT_EQ(FitToMappings(config, 65000), "--max_shared_regions 65536 -> 32500");
  EXPECT_EQ(config.max_shared_regions, 32500);
  config.max_identity_shared_regions = 65536;
  EXPECT_EQ(FitToMappings(config, 65000), "--max_identity_shared_regions 65536 -> 32500");
  config.shared_memory_cuda = true;
  FitToMappings(config, 65000);
  EXPECT_EQ(config.max_shared_regions, 16250) << "more for each of a device";
  EXPECT_TRUE(Validate(config).ok()) << Validate(config);
}

TEST(FitToMappingsTest, LeavesOneRegionAtLeastAndChangesNothingWithoutSharedMemory) {
  ServerConfig config = Defaults();
  EXPECT_EQ(FitToMappings(config, 0), "");
  EXPECT_EQ(config.max_shared_regions, Defaults().max_shared_regions);
  config.shared_memory = "named";
  FitToMappings(config, 0);
  EXPECT_EQ(config.max_shared_regions, 1);
  EXPECT_EQ(config.max_identity_shared_regions, 1);
  EXPECT_TRUE(Validate(config).ok()) << Validate(config);
}

}  // namespace
}  // namespace normd
