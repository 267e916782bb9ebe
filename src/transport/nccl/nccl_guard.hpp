#pragma once

// How a channel's collectives fail; for the files that implement it.

#include <fmt/format.h>

#include "transport/nccl/nccl_group.hpp"

namespace sparsecast {

/// Runs `body`; whatever it throws breaks the channel.
template <class Body>
auto NcclTransport::Group::guard(const char* phase, const Body& body) {
  if (broken_) {
    throw Error(ErrorCode::kPeerFailed, fmt::format("the channel is broken since an earlier failure ({})", *broken_),
                context(phase));
  }
  staging_->enter();
  try {
    return body();
  } catch (const Error& error) {
    fail(error);
    throw error.within(context(phase));
  } catch (const std::exception& error) {
    fail(Error(ErrorCode::kPeerFailed, error.what()));
    throw;
  }
}

}  // namespace sparsecast
