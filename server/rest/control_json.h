// The JSON bodies of control calls, which differ from the protocol's messages in their frames.

#ifndef NORMD_SERVER_REST_CONTROL_JSON_H_
#define NORMD_SERVER_REST_CONTROL_JSON_H_

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "google/protobuf/message.h"
#include "server/rest/rest_reply.h"
#include "server/rest/routes.h"

namespace normd {

// Fills the route's request from the body and the path's names, which win. InvalidArgument for a
// body that is neither empty nor an object whose fields have the types of the request's; unknown
// fields are ignored.
absl::Status ReadControl(const Route& route, absl::string_view body,
                         google::protobuf::Message& request);

// Writes the route's response: an object, a list for indexes and regions, or nothing for what only
// succeeds. A server or model that is not ready is 400.
void WriteControl(const Route& route, const google::protobuf::Message& answer, RestReply& reply);

}  // namespace normd

#endif  // NORMD_SERVER_REST_CONTROL_JSON_H_
