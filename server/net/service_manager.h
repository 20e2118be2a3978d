// Notifications to the service manager that started the process.

#ifndef NORMD_SERVER_NET_SERVICE_MANAGER_H_
#define NORMD_SERVER_NET_SERVICE_MANAGER_H_

#include "absl/strings/string_view.h"

namespace normd {

// Sends `state`, such as "READY=1", to the socket in the environment's NOTIFY_SOCKET: a path, or an
// abstract name after '@'. Does nothing without one. Thread-safe as long as nobody changes the
// environment; never blocks. Logs a failure as a warning. Source: sd_notify(3), whose library would
// be one more in the image for one datagram.
void NotifyServiceManager(absl::string_view state);

}  // namespace normd

#endif  // NORMD_SERVER_NET_SERVICE_MANAGER_H_
