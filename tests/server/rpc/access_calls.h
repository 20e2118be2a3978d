// Every method of every service, called as anybody.

#ifndef NORMD_TESTS_SERVER_RPC_ACCESS_CALLS_H_
#define NORMD_TESTS_SERVER_RPC_ACCESS_CALLS_H_

#include <google/protobuf/descriptor.h>

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "grpcpp/grpcpp.h"
#include "server/identity/identity.h"

namespace normd::testing {

// A method, as MakeCall takes it.
inline constexpr char kNormalize[] = "/normd.v1.NormService/Normalize";

// What a method needs, and whether it names a model.
struct AccessRule {
  Right right;
  bool names_model = false;
};
// The rule of every method, by its full name. A new method needs a rule here.
const std::map<std::string, AccessRule>& AccessRules();

// The tests' identities: h asks for health, u infers with instance_norm_64, w with rms_*, v
// observes, a is an admin.
bool MayCall(char identity, const AccessRule& rule);

inline bool IsDenial(grpc::StatusCode code) {
  return code == grpc::StatusCode::PERMISSION_DENIED || code == grpc::StatusCode::UNAUTHENTICATED;
}

// What a call ended with.
struct Ending {
  grpc::Status status;
  std::string pushback;
  int messages = 0;
  std::string last_message;
};

// One call of any kind with one message, to its end. `method` is "/package.Service/Method"; an
// empty `authorization` is not sent.
Ending MakeCall(const std::shared_ptr<grpc::Channel>& channel, const std::string& authorization,
                const std::string& method, const std::string& wire);
// The same with whatever `configure` sets.
Ending MakeCall(const std::shared_ptr<grpc::Channel>& channel,
                const std::function<void(grpc::ClientContext&)>& configure,
                const std::string& method, const std::string& wire);

std::string PathOf(const google::protobuf::MethodDescriptor& method);
// A request that names `model` in whatever field the method has for it.
std::string WireFor(const google::protobuf::MethodDescriptor& method, const std::string& model);

// What the server itself says it has, over reflection.
std::vector<const google::protobuf::ServiceDescriptor*> ServicesOf(
    const std::shared_ptr<grpc::Channel>& channel, const std::string& authorization);

}  // namespace normd::testing

#endif  // NORMD_TESTS_SERVER_RPC_ACCESS_CALLS_H_
