// Bytes and descriptors over a unix socket, as clients pass them.

#ifndef NORMD_TESTS_SUPPORT_PASS_DESCRIPTORS_H_
#define NORMD_TESTS_SUPPORT_PASS_DESCRIPTORS_H_

#include <sys/socket.h>
#include <sys/uio.h>

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <string>
#include <vector>

namespace normd::testing {

// As sendmsg: how many bytes were sent, or -1 and errno. Blocks as the socket does.
inline ssize_t PassDescriptors(int socket, std::string bytes, const std::vector<int>& descriptors) {
  const std::size_t size = descriptors.size() * sizeof(int);
  std::vector<char> control(CMSG_SPACE(std::max(size, sizeof(int))));
  iovec part = {bytes.data(), bytes.size()};
  msghdr message = {};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  if (!descriptors.empty()) {
    message.msg_control = control.data();
    message.msg_controllen = control.size();
    cmsghdr* const rights = CMSG_FIRSTHDR(&message);
    rights->cmsg_level = SOL_SOCKET;
    rights->cmsg_type = SCM_RIGHTS;
    rights->cmsg_len = CMSG_LEN(size);
    std::memcpy(CMSG_DATA(rights), descriptors.data(), size);
  }
  return sendmsg(socket, &message, MSG_NOSIGNAL);
}

}  // namespace normd::testing

#endif  // NORMD_TESTS_SUPPORT_PASS_DESCRIPTORS_H_
