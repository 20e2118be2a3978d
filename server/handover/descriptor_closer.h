// Closes descriptors from clients, which may take as long as the clients choose.

#ifndef NORMD_SERVER_HANDOVER_DESCRIPTOR_CLOSER_H_
#define NORMD_SERVER_HANDOVER_DESCRIPTOR_CLOSER_H_

#include <cstddef>
#include <memory>
#include <vector>

#include "base/descriptor.h"

namespace normd {

// close(2) waits for a socket with SO_LINGER until its peer has received the sent bytes, for a file
// system of a process (FUSE) until that process replies, and with a unix socket it closes the
// unread descriptors in it. A separate thread therefore closes them. Used by one thread.
class DescriptorCloser {
 public:
  DescriptorCloser();
  // Waits at most 1 s: the rest is closed later, or by the end of the process.
  ~DescriptorCloser();
  DescriptorCloser(const DescriptorCloser&) = delete;
  DescriptorCloser& operator=(const DescriptorCloser&) = delete;

  // Does not block. Sockets no longer linger: their unsent bytes are discarded.
  void Close(std::vector<Descriptor> descriptors);
  // The number of descriptors that are not closed yet.
  std::size_t waiting() const;

 private:
  struct State;

  std::unique_ptr<State> state_;  // Left to its thread if that is not done in time.
};

}  // namespace normd

#endif  // NORMD_SERVER_HANDOVER_DESCRIPTOR_CLOSER_H_
