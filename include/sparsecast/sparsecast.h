// SPDX-License-Identifier: Apache-2.0
/*
 * sparsecast.h: sparse broadcast of model weights, in the shape of nccl.h. Plain C99; no CUDA, MPI or NCCL header is
 * needed. docs/c-api.md describes the interface in full.
 *
 *     scUniqueId id;                                              // on rank 0, then copied to every rank
 *     scGetUniqueId(&id);
 *     scCommInitRank(&comm, nranks, id, rank, NULL);
 *     scRegister(comm, weights, count, scBfloat16, scMemoryHost, &buffer);
 *     for (;;) scBroadcast(buffer, 0, NULL);                      // where ncclBroadcast was
 *
 * Every function returns an scResult_t, and never throws. Every rank of the communicator calls
 * the functions described as collective, in the same order; they return on every rank within the communicator's
 * timeout. Only one thread at a time may use a communicator and its buffers; different threads may use different
 * communicators.
 */
#ifndef SPARSECAST_H_
#define SPARSECAST_H_

#include <stddef.h>
#include <stdint.h>

#if !defined(SPARSECAST_STATIC) && defined(__GNUC__)
#define SC_API __attribute__((visibility("default")))
#else
#define SC_API
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* A cudaStream_t is a CUstream_st*. */
struct CUstream_st;

typedef struct scComm* scComm_t;     /* A communicator: the ranks that get the same buffers. */
typedef struct scBuffer* scBuffer_t; /* One registered buffer of a communicator. */

/* Results. docs/errors.md explains each error and what to do about it. */
typedef enum {
  scSuccess = 0,
  scInvalidUsage = 1,     /* An argument or the order of calls is wrong. Nothing was done. */
  scCorrupt = 2,          /* Bytes of a peer are torn or altered. */
  scUnsupported = 3,      /* This build or this machine cannot do that. */
  scTableMismatch = 4,    /* The two ends have different tensors. */
  scForeignStream = 5,    /* A record of another stream. */
  scStaleVersion = 6,     /* This rank already holds the version. */
  scVersionGap = 7,       /* A delta starts from a version that this rank does not hold. */
  scWrongBase = 8,        /* The version matches but the bytes do not: somebody wrote into the buffer. */
  scDigestMismatch = 9,   /* The result was wrong, and was undone: somebody wrote into the buffer. */
  scDirty = 10,           /* The buffer's content is known to be wrong; the next scBroadcast repairs it. */
  scIncomplete = 11,      /* Records are missing. */
  scIoError = 12,         /* The operating system refused an operation. */
  scTimeout = 13,         /* A peer was silent until the deadline. */
  scPeerFailed = 14,      /* Another rank failed, or the communicator is broken since an earlier failure. */
  scUnauthenticated = 15, /* The other end does not hold the same unique id. */
  scGroupMismatch = 16,   /* The ranks disagree on arguments, libraries, or what they call. */
  scDeviceError = 17,     /* The device, its driver, or NCCL reported an error. */
  scOutOfMemory = 18,
  scInternalError = 19
} scResult_t;

/* Returns a short text for a result, such as "timeout: a peer was silent until the deadline". Static; never NULL. */
SC_API const char* scGetErrorString(scResult_t result);
/* Returns the full message of the calling thread's last failure, with its context; "" when there was none. Valid until
 * the thread's next failure. */
SC_API const char* scGetLastErrorMessage(void);
/* Returns the message of the last failure in this communicator or one of its buffers, in any thread; "" when there was
 * none, and for an invalid handle. Valid until the communicator's next call. */
SC_API const char* scGetLastError(scComm_t comm);

/* Version of this header, as scGetVersion stores that of the library: 10203 is 1.2.3. */
#define SC_VERSION(major, minor, patch) ((major)*10000 + (minor)*100 + (patch))
#define SC_VERSION_CODE SC_VERSION(0, 1, 0)

/* Stores the version of the library in *version; 10203 is 1.2.3. */
SC_API scResult_t scGetVersion(int* version);

/* ---- communicators ---- */

#define SC_UNIQUE_ID_BYTES 128
/* Everything that a rank needs to join. Anyone who holds the id can join in the place of a rank: keep it secret. */
typedef struct {
  char internal[SC_UNIQUE_ID_BYTES];
} scUniqueId;

