#pragma once

// What a kernel's refusal means, for errors that the CPU's reader has no words for.

#include "cuda/apply/received.hpp"

namespace sparsecast::cuda {

inline const char* describe_refusal(Refusal refusal) {
  switch (refusal) {
    case Refusal::kGroup:
      return "a group of the directory is wrong";
    case Refusal::kExtent:
      return "a block reaches beyond the tensor";
    case Refusal::kCoding:
      return "impossible coding";
    case Refusal::kPayloadRange:
      return "a payload lies outside the frame";
    case Refusal::kOrder:
      return "blocks of two frames are out of order or overlap";
    case Refusal::kChanged:
      return "the blocks do not add up to the frame's changes";
    case Refusal::kPosition:
      return "a position lies outside its block";
    case Refusal::kOverrun:
      return "a code runs past the end of its block";
    case Refusal::kLength:
      return "a block's payload has the wrong length";
    case Refusal::kPadding:
      return "padding bits of a block are set";
    case Refusal::kQuotient:
      return "a quotient has too many zeros";
    case Refusal::kBitmapCount:
      return "a bitmap has not as many bits set as its block has changes";
    case Refusal::kMagnitude:
      return "a distance in ULP does not fit its element";
    case Refusal::kExceptions:
      return "the exceptions of a block are wrong";
    case Refusal::kNone:
      break;
  }
  return "a block is wrong";
}

}  // namespace sparsecast::cuda
