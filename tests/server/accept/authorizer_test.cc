#include "server/accept/authorizer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <chrono>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "nlohmann/json.hpp"
#include "server/accept/method_rights.h"
#include "tests/server/identity/identity_files.h"
#include "tests/support/fake_clock.h"
#include "tests/support/metric_value.h"

namespace normd::testing {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

constexpr std::array<Right, kRightCount> kRights = {Right::kHealth, Right::kDescribe, Right::kInfer,
                                                    Right::kObserve, Right::kAdmin};

constexpr char kPolicy[] = R"(
role { name: "health" health: true }
role { name: "user" infer: "mine*" }
role { name: "viewer" observe: true }
role { name: "operator" admin: true }
identity { name: "h" role: "health" token: "h" }
identity { name: "u" role: "user" token: "u" }
identity { name: "v" role: "viewer" token: "v" }
identity { name: "o" role: "operator" token: "o" }
identity { name: "slow" role: "user" role: "operator" token: "s" limits { requests_per_second: 4 burst: 2 } }
)";
constexpr char kAnonymousUser[] = "identity { name: \"any\" role: \"user\" anonymous: true }\n";

class AuthorizerTest : public ::testing::Test {
 protected:
  AuthorizerTest() {
    WriteTokens(folder_, "huvos");
    UsePolicy(kPolicy);
  }

  void UsePolicy(const std::string& policy) {
    folder_.Write("policy", policy);
    auto access =
        Access::Create({folder_.File("policy"), folder_.File("tokens")}, callers_, metrics_);
    ASSERT_TRUE(access.ok()) << access.status();
    access_ = *std::move(access);
  }
  Authorizer MakeAuthorizer(AdminCalls admin = AdminCalls::kAll) {
    return Authorizer({admin, access_.get(), &audit_}, clock_);
  }
  // '-': brings no token.
  static Recognised Who(const Authorizer& authorizer, char letter) {
    PeerCredentials credentials;
    const std::string bearer = BearerOf(letter);
    if (letter != '-') credentials.authorization = bearer;
    return authorizer.Recognise(credentials);
  }
  absl::Status Check(const Authorizer& authorizer, char letter, Right right,
                     bool by_admin_listener = false) {
    const Recognised who = Who(authorizer, letter);
    return authorizer.Check({who, by_admin_listener, "Method", "ipv4:192.0.2.1:1", "id"}, right);
  }
  absl::Status CheckModel(const Authorizer& authorizer, char letter, Right right,
                          const std::string& model) {
    const Recognised who = Who(authorizer, letter);
    return authorizer.CheckModel({who, false, "Method", "ipv4:192.0.2.1:1", "id"}, right, model);
  }
  nlohmann::json LastLine() const { return nlohmann::json::parse(lines_.back()); }

  SecretFolder folder_;
  FakeClock clock_;
  Callers callers_;
  Metrics metrics_;
  std::vector<std::string> lines_;
  AuditLog audit_{clock_, [this](const std::string& line) { lines_.push_back(line); }};
  std::unique_ptr<Access> access_;
};

TEST_F(AuthorizerTest, WithoutAPolicyEverybodyMayDoAllButWhatAdminExcludes) {
  for (const AdminCalls admin :
       {AdminCalls::kAll, AdminCalls::kOfAdminListener, AdminCalls::kNone}) {
    const Authorizer authorizer({admin, nullptr, nullptr}, clock_);
    for (const bool by_admin_listener : {false, true}) {
      for (const Right right : kRights) {
        const bool taken = right != Right::kAdmin || admin == AdminCalls::kAll ||
                           (admin == AdminCalls::kOfAdminListener && by_admin_listener);
        EXPECT_EQ(Check(authorizer, '-', right, by_admin_listener).code(),
                  taken ? absl::StatusCode::kOk : absl::StatusCode::kPermissionDenied);
      }
      EXPECT_TRUE(CheckModel(authorizer, 'x', Right::kInfer, "anything").ok());
    }
  }
}

TEST_F(AuthorizerTest, EachIdentityMayDoWhatItsRolesSay) {
  const Authorizer authorizer = MakeAuthorizer();
  const std::vector<std::pair<char, std::string>> allowed = {{'h', "health"},
                                                             {'u', "health describe infer"},
                                                             {'v', "health describe observe"},
                                                             {'o', "health admin"},
                                                             {'x', ""},
                                                             {'-', ""}};
  for (const auto& [letter, rights] : allowed) {
    for (const Right right : kRights) {
      const absl::Status status = Check(authorizer, letter, right);
      const bool nobody = rights.empty();
      const auto refused =
          nobody ? absl::StatusCode::kUnauthenticated : absl::StatusCode::kPermissionDenied;
      EXPECT_EQ(status.code(),
                absl::StrContains(rights, Name(right)) ? absl::StatusCode::kOk : refused)
          << letter << " " << Name(right);
    }
  }
}

