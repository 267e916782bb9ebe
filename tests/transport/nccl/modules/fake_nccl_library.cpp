// SPDX-License-Identifier: Apache-2.0

// A library that looks like NCCL at first sight: it has a version, and nothing else.
extern "C" __attribute__((visibility("default"))) int ncclGetVersion(int* version) {
  *version = FAKE_VERSION;
  return 0;
}