/* Makes an id for one communicator, in the process that will be rank 0: opens a TCP port on the first network interface
 * that is up (on loopback when there is none). The port stays open until rank 0 has called scCommInitRank. */
SC_API scResult_t scGetUniqueId(scUniqueId* id);
/* As scGetUniqueId, on the interface of this name or address, for example "eth0", "10.0.0.7" or "lo". */
SC_API scResult_t scGetUniqueIdOn(scUniqueId* id, const char* network_interface);

/* Transport that carries the bytes. */
typedef enum {
  scTransportAuto = 0, /* NCCL when every rank has it and a GPU of its own; else MPI in scCommInitMPI; else TCP. */
  scTransportNccl = 1,
  scTransportTcp = 2, /* A star over rank 0: small groups, tests, machines without GPUs. */
  scTransportMpi = 3  /* Only in scCommInitMPI. */
} scTransport_t;

/* Options, the same on every rank except `device` and `threads`. Must be initialised by SC_CONFIG_INITIALIZER. */
typedef struct {
  size_t size; /* These three are set by the initialiser. */
  unsigned magic;
  unsigned version;
  int timeout_ms; /* Timeout of every collective call, and of the initialisation. At least 1. */
  scTransport_t transport;
  int device;  /* CUDA ordinal; -1: the calling thread's current device. */
  int threads; /* Threads for detect, encode, apply and digests in host memory; 0: all cores. */
} scConfig_t;

#define SC_CONFIG_MAGIC 0x53434647u
#define SC_CONFIG_VERSION 1u
#define SC_CONFIG_INITIALIZER \
  { sizeof(scConfig_t), SC_CONFIG_MAGIC, SC_CONFIG_VERSION, 60000, scTransportAuto, -1, 1 }

/* Collective: creates a communicator whose ranks meet over TCP. `config` may be NULL. On failure *comm is NULL. */
SC_API scResult_t scCommInitRank(scComm_t* comm, int nranks, scUniqueId id, int rank, const scConfig_t* config);
/* Collective: creates a communicator over an MPI communicator, which is duplicated. `mpi_comm` points to an MPI_Comm;
 * NULL: MPI_COMM_WORLD. scUnsupported in a build without MPI. */
SC_API scResult_t scCommInitMPI(scComm_t* comm, const void* mpi_comm, const scConfig_t* config);

/* Local: stores the number of ranks, or this rank's number. */
SC_API scResult_t scCommCount(scComm_t comm, int* count);
SC_API scResult_t scCommUserRank(scComm_t comm, int* rank);
/* Local: stores "nccl", "tcp" or "mpi" in *name. The text is static. */
SC_API scResult_t scCommTransport(scComm_t comm, const char** name);

/* Local: stores scPeerFailed in *error when a call has broken the communicator, or another rank has given up or is
 * gone, and scSuccess otherwise. Does not wait; any thread may call it. scGetLastError has the reason. While another
 * thread is in a call of the communicator it stores scSuccess: that call itself ends at once when a rank fails. */
SC_API scResult_t scCommGetAsyncError(scComm_t comm, scResult_t* error);

/* Local: destroys the communicator and its buffers' handles; the buffers' memory is untouched. NULL is a success. */
SC_API scResult_t scCommDestroy(scComm_t comm);
/* As scCommDestroy, and tells the other ranks that this one gives up: their calls fail at once with scPeerFailed. */
SC_API scResult_t scCommAbort(scComm_t comm);

/* ---- buffers ---- */

typedef enum {
  scBfloat16 = 1,
  scFloat16 = 2,
  scFloat32 = 3,
  scFloat64 = 4,
  scFloat8e4m3 = 5,
  scFloat8e5m2 = 6,
  scInt8 = 7,
  scUint8 = 8,
  scInt16 = 9,
  scInt32 = 10,
  scInt64 = 11,
  scBool = 12,
  scInt4x2 = 13,       /* two integers of 4 bits in a byte; counts and shapes are those of bytes */
  scFloat4e2m1x2 = 14, /* two fp4 e2m1 numbers in a byte */
  scFloat8e8m0 = 15,   /* a power of two: an exponent alone, as UE8M0 scales */
  scUint16 = 16,
  scUint32 = 17,
  scUint64 = 18,
  scComplex64 = 19, /* two float32 */
  scFloat8e4m3fnuz = 20,
  scFloat8e5m2fnuz = 21,
  scFloat6e2m3 = 22, /* fp6, four numbers in three bytes; counts and shapes are those of bytes */
  scFloat6e3m2 = 23
} scDataType_t;

