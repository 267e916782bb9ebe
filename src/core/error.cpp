// SPDX-License-Identifier: Apache-2.0
#include "sparsecast/error.hpp"

namespace sparsecast {

std::string_view to_string(ErrorCode code) noexcept {
  switch (code) {
    case ErrorCode::kUsage:
      return "usage";
    case ErrorCode::kCorrupt:
      return "corrupt";
    case ErrorCode::kUnsupported:
      return "unsupported";
    case ErrorCode::kTableMismatch:
      return "table_mismatch";
    case ErrorCode::kForeignStream:
      return "foreign_stream";
    case ErrorCode::kStaleVersion:
      return "stale_version";
    case ErrorCode::kVersionGap:
      return "version_gap";
    case ErrorCode::kWrongBase:
      return "wrong_base";
    case ErrorCode::kDigestMismatch:
      return "digest_mismatch";
    case ErrorCode::kDirty:
      return "dirty";
    case ErrorCode::kIncomplete:
      return "incomplete";
    case ErrorCode::kIo:
      return "io";
    case ErrorCode::kTimeout:
      return "timeout";
    case ErrorCode::kPeerFailed:
      return "peer_failed";
    case ErrorCode::kUnauthenticated:
      return "unauthenticated";
    case ErrorCode::kGroupMismatch:
      return "group_mismatch";
    case ErrorCode::kDevice:
      return "device";
    case ErrorCode::kFenced:
      return "fenced";
    case ErrorCode::kGone:
      return "gone";
    case ErrorCode::kUnsigned:
      return "unsigned";
    case ErrorCode::kForeignKey:
      return "foreign_key";
    case ErrorCode::kReplayed:
      return "replayed";
    case ErrorCode::kRolledBack:
      return "rolled_back";
    case ErrorCode::kMixed:
      return "mixed";
    case ErrorCode::kExpired:
      return "expired";
  }
  return "unknown";
}

Error::Error(ErrorCode code, const std::string& message, const std::string& context)
    : std::runtime_error(context.empty() ? message : context + ": " + message),
      code_(code),
      message_(message),
      context_(context) {}

Error Error::within(const std::string& outer) const {
  return {code_, message_, context_.empty() ? outer : outer + ": " + context_};
}

}  // namespace sparsecast
