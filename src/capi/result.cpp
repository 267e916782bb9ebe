// SPDX-License-Identifier: Apache-2.0
#include "capi/result.hpp"

#include <new>

namespace sparsecast::capi {
namespace {

thread_local std::string last_sentence;

#define SPARSECAST_SAME(result, code) static_assert(static_cast<int>(result) == static_cast<int>(ErrorCode::code))
SPARSECAST_SAME(scInvalidUsage, kUsage);
SPARSECAST_SAME(scCorrupt, kCorrupt);
SPARSECAST_SAME(scUnsupported, kUnsupported);
SPARSECAST_SAME(scTableMismatch, kTableMismatch);
SPARSECAST_SAME(scForeignStream, kForeignStream);
SPARSECAST_SAME(scStaleVersion, kStaleVersion);
SPARSECAST_SAME(scVersionGap, kVersionGap);
SPARSECAST_SAME(scWrongBase, kWrongBase);
SPARSECAST_SAME(scDigestMismatch, kDigestMismatch);
SPARSECAST_SAME(scDirty, kDirty);
SPARSECAST_SAME(scIncomplete, kIncomplete);
SPARSECAST_SAME(scIoError, kIo);
SPARSECAST_SAME(scTimeout, kTimeout);
SPARSECAST_SAME(scPeerFailed, kPeerFailed);
SPARSECAST_SAME(scUnauthenticated, kUnauthenticated);
SPARSECAST_SAME(scGroupMismatch, kGroupMismatch);
SPARSECAST_SAME(scDeviceError, kDevice);
#undef SPARSECAST_SAME
static_assert(static_cast<int>(scInternalError) < static_cast<int>(ErrorCode::kFenced));
static_assert(static_cast<int>(ErrorCode::kDevice) + 1 == static_cast<int>(scOutOfMemory),
              "a new ErrorCode needs a scResult_t");

}  // namespace

scResult_t result_of(ErrorCode code) noexcept {
  return code >= ErrorCode::kFenced ? scInternalError : static_cast<scResult_t>(code);
}

const char* last_message() noexcept { return last_sentence.c_str(); }

void keep_message(const char* sentence) noexcept {
  try {
    last_sentence = sentence;
  } catch (...) {
    last_sentence.clear();
  }
}

scResult_t take_exception(std::string* sentence) noexcept {
  scResult_t result = scInternalError;
  try {
    throw;
  } catch (const Error& error) {
    result = result_of(error.code());
    keep_message(error.what());
  } catch (const std::bad_alloc&) {
    result = scOutOfMemory;
    keep_message("out of memory");
  } catch (const std::exception& error) {
    keep_message(error.what());
  } catch (...) {
    keep_message("an exception of unknown type");
  }
  if (sentence != nullptr) {
    try {
      *sentence = last_sentence;
    } catch (...) {
      sentence->clear();
    }
  }
  return result;
}

}  // namespace sparsecast::capi

extern "C" {

const char* scGetErrorString(scResult_t result) {
  switch (result) {
    case scSuccess:
      return "success";
    case scInvalidUsage:
      return "usage: an argument or the order of calls is wrong";
    case scCorrupt:
      return "corrupt: bytes of a peer are torn or altered";
    case scUnsupported:
      return "unsupported: this build or this machine cannot do that";
    case scTableMismatch:
      return "table_mismatch: the ends carry different tensors";
    case scForeignStream:
      return "foreign_stream: a record of another stream";
    case scStaleVersion:
      return "stale_version: the version is already there";
    case scVersionGap:
      return "version_gap: a delta starts from a version that is not here";
    case scWrongBase:
      return "wrong_base: the version is right, the bytes are not";
    case scDigestMismatch:
      return "digest_mismatch: the result was wrong and was undone";
    case scDirty:
      return "dirty: the content is known to be wrong";
    case scIncomplete:
      return "incomplete: records are missing";
    case scIoError:
      return "io: the operating system refused";
    case scTimeout:
      return "timeout: a peer was silent until the deadline";
    case scPeerFailed:
      return "peer_failed: another rank failed";
    case scUnauthenticated:
      return "unauthenticated: the other end does not hold the same unique id";
    case scGroupMismatch:
      return "group_mismatch: the ranks disagree";
    case scDeviceError:
      return "device: the device, its driver or NCCL reported an error";
    case scOutOfMemory:
      return "out of memory";
    case scInternalError:
      return "internal error";
  }
  return "unknown result";
}

const char* scGetLastErrorMessage(void) { return sparsecast::capi::last_message(); }
}