typedef enum { scMemoryHost = 0, scMemoryDevice = 1 } scMemory_t;

/* One tensor of a buffer. */
typedef struct {
  const char* name; /* UTF-8, distinct within a buffer. */
  void* data;       /* Contiguous, row-major, aligned to its elements. May be NULL when it has no elements. */
  scDataType_t dtype;
  int ndim;              /* 0 to 32; 0: one element. */
  const uint64_t* shape; /* ndim sizes. */
} scTensor_t;

/* Collective: registers `count` elements at `data`, with the same count, dtype and kind of memory on every rank. The
 * caller owns the memory, which must stay in place until scDeregister. Nothing is read or written yet. Device
 * memory needs the NCCL transport and lies on the communicator's device; else scUnsupported. On failure *buffer is
 * NULL; when only the arguments of some rank were wrong, the communicator stays usable. */
SC_API scResult_t scRegister(scComm_t comm, void* data, size_t count, scDataType_t dtype, scMemory_t memory,
                             scBuffer_t* buffer);
/* Collective: registers several tensors, which are broadcast as one buffer. Names, dtypes, shapes and order are the
 * same on every rank. The array is not used after the call. */
SC_API scResult_t scRegisterTensors(scComm_t comm, const scTensor_t* tensors, int ntensors, scMemory_t memory,
                                    scBuffer_t* buffer);
/* Local: ends the registration; the memory is untouched. NULL is a success. */
SC_API scResult_t scDeregister(scBuffer_t buffer);

/* Collective, in-place replacement of ncclBroadcast: brings the buffer of every rank to the bits that `root` holds.
 * Unlike ncclBroadcast it is synchronous with the host: scSuccess means that every rank holds the root's bits, and has
 * verified it by a digest. On device memory it starts after the work that is on `stream` now, and work enqueued on
 * `stream` afterwards sees the result; on host memory `stream` is ignored.
 *
 * The first broadcast from a root is an anchor: it compares digests of the whole buffers, and sends the whole buffer
 * unless the digests agree. Later broadcasts from the same root detect the elements that the root has changed since,
 * and send only these. A broadcast from a different root is an anchor again. The root keeps a copy of the buffer as the
 * other ranks hold it.
 *
 * Nobody may write into the buffer while the call runs; between calls only the root may. A write by another rank is
 * detected when a delta touches the element (scWrongBase, scDigestMismatch), by scAudit, and by the next anchor.
 *
 * On failure every rank gets an error. A buffer is then at its old version, or known to be wrong (scStats_t.dirty): the
 * next scBroadcast is an anchor, and repairs it. After scTimeout, and when the communicator itself has failed, every
 * later call is scPeerFailed: destroy the communicator, make a new one, and register again. */
SC_API scResult_t scBroadcast(scBuffer_t buffer, int root, struct CUstream_st* stream);

/* Local: re-reads the whole buffer and compares it with the state that the last broadcast has verified. Returns scDirty
 * when somebody has written into it; the next scBroadcast is then an anchor. Returns scSuccess without a comparison on
 * the last root, which may write, and before the first broadcast. */
SC_API scResult_t scAudit(scBuffer_t buffer);

/* Statistics of the last successful scBroadcast of a buffer on this rank. */
typedef struct {
  uint64_t version;     /* Version of the buffer, the same on every rank; 0 before the first broadcast. */
  uint64_t changed;     /* Number of elements that differed; an anchor that sends counts all elements. */
  uint64_t wire_bytes;  /* Bytes of the payload that one receiver gets. */
  uint64_t dense_bytes; /* Bytes of the buffer, which ncclBroadcast would have sent. */
  uint64_t broadcasts;  /* Number of successful broadcasts since registration. */
  uint64_t anchors;     /* Number of broadcasts that were anchors. */
  double seconds;       /* Duration of the whole call. */
  int anchor;           /* 1: the last broadcast was an anchor. */
  int dirty;            /* 1: the content is known to be wrong (now, not then). */
} scStats_t;

SC_API scResult_t scGetStats(scBuffer_t buffer, scStats_t* stats);

#ifdef __cplusplus
}
#endif

#endif
