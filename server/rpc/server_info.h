// What GetServerInfo tells beside what the accept path knows.

#ifndef NORMD_SERVER_RPC_SERVER_INFO_H_
#define NORMD_SERVER_RPC_SERVER_INFO_H_

#include <cstdint>
#include <string>
#include <vector>

namespace normd {

struct ServerInfo {
  std::string version;
  std::string cuda;
  std::string simd;
  std::vector<std::string> lanes;
  std::int64_t max_inflight_bytes = 0;
  std::string shared_memory_listen;
};

}  // namespace normd

#endif  // NORMD_SERVER_RPC_SERVER_INFO_H_
