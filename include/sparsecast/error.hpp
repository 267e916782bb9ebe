// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <stdexcept>
#include <string>
#include <string_view>

#include "sparsecast/export.hpp"

namespace sparsecast {

/// Kind of failure. Programs react to the value; the message is for people.
enum class ErrorCode : int {
  kUsage = 1,  ///< The caller broke a precondition (wrong size, wrong order of calls).
  kCorrupt,    ///< Bytes are torn, altered or nonsensical: a checksum, length or bound does not hold.
  /// The bytes are well-formed, but of a format version, dtype or feature that this build does not know.
  kUnsupported,
  kTableMismatch,   ///< The sender and the receiver do not have the same tensor table.
  kForeignStream,   ///< A record belongs to another stream, or to another delta than the one being staged.
  kStaleVersion,    ///< The version is already applied, or older than the applied one: there is nothing to do.
  kVersionGap,      ///< The delta starts from a version that this subscriber does not hold.
  kWrongBase,       ///< The version number matches, but the bytes of the weights do not: the base digest differs.
  kDigestMismatch,  ///< After an apply, the digest of the weights is not the one in the commit record.
  kDirty,       ///< The live weights are known to be wrong; only an anchor (a full copy of a version) can repair them.
  kIncomplete,  ///< Frames or the commit record have not arrived yet.
  kIo,          ///< The operating system refused an input or output operation.
  kTimeout,     ///< A deadline passed while a peer was silent.
  kPeerFailed,  ///< A peer reported that it failed.
  kUnauthenticated,  ///< The other end of a connection does not know the group's secret.
  kGroupMismatch,    ///< The ranks of a group disagree: on its size, its members, its libraries or what they do next.
  kDevice,           ///< The device, its driver or a library that drives it (CUDA, NCCL) reported an error.
  // Errors of delta logs (the C interface, which has no logs, uses the numbers in between):
  kFenced = 32,  ///< Another publisher has taken the log over, or committed this version first.
  /// The requested object does not exist, or no longer exists because retention has removed it: start again from an
  /// anchor.
  kGone,
  kUnsigned,    ///< Keys are pinned, and the object has no signature by a known algorithm.
  kForeignKey,  ///< The object is signed, but by no key that is trusted at this version.
  /// An object is genuine but in the wrong place: it is of another version, stream or kind than was asked for.
  kReplayed,
  kRolledBack,  ///< The log shows an older head, another history or a lower epoch than was seen before.
  kMixed,       ///< Genuine parts do not belong together: a hash, digest or predecessor is not the expected one.
  kExpired,     ///< The newest commit is older than the caller allows: the log may be frozen, or its publisher dead.
};

/// Returns the stable name that logs and JSON use: "corrupt", "version_gap", ...
SPARSECAST_API std::string_view to_string(ErrorCode code) noexcept;

/// The only exception type of the library: a code, a message of one sentence, and a context (file, tensor, frame,
/// offset).
class SPARSECAST_API Error : public std::runtime_error {
 public:
  Error(ErrorCode code, const std::string& message, const std::string& context = {});

  ErrorCode code() const noexcept { return code_; }
  /// Returns where the error occurred, for example "step_12.scd: frame 3: tensor 'lm_head.weight'"; may be empty.
  const std::string& context() const noexcept { return context_; }
  /// Returns the message without its context; `what()` is "context: message".
  const std::string& message() const noexcept { return message_; }

  /// Returns a copy of this error whose context begins with `outer`, so that a caller can add where the error occurred.
  Error within(const std::string& outer) const;

 private:
  ErrorCode code_;
  std::string message_;
  std::string context_;
};

}  // namespace sparsecast
