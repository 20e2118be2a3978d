// What the process tells the service manager that started it.

#ifndef NORMD_SERVER_NET_SERVICE_MANAGER_H_
#define NORMD_SERVER_NET_SERVICE_MANAGER_H_

#include "absl/strings/string_view.h"

namespace normd {

// Sends `state`, such as "READY=1", to the socket that the environment's NOTIFY_SOCKET names: a
// path, or an abstract name after '@'. Nothing happens without one. Thread-safe as long as nobody
// changes the environment; never blocks. What cannot be sent is logged as a warning. Source:
// sd_notify(3), whose library would be one more in the image for the sake of one datagram.
void NotifyServiceManager(absl::string_view state);

}  // namespace normd

#endif  // NORMD_SERVER_NET_SERVICE_MANAGER_H_
