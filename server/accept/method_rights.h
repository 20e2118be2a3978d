// Which right each method needs.

#ifndef NORMD_SERVER_ACCEPT_METHOD_RIGHTS_H_
#define NORMD_SERVER_ACCEPT_METHOD_RIGHTS_H_

#include "server/identity/identity.h"
#include "server/metrics/handles.h"

namespace normd {

// A method of kDescribe that names a model is also judged by Authorizer::CheckModel; one that can
// cover all models needs kObserve.
Right RightOf(Method method);

}  // namespace normd

#endif  // NORMD_SERVER_ACCEPT_METHOD_RIGHTS_H_
