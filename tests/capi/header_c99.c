// SPDX-License-Identifier: Apache-2.0
/* Compiled as strict C99 with every warning an error: sparsecast.h must serve plain C, alone. */
#include <sparsecast/sparsecast.h>

const scConfig_t kConfigOfC = SC_CONFIG_INITIALIZER;

scResult_t broadcast_from_c(scBuffer_t buffer, struct CUstream_st* stream);
scResult_t broadcast_from_c(scBuffer_t buffer, struct CUstream_st* stream) { return scBroadcast(buffer, 0, stream); }
