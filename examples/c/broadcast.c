// SPDX-License-Identifier: Apache-2.0
/*
 * Sparse broadcast from C: 1 % of an array changes in each step, and every rank gets it.
 *
 *     broadcast                              three ranks, which this process forks
 *     broadcast RANK SIZE ID_FILE            one rank of several processes or machines; rank 0 writes the file, which
 * the others read: it must be on a file system that all see and only they can read
 */
#define _POSIX_C_SOURCE 200809L

#include <sparsecast/sparsecast.h>

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { kCount = 1000000, kSteps = 5, kForkedRanks = 3, kWaitSeconds = 60 };

#define CHECK(call)                                                                              \
  do {                                                                                           \
    const scResult_t result = (call);                                                            \
    if (result != scSuccess) {                                                                   \
      fprintf(stderr, "%s: %s\n%s\n", #call, scGetErrorString(result), scGetLastErrorMessage()); \
      return 1;                                                                                  \
    }                                                                                            \
  } while (0)

/* The same numbers on every rank, so that each knows what must arrive. */
static void train(uint16_t* weights, int step) {
  uint32_t state = 2463534242u + (uint32_t)step;
  for (int i = 0; i < kCount / 100; ++i) {
    state ^= state << 13;
    state ^= state >> 17;
    state ^= state << 5;
    weights[state % kCount] = (uint16_t)(weights[state % kCount] + 1);
  }
}

static int run(int rank, int size, scUniqueId id) {
  scConfig_t config = SC_CONFIG_INITIALIZER;
  config.transport = scTransportTcp;
  scComm_t comm;
  CHECK(scCommInitRank(&comm, size, id, rank, &config));

  uint16_t* expected = calloc(kCount, sizeof(uint16_t));
  uint16_t* weights = calloc(kCount, sizeof(uint16_t));
  if (expected == NULL || weights == NULL) return 1;
  scBuffer_t buffer;
  CHECK(scRegister(comm, weights, kCount, scBfloat16, scMemoryHost, &buffer));

  for (int step = 0; step < kSteps; ++step) {
    train(expected, step);
    if (rank == 0) memcpy(weights, expected, kCount * sizeof(uint16_t));
    CHECK(scBroadcast(buffer, 0, NULL));
    if (memcmp(weights, expected, kCount * sizeof(uint16_t)) != 0) {
      fprintf(stderr, "rank %d: wrong weights in step %d\n", rank, step);
      return 1;
    }
    scStats_t stats;
    CHECK(scGetStats(buffer, &stats));
    if (rank == 0) {
      printf("version %llu: %llu changed, %llu bytes instead of %llu%s, %.1f ms\n", (unsigned long long)stats.version,
             (unsigned long long)stats.changed, (unsigned long long)stats.wire_bytes,
             (unsigned long long)stats.dense_bytes, stats.anchor ? " (anchor)" : "", 1e3 * stats.seconds);
    }
  }
  CHECK(scDeregister(buffer));
  CHECK(scCommDestroy(comm));
  free(weights);
  free(expected);
  return 0;
}

/* Forks first: the process that makes the id is rank 0, and pipes bring the id to the others. */
static int run_forked(void) {
  int pipes[kForkedRanks][2];
  for (int rank = 1; rank < kForkedRanks; ++rank) {
    if (pipe(pipes[rank]) != 0) return 1;
    const pid_t child = fork();
    if (child < 0) return 1;
    if (child == 0) {
      scUniqueId id;
      if (read(pipes[rank][0], &id, sizeof(id)) != (ssize_t)sizeof(id)) _exit(1);
      _exit(run(rank, kForkedRanks, id));
    }
  }
  scUniqueId id;
  CHECK(scGetUniqueIdOn(&id, "lo"));
  for (int rank = 1; rank < kForkedRanks; ++rank) {
    if (write(pipes[rank][1], &id, sizeof(id)) != (ssize_t)sizeof(id)) return 1;
  }
  int failed = run(0, kForkedRanks, id);
  for (int rank = 1; rank < kForkedRanks; ++rank) {
    int status = 0;
    if (wait(&status) < 0 || status != 0) failed = 1;
  }
  return failed;
}

static int run_one(int rank, int size, const char* file) {
  scUniqueId id;
  if (rank == 0) {
    char part[4096];
    if (snprintf(part, sizeof(part), "%s.part", file) >= (int)sizeof(part)) return 1;
    CHECK(scGetUniqueId(&id));
    const int descriptor = open(part, O_WRONLY | O_CREAT | O_TRUNC, 0600);
    if (descriptor < 0 || write(descriptor, &id, sizeof(id)) != (ssize_t)sizeof(id) || close(descriptor) != 0 ||
        rename(part, file) != 0) {
      perror(file);
      return 1;
    }
  } else {
    const struct timespec pause = {0, 100000000};
    int descriptor = -1;
    for (int tenth = 0; descriptor < 0 && tenth < 10 * kWaitSeconds; ++tenth) {
      descriptor = open(file, O_RDONLY);
      if (descriptor < 0) nanosleep(&pause, NULL);
    }
    if (descriptor < 0 || read(descriptor, &id, sizeof(id)) != (ssize_t)sizeof(id)) {
      perror(file);
      return 1;
    }
    close(descriptor);
  }
  return run(rank, size, id);
}

int main(int argc, char** argv) {
  if (argc == 1) return run_forked();
  if (argc != 4) {
    fprintf(stderr, "usage: %s [RANK SIZE ID_FILE]\n", argv[0]);
    return 2;
  }
  return run_one(atoi(argv[1]), atoi(argv[2]), argv[3]);
}
