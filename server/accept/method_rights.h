// Which right each method needs.

#pragma once

#include "server/identity/identity.h"
#include "server/metrics/handles.h"

namespace normd {

// A method of kDescribe that names a model is also judged by Authorizer::CheckModel; one that can
// cover all models needs kObserve.
Right RightOf(Method method);

}  // namespace normd