TEST_F(AuthorizerTest, AnAnonymousIdentityWithoutTheRightIsToldToShowItself) {
  UsePolicy(absl::StrCat(kPolicy, kAnonymousUser));
  const Authorizer authorizer = MakeAuthorizer();
  EXPECT_TRUE(Check(authorizer, '-', Right::kInfer).ok());
  EXPECT_EQ(Check(authorizer, '-', Right::kAdmin).code(), absl::StatusCode::kUnauthenticated);
  EXPECT_EQ(CheckModel(authorizer, '-', Right::kInfer, "theirs").code(),
            absl::StatusCode::kUnauthenticated);
}

TEST_F(AuthorizerTest, OfModelsTheNameAloneDecides) {
  const Authorizer authorizer = MakeAuthorizer();
  for (const Right right : {Right::kInfer, Right::kDescribe}) {
    EXPECT_TRUE(CheckModel(authorizer, 'u', right, "mine").ok());
    EXPECT_TRUE(CheckModel(authorizer, 'u', right, "mine_too").ok());
    for (const std::string& model :
         {std::string("min"), std::string("theirs"), std::string(), std::string("../mine"),
          std::string("mi\0ne", 5), std::string(1 << 20, 'x')}) {
      const absl::Status status = CheckModel(authorizer, 'u', right, model);
      EXPECT_EQ(status.code(), absl::StatusCode::kPermissionDenied) << model.substr(0, 10);
      EXPECT_LT(status.message().size(), 300U);
    }
  }
  EXPECT_TRUE(CheckModel(authorizer, 'v', Right::kDescribe, "theirs").ok());
  EXPECT_FALSE(CheckModel(authorizer, 'v', Right::kInfer, "mine").ok());
}

TEST_F(AuthorizerTest, AdminCallsNeedTheRightAndTheListener) {
  for (const AdminCalls admin :
       {AdminCalls::kAll, AdminCalls::kOfAdminListener, AdminCalls::kNone}) {
    const Authorizer authorizer = MakeAuthorizer(admin);
    for (const bool by_admin_listener : {false, true}) {
      const bool taken =
          admin == AdminCalls::kAll || (admin == AdminCalls::kOfAdminListener && by_admin_listener);
      EXPECT_EQ(Check(authorizer, 'o', Right::kAdmin, by_admin_listener).ok(), taken);
      EXPECT_FALSE(Check(authorizer, 'u', Right::kAdmin, by_admin_listener).ok());
      EXPECT_TRUE(Check(authorizer, 'u', Right::kInfer, by_admin_listener).ok());
    }
  }
}

TEST_F(AuthorizerTest, TheRateBoundsEveryCallButHealthAndSaysWhenToRetry) {
  const Authorizer authorizer = MakeAuthorizer();
  EXPECT_TRUE(Check(authorizer, 's', Right::kInfer).ok());
  EXPECT_TRUE(Check(authorizer, 's', Right::kAdmin).ok());
  for (const Right right : {Right::kInfer, Right::kDescribe, Right::kAdmin}) {
    const absl::Status status = Check(authorizer, 's', right);
    EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
    EXPECT_THAT(std::string(status.message()), HasSubstr("may have 4, retry in 250 ms"));
    EXPECT_EQ(RetryAfter(status, std::chrono::milliseconds(100)), std::chrono::milliseconds(250));
    EXPECT_EQ(RetryAfter(status, std::chrono::seconds(1)), std::chrono::seconds(1));
  }
  EXPECT_TRUE(Check(authorizer, 's', Right::kHealth).ok());
  EXPECT_FALSE(Check(authorizer, 's', Right::kObserve).ok()) << "no right is no right";
  EXPECT_TRUE(Check(authorizer, 'u', Right::kInfer).ok()) << "others have their own";
  clock_.Advance(std::chrono::milliseconds(250));
  EXPECT_TRUE(Check(authorizer, 's', Right::kInfer).ok());
}

TEST_F(AuthorizerTest, AnotherStatusHasNoTimeOfItsOwn) {
  EXPECT_EQ(RetryAfter(absl::ResourceExhaustedError("x"), std::chrono::milliseconds(7)),
            std::chrono::milliseconds(7));
  EXPECT_EQ(RetryAfter(absl::OkStatus(), std::chrono::milliseconds(7)),
            std::chrono::milliseconds(7));
}

TEST_F(AuthorizerTest, EveryDenialHasItsLine) {
  const Authorizer authorizer = MakeAuthorizer();
  ASSERT_FALSE(Check(authorizer, 'u', Right::kAdmin).ok());
  const nlohmann::json line = LastLine();
  EXPECT_EQ(line["audit"], "denied");
  EXPECT_EQ(line["identity"], "u");
  EXPECT_EQ(line["right"], "admin");
  EXPECT_EQ(line["method"], "Method");
  EXPECT_EQ(line["peer"], "ipv4:192.0.2.1:1");
  EXPECT_EQ(line["request_id"], "id");
  EXPECT_EQ(line["code"], "PERMISSION_DENIED");
  ASSERT_FALSE(Check(authorizer, '-', Right::kInfer).ok());
  EXPECT_EQ(LastLine()["identity"], "");
  EXPECT_EQ(LastLine()["code"], "UNAUTHENTICATED");
  ASSERT_FALSE(CheckModel(authorizer, 'u', Right::kInfer, "a\n\"\xff").ok());
  EXPECT_EQ(LastLine()["model"], "a\\n\"\\xff");
  for (const std::string& text : lines_) EXPECT_FALSE(absl::StrContains(text, '\n')) << text;
  const std::size_t denials = lines_.size();
  EXPECT_TRUE(Check(authorizer, 'u', Right::kInfer).ok());
  EXPECT_EQ(lines_.size(), denials) << "what is allowed has no line of a denial";
}

