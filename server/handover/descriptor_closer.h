// Closes what clients have passed, where that may take as long as they choose.

#ifndef NORMD_SERVER_HANDOVER_DESCRIPTOR_CLOSER_H_
#define NORMD_SERVER_HANDOVER_DESCRIPTOR_CLOSER_H_

#include <cstddef>
#include <memory>
#include <thread>
#include <vector>

#include "base/descriptor.h"

namespace normd {

// close(2) waits for a socket with SO_LINGER until its peer has taken what was sent, for a file
// system of a process (FUSE) until that process replies, and with a unix socket it closes what lies
// in it unread. So this is done by a thread of its own. Used by one thread.
class DescriptorCloser {
 public:
  DescriptorCloser();
  // Waits a second at most: what is not closed by then is closed later, or by the process's end.
  ~DescriptorCloser();
  DescriptorCloser(const DescriptorCloser&) = delete;
  DescriptorCloser& operator=(const DescriptorCloser&) = delete;

  // Does not block. Sockets among them no longer linger: what they have not sent is thrown away.
  void Close(std::vector<Descriptor> descriptors);
  // How many are not closed yet.
  std::size_t waiting() const;

 private:
  struct State;

  static void Loop(const std::shared_ptr<State>& state);

  const std::shared_ptr<State> state_;  // shared: with the thread, which may outlive this.
  std::thread thread_;
};

}  // namespace normd

#endif  // NORMD_SERVER_HANDOVER_DESCRIPTOR_CLOSER_H_
