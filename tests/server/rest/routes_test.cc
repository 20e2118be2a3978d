#include "server/rest/routes.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

namespace normd {
namespace {

using ::testing::HasSubstr;

int StatusOf(absl::string_view verb, absl::string_view target, Route& route) {
  return FindRoute(verb, target, route).status;
}
int StatusOf(absl::string_view verb, absl::string_view target) {
  Route route;
  return StatusOf(verb, target, route);
}

TEST(RoutesTest, EachPathHasItsMethodAndNames) {
  struct Case {
    const char* verb;
    const char* target;
    RestMethod method;
    const char* model = "";
    const char* version = "";
    const char* region = "";
  };
  for (const Case& one : {
           Case{"GET", "/v2", RestMethod::kServerMetadata},
           Case{"GET", "/v2?query=/v2/health", RestMethod::kServerMetadata},
           Case{"HEAD", "/v2/health/live", RestMethod::kServerLive},
           Case{"GET", "http://proxy:80/v2/health/ready", RestMethod::kServerReady},
           Case{"GET", "/v2/models/stats", RestMethod::kModelStatistics},
           Case{"GET", "/v2/models/m", RestMethod::kModelMetadata, "m"},
           Case{"GET", "/v2/models/a%2fb%20c", RestMethod::kModelMetadata, "a/b c"},
           Case{"GET", "/v2/models/m/versions/7", RestMethod::kModelMetadata, "m", "7"},
           Case{"GET", "/v2/models/m/versions/7/ready", RestMethod::kModelReady, "m", "7"},
           Case{"GET", "/v2/models/versions/versions/versions/config", RestMethod::kModelConfig,
                "versions", "versions"},
           Case{"GET", "/v2/models/m/stats", RestMethod::kModelStatistics, "m"},
           Case{"POST", "/v2/models/m/infer", RestMethod::kInfer, "m"},
           Case{"POST", "/v2/models/m/versions/3/infer", RestMethod::kInfer, "m", "3"},
           Case{"POST", "/v2/repository/index", RestMethod::kRepositoryIndex},
           Case{"POST", "/v2/repository/models/m/load", RestMethod::kLoad, "m"},
           Case{"POST", "/v2/repository/models/m/unload", RestMethod::kUnload, "m"},
           Case{"GET", "/v2/systemsharedmemory/status", RestMethod::kSystemStatus},
           Case{"GET", "/v2/systemsharedmemory/region/r/status", RestMethod::kSystemStatus, "", "",
                "r"},
           Case{"POST", "/v2/systemsharedmemory/region/r/register", RestMethod::kSystemRegister, "",
                "", "r"},
           Case{"POST", "/v2/systemsharedmemory/unregister", RestMethod::kSystemUnregister},
           Case{"POST", "/v2/cudasharedmemory/region/r/unregister", RestMethod::kCudaUnregister, "",
                "", "r"},
           Case{"GET", "/v2/trace/setting", RestMethod::kTraceSetting},
           Case{"POST", "/v2/models/m/trace/setting", RestMethod::kTraceSetting, "m"},
           Case{"POST", "/v2/logging", RestMethod::kLogSettings},
       }) {
    Route route;
    ASSERT_EQ(StatusOf(one.verb, one.target, route), 0) << one.verb << " " << one.target;
    EXPECT_EQ(route.method, one.method) << one.target;
    EXPECT_EQ(route.model, one.model) << one.target;
    EXPECT_EQ(route.version, one.version) << one.target;
    EXPECT_EQ(route.region, one.region) << one.target;
  }
}

TEST(RoutesTest, OtherPathsDoNotExist) {
  for (const char* target : {"",
                             "/",
                             "/v2/",
                             "//v2",
                             "/v2//health/live",
                             "/v3",
                             "/v2/health",
                             "/v2/models",
                             "/v2/models/",
                             "/v2/models//ready",
                             "/v2/models/m/versions",
                             "/v2/models/m/versions/7/8",
                             "/v2/models/m/versions//stats",
                             "/v2/models/m/versions//infer",
                             "/v2/models/m/x",
                             "/v2/models/m/../../health/live",
                             "/V2",
                             "*",
                             "/v2/repository/models//load",
                             "/v2/repository/models/m/versions/1/load",
                             "/v2/systemsharedmemory/region//register",
                             "/v2/systemsharedmemory/region/a/b/status",
                             "http://proxy"}) {
    EXPECT_EQ(StatusOf("GET", target), 404) << target;
    EXPECT_EQ(StatusOf("POST", target), 404) << target;
  }
}

TEST(RoutesTest, AnotherVerbIsToldTheRightOnes) {
  Route route;
  const RestRefusal infer = FindRoute("GET", "/v2/models/m/infer", route);
  EXPECT_EQ(infer.status, 405);
  EXPECT_EQ(infer.allow, "POST, OPTIONS");
  EXPECT_THAT(infer.why, HasSubstr("GET /v2/models/m/infer, wanted POST"));
  EXPECT_EQ(FindRoute("DELETE", "/v2", route).allow, "GET, HEAD, OPTIONS");
  EXPECT_EQ(FindRoute("OPTIONS", "/v2/logging", route).allow, "GET, POST, HEAD, OPTIONS");
  EXPECT_EQ(StatusOf("OPTIONS", "/v2/logging"), 204);
  EXPECT_EQ(StatusOf("get", "/v2"), 405);
}

TEST(RoutesTest, PercentSignsNeedTwoDigits) {
  for (const char* target : {"/v2/models/%", "/v2/models/%2", "/v2/models/%zz", "/v2/%g0"}) {
    EXPECT_EQ(StatusOf("GET", target), 400) << target;
  }
  Route route;
  EXPECT_EQ(StatusOf("GET", "/v2/models/%00%2E%2e", route), 0);
  EXPECT_EQ(route.model, std::string("\0..", 3));
}

}  // namespace
}  // namespace normd
