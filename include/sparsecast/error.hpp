#pragma once

#include <stdexcept>
#include <string>
#include <string_view>

#include "sparsecast/export.hpp"

namespace sparsecast {

/// What kind of thing went wrong. The value decides the reaction of a caller; the sentence is for people.
enum class ErrorCode : int {
  kUsage = 1,        ///< The caller broke a precondition (wrong size, wrong order of calls).
  kCorrupt,          ///< Bytes are torn, altered or nonsensical: a checksum, length or bound does not hold.
  kUnsupported,      ///< Well-formed, but of a format version, dtype or feature that this build does not know.
  kTableMismatch,    ///< The two ends do not carry the same tensor table.
  kForeignStream,    ///< A record of another stream, or of another delta than the one being staged.
  kStaleVersion,     ///< The version is already applied or older: nothing to do.
  kVersionGap,       ///< The delta starts from a version that this subscriber does not hold.
  kWrongBase,        ///< Same version number, other bytes: the base digest differs.
  kDigestMismatch,   ///< After the apply the state digest is not the one that the commit promised.
  kDirty,            ///< The live state is known to be wrong; only an anchor helps.
  kIncomplete,       ///< Frames or the commit record have not arrived yet.
  kIo,               ///< The operating system refused an input or output operation.
  kTimeout,          ///< A deadline passed while a peer was silent.
  kPeerFailed,       ///< A peer reported that it failed.
  kUnauthenticated,  ///< The other end of a connection does not know the group's secret.
  kGroupMismatch,    ///< The ranks of a group disagree: on its size, its members, its libraries or what they do next.
  kDevice,           ///< The device, its driver or a library that drives it (CUDA, NCCL) reported an error.
  // Of delta logs (the numbers between belong to the C interface, which has no logs):
  kFenced = 32,  ///< Another publisher has taken the log over, or committed this version first.
  kGone,         ///< Retention has removed what was asked for: start again from an anchor.
  kUnsigned,     ///< Keys are pinned, and the object has no signature by a known algorithm.
  kForeignKey,   ///< It is signed, but by no key that is trusted at this version.
  kReplayed,     ///< A genuine object in another one's place: of another version, stream or kind than asked for.
  kRolledBack,   ///< The log shows an older head, another history or a lower epoch than was seen before.
  kMixed,        ///< Genuine parts that do not belong together: a hash, digest or predecessor is not the one named.
  kExpired,      ///< The newest commit is older than the caller allows: the log may be frozen, or its publisher dead.
};

/// "corrupt", "version_gap", ...: the stable name used in logs and JSON.
SPARSECAST_API std::string_view to_string(ErrorCode code) noexcept;

/// The one exception type of the library: a code, one sentence, and where it happened
/// (file, tensor, frame, offset).
class SPARSECAST_API Error : public std::runtime_error {
 public:
  Error(ErrorCode code, const std::string& message, const std::string& context = {});

  ErrorCode code() const noexcept { return code_; }
  /// Where: for example "step_12.scd: frame 3: tensor 'lm_head.weight'"; may be empty.
  const std::string& context() const noexcept { return context_; }
  /// The sentence without its context; `what()` is "context: message".
  const std::string& message() const noexcept { return message_; }

  /// The same error, seen from one level further out: `outer` is put before the context.
  Error within(const std::string& outer) const;

 private:
  ErrorCode code_;
  std::string message_;
  std::string context_;
};

}  // namespace sparsecast