TEST_F(AuthorizerTest, AFloodOfDenialsCostsTheLogLittleAndHidesNoAdminCall) {
  const Authorizer authorizer = MakeAuthorizer();
  for (int i = 0; i < 5000; ++i) ASSERT_FALSE(Check(authorizer, 'x', Right::kInfer).ok());
  EXPECT_THAT(lines_, SizeIs(100));
  const Recognised operator_call = Who(authorizer, 'o');
  authorizer.Record({operator_call, false, "LoadModel", "", ""}, Right::kAdmin, "m",
                    {absl::StatusCode::kOk, 0});
  EXPECT_EQ(LastLine()["audit"], "admin");
  EXPECT_EQ(LastLine().count("left_out_before"), 0U);
  clock_.Advance(std::chrono::milliseconds(100));
  ASSERT_FALSE(Check(authorizer, 'x', Right::kInfer).ok());
  EXPECT_EQ(LastLine()["left_out_before"], 4900);
  EXPECT_THAT(lines_, SizeIs(102));
  clock_.Advance(std::chrono::seconds(1));
  for (int i = 0; i < 5000; ++i) ASSERT_FALSE(Check(authorizer, 'x', Right::kInfer).ok());
  EXPECT_THAT(lines_, SizeIs(112));
}

TEST_F(AuthorizerTest, AnAdminCallHasOneLineWhateverBecomesOfIt) {
  const Authorizer authorizer = MakeAuthorizer();
  const Recognised who = Who(authorizer, 'o');
  const AskedCall call{who, false, "LoadModel", "ipv4:192.0.2.1:1", ""};
  for (const absl::StatusCode code :
       {absl::StatusCode::kOk, absl::StatusCode::kNotFound, absl::StatusCode::kCancelled}) {
    lines_.clear();
    authorizer.Record(call, Right::kAdmin, "m", {code, 0});
    ASSERT_THAT(lines_, SizeIs(1));
    EXPECT_EQ(LastLine()["audit"], "admin");
    EXPECT_EQ(LastLine()["model"], "m");
    EXPECT_EQ(LastLine()["code"], absl::StatusCodeToString(code));
  }
  lines_.clear();
  authorizer.Record(call, Right::kAdmin, "m", {absl::StatusCode::kPermissionDenied, 0});
  authorizer.Record(call, Right::kInfer, "m", {absl::StatusCode::kOk, 0});
  EXPECT_THAT(lines_, IsEmpty()) << "a denial has had its line, and other calls have none";
}

TEST_F(AuthorizerTest, CallsCountWithTheirIdentityAndNobodysTogether) {
  const Authorizer authorizer = MakeAuthorizer();
  const Recognised user = Who(authorizer, 'u');
  const Recognised nobody = Who(authorizer, '-');
  authorizer.Record({user, false, "", "", ""}, Right::kInfer, "", {absl::StatusCode::kOk, 5});
  authorizer.Record({user, false, "", "", ""}, Right::kInfer, "", {absl::StatusCode::kNotFound, 0});
  authorizer.Record({nobody, false, "", "", ""}, Right::kInfer, "",
                    {absl::StatusCode::kUnauthenticated, 0});
  const auto calls = [&](std::initializer_list<absl::string_view> labels) {
    return MetricValue(metrics_, families::kIdentityCalls, labels);
  };
  EXPECT_EQ(calls({"u", "ok"}), 1);
  EXPECT_EQ(calls({"u", "failed"}), 1);
  EXPECT_EQ(calls({"", "denied"}), 1);
  EXPECT_EQ(calls({"v"}), 0);
}

// A method that changes the server's state, under whichever protocol, is none of lesser rights.
TEST(MethodRightsTest, LoadsAndUnloadsAreAdminCallsAndTensorsAreInference) {
  for (std::size_t i = 0; i < kMethodCount; ++i) {
    const auto method = static_cast<Method>(i);
    const absl::string_view name = MethodName(method);
    const bool changes = absl::StrContains(name, "Load") || absl::StrContains(name, "Unload") ||
                         (absl::StrContains(name, "SharedMemory") && name != "ListSharedMemory");
    const bool infers = absl::StartsWith(name, "Normalize") || absl::StrContains(name, "Infer");
    EXPECT_EQ(RightOf(method) == Right::kAdmin, changes) << name;
    EXPECT_EQ(RightOf(method) == Right::kInfer, infers) << name;
  }
}

}  // namespace
}  // namespace normd::testing
