// SPDX-License-Identifier: Apache-2.0
#pragma once

// Messages for input errors that a kernel found and that the CPU's reader does not find when it decodes the frame
// again.

#include "cuda/apply/received.hpp"

namespace sparsecast::cuda {

inline const char* describe_input_error(InputError input_error) {
  switch (input_error) {
    case InputError::kGroup:
      return "a group of the directory is wrong";
    case InputError::kExtent:
      return "a block reaches beyond the tensor";
    case InputError::kCoding:
      return "impossible coding";
    case InputError::kPayloadRange:
      return "a payload lies outside the frame";
    case InputError::kOrder:
      return "blocks of two frames are out of order or overlap";
    case InputError::kChanged:
      return "the blocks do not add up to the frame's changes";
    case InputError::kPosition:
      return "a position lies outside its block";
    case InputError::kOverrun:
      return "a code runs past the end of its block";
    case InputError::kLength:
      return "a block's payload has the wrong length";
    case InputError::kPadding:
      return "padding bits of a block are set";
    case InputError::kQuotient:
      return "a quotient has too many zeros";
    case InputError::kBitmapCount:
      return "a bitmap has not as many bits set as its block has changes";
    case InputError::kMagnitude:
      return "a difference in ULP does not fit its element";
    case InputError::kExceptions:
      return "the exceptions of a block are wrong";
    case InputError::kClasses:
      return "the classes of a block are wrong";
    case InputError::kRank:
      return "a rank lies outside its block";
    case InputError::kBase:
      return "the weights of a block are not those of the delta's base version";
    case InputError::kNone:
      break;
  }
  return "a block is wrong";
}

}  // namespace sparsecast::cuda
