// SPDX-License-Identifier: Apache-2.0
#include <sparsecast/sparsecast.h>

#include <stdio.h>

int main(void) {
  scUniqueId id;
  scComm_t comm;
  scBuffer_t buffer;
  scStats_t stats;
  float weights[4] = {1, 2, 3, 4};
  int version = 0;
  scConfig_t config = SC_CONFIG_INITIALIZER;
  config.transport = scTransportTcp;
  if (scGetVersion(&version) != scSuccess || scGetUniqueIdOn(&id, "lo") != scSuccess ||
      scCommInitRank(&comm, 1, id, 0, &config) != scSuccess ||
      scRegister(comm, weights, 4, scFloat32, scMemoryHost, &buffer) != scSuccess ||
      scBroadcast(buffer, 0, NULL) != scSuccess || scGetStats(buffer, &stats) != scSuccess ||
      scCommDestroy(comm) != scSuccess) {
    fprintf(stderr, "%s\n", scGetLastErrorMessage());
    return 1;
  }
  printf("sparsecast %d.%d.%d: version %d\n", version / 10000, version / 100 % 100, version % 100, (int)stats.version);
  return 0;
}
