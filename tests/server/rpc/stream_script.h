// A NormalizeStream call under a script: messages in any order and of any bytes, cut anywhere; the
// client's half-close and departure; writes that end or fail; lanes that compute, fail or take
// their time; a stop that gives up. One thread, no connection, no timer: the same script always
// does the same.

#ifndef NORMD_TESTS_SERVER_RPC_STREAM_SCRIPT_H_
#define NORMD_TESTS_SERVER_RPC_STREAM_SCRIPT_H_

#include <string>

#include "absl/strings/string_view.h"

namespace normd::testing {

// Plays any bytes as a script, to the call's end. Empty if every promise held, else the one that
// was broken: operations on the call in order and one of a kind at a time; no more inside than the
// window; the response's parts in order, with every byte of the tensor computed once; OK for a
// stream without a fault and for no other; an end in any case; and nothing held after it.
std::string PlayStreamScript(absl::string_view script);

}  // namespace normd::testing

#endif  // NORMD_TESTS_SERVER_RPC_STREAM_SCRIPT_H_
