// SPDX-License-Identifier: Apache-2.0
#pragma once

// The functions of the CUDA runtime that host code calls, on host memory, and synchronous unless copies are deferred.
// Thread-safe.

#include <chrono>
#include <cstddef>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <vector>

#include "cuda_emulation/memory.hpp"
#include "cuda_emulation/orders.hpp"

struct CUstream_st;
using cudaStream_t = CUstream_st*;
struct CUevent_st;
/// Operations in the order in which they were captured, each for the stream that it was captured from, or for the one
/// that the graph is launched on if that was the first.
struct CUgraph_st {
  cudaStream_t first = nullptr;
  std::vector<std::function<void(cudaStream_t first)>> operations;
  std::set<cudaStream_t> joined;               ///< Streams that are captured as well.
  std::set<CUevent_st*> events;                ///< Whose last record was captured.
  std::map<cudaStream_t, std::size_t> behind;  ///< For each of them, the operations that `first` waits for.
  bool node_priorities = false;                ///< Kernels have the priority of their stream, not of the launch.
};
using cudaGraph_t = CUgraph_st*;
using cudaGraphExec_t = CUgraph_st*;
struct CUevent_st {
  int records = 0;  ///< How often the event was recorded, and waited for by a stream; for tests.
  int waits = 0;
  sparsecast::emulation::orders::Clock before;  ///< Operations before the last record.
  CUgraph_st* graph = nullptr;                  ///< Where the last record was captured.
  cudaStream_t stream = nullptr;                ///< From which it was captured then,
  std::size_t operations = 0;                   ///< behind so many operations of the graph.
  int device = 0;
};
using cudaEvent_t = CUevent_st*;

enum cudaStreamCaptureStatus { cudaStreamCaptureStatusNone = 0, cudaStreamCaptureStatusActive = 1 };
enum cudaStreamCaptureMode {
  cudaStreamCaptureModeGlobal = 0,
  cudaStreamCaptureModeThreadLocal = 1,
  cudaStreamCaptureModeRelaxed = 2
};

enum cudaError_t {
  cudaSuccess = 0,
  cudaErrorInvalidValue = 1,
  cudaErrorMemoryAllocation = 2,
  cudaErrorCudartUnloading = 4,
  cudaErrorInvalidPitchValue = 12,
  cudaErrorStubLibrary = 34,
  cudaErrorInsufficientDriver = 35,
  cudaErrorCallRequiresNewerDriver = 36,
  cudaErrorDevicesUnavailable = 46,
  cudaErrorInvalidDeviceFunction = 98,
  cudaErrorNoDevice = 100,
  cudaErrorInvalidDevice = 101,
  cudaErrorInvalidKernelImage = 200,
  cudaErrorNoKernelImageForDevice = 209,
  cudaErrorECCUncorrectable = 214,
  cudaErrorNvlinkUncorrectable = 220,
  cudaErrorJitCompilerNotFound = 221,
  cudaErrorUnsupportedPtxVersion = 222,
  cudaErrorJitCompilationDisabled = 223,
  cudaErrorInvalidResourceHandle = 400,
  cudaErrorNotReady = 600,
  cudaErrorIllegalAddress = 700,
  cudaErrorLaunchOutOfResources = 701,
  cudaErrorLaunchTimeout = 702,
  cudaErrorAssert = 710,
  cudaErrorHardwareStackError = 714,
  cudaErrorLaunchFailure = 719,
  cudaErrorSystemNotReady = 802,
  cudaErrorSystemDriverMismatch = 803,
  cudaErrorCompatNotSupportedOnDevice = 804,
  cudaErrorStreamCaptureUnsupported = 900,
  cudaErrorStreamCaptureInvalidated = 901,
  cudaErrorStreamCaptureUnjoined = 904,
  cudaErrorCapturedEvent = 907,
  cudaErrorStreamCaptureWrongThread = 908
};
enum cudaMemcpyKind {
  cudaMemcpyHostToDevice = 1,
  cudaMemcpyDeviceToHost = 2,
  cudaMemcpyDeviceToDevice = 3,
  cudaMemcpyDefault = 4  ///< As the addresses say.
};
enum cudaDeviceAttr {
  cudaDevAttrClockRate = 13,
  cudaDevAttrMultiProcessorCount = 16,
  cudaDevAttrMemoryClockRate = 36,
  cudaDevAttrGlobalMemoryBusWidth = 37,
  cudaDevAttrComputeCapabilityMajor = 75,
  cudaDevAttrComputeCapabilityMinor = 76,
  cudaDevAttrConcurrentManagedAccess = 89
};
struct cudaFuncAttributes {};
enum cudaFuncAttribute { cudaFuncAttributePreferredSharedMemoryCarveout = 9 };
enum cudaDriverEntryPointQueryResult { cudaDriverEntryPointSuccess = 0 };
enum cudaLimit { cudaLimitMaxL2FetchGranularity = 5 };
struct cudaUUID_t {
  char bytes[16];
};
enum cudaMemoryType { cudaMemoryTypeUnregistered = 0, cudaMemoryTypeHost, cudaMemoryTypeDevice, cudaMemoryTypeManaged };
struct cudaPointerAttributes {
  cudaMemoryType type;
  int device;
};
struct cudaDeviceProp {
  char name[256];
  cudaUUID_t uuid;
  std::size_t totalGlobalMem;
  int major, minor;
  int multiProcessorCount;
  int l2CacheSize;
};

inline constexpr unsigned cudaStreamNonBlocking = 1;
inline constexpr unsigned cudaEventDisableTiming = 2;
inline constexpr unsigned long long cudaEnableDefault = 0;
inline constexpr unsigned long long cudaGraphInstantiateFlagUseNodePriority = 8;
inline constexpr int cudaSharedmemCarveoutMaxShared = 100;
#define CUDART_VERSION 13000

/// Returns the last error of the calling thread and clears it.
cudaError_t cudaGetLastError();
/// Returns the last error and keeps it.
cudaError_t cudaPeekAtLastError();
const char* cudaGetErrorName(cudaError_t error);
const char* cudaGetErrorString(cudaError_t error);
/// Reports two devices that share one memory.
cudaError_t cudaGetDeviceCount(int* count);
cudaError_t cudaGetDevice(int* device);
cudaError_t cudaSetDevice(int device);
cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int device);
/// Knows cuDevicePrimaryCtxGetState and cuPointerGetAttributes alone.
cudaError_t cudaGetDriverEntryPointByVersion(const char* symbol, void** function, unsigned version,
                                             unsigned long long flags, cudaDriverEntryPointQueryResult* found);

/// New memory holds random bytes.
cudaError_t cudaMalloc(void** at, std::size_t bytes);
cudaError_t cudaFree(void* at);
/// Says what free_memory() has set, or what is left of limit_memory() if that is less.
cudaError_t cudaMemGetInfo(std::size_t* free, std::size_t* total);
/// All memory that is not pinned counts as the current device's.
cudaError_t cudaPointerGetAttributes(cudaPointerAttributes* attributes, const void* at);
cudaError_t cudaMallocHost(void** at, std::size_t bytes);
cudaError_t cudaFreeHost(void* at);
cudaError_t cudaMemcpyAsync(void* to, const void* from, std::size_t bytes, cudaMemcpyKind kind, cudaStream_t stream);
cudaError_t cudaMemcpy2DAsync(void* to, std::size_t to_pitch, const void* from, std::size_t from_pitch,
                              std::size_t width, std::size_t height, cudaMemcpyKind kind, cudaStream_t stream);
cudaError_t cudaMemsetAsync(void* at, int value, std::size_t bytes, cudaStream_t stream);
cudaError_t cudaFuncGetAttributes(cudaFuncAttributes* attributes, const void* kernel);
cudaError_t cudaFuncSetAttribute(const void* kernel, cudaFuncAttribute attribute, int value);
cudaError_t cudaStreamQuery(cudaStream_t stream);
cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned flags);
cudaError_t cudaStreamCreateWithPriority(cudaStream_t* stream, unsigned flags, int priority);
cudaError_t cudaDeviceGetStreamPriorityRange(int* least, int* greatest);
cudaError_t cudaStreamDestroy(cudaStream_t stream);
cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned flags);
cudaError_t cudaEventDestroy(cudaEvent_t event);
/// Refuses an event and a stream of different devices, as kernels and memsets refuse streams of another device than the
/// current one. Copies, queries and waits may be of any device.
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream);
cudaError_t cudaEventQuery(cudaEvent_t event);
cudaError_t cudaStreamIsCapturing(cudaStream_t stream, cudaStreamCaptureStatus* status);
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned flags);
/// Until the capture ends, calls that it forbids fail and invalidate it. CUDA names no list of those, only "potentially
/// unsafe" ones; here they are those that allocate or free, those by which the host waits, and loading a kernel.
cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode mode);
cudaError_t cudaThreadExchangeStreamCaptureMode(cudaStreamCaptureMode* mode);
/// Refuses a capture in which the first stream does not wait for all that others do, and one that was invalidated.
cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t* graph);
cudaError_t cudaGraphInstantiate(cudaGraphExec_t* executable, cudaGraph_t graph, unsigned long long flags);
cudaError_t cudaGraphLaunch(cudaGraphExec_t executable, cudaStream_t stream);
cudaError_t cudaGraphDestroy(cudaGraph_t graph);
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t executable);

// Runtime functions of benchmarks. Nothing takes time here: one millisecond is between any two events.
cudaError_t cudaRuntimeGetVersion(int* version);
cudaError_t cudaDriverGetVersion(int* version);
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int device);
cudaError_t cudaDeviceSetLimit(cudaLimit limit, std::size_t value);
cudaError_t cudaStreamSynchronize(cudaStream_t stream);
cudaError_t cudaEventCreate(cudaEvent_t* event);
cudaError_t cudaEventElapsedTime(float* ms, cudaEvent_t begin, cudaEvent_t end);

namespace sparsecast::emulation {

inline constexpr std::size_t kMuchMemory = std::size_t{1} << 36;

/// Runs an operation of the device for a stream.
class OnStream {
 public:
  explicit OnStream(cudaStream_t stream);

 private:
  DeviceAtWork at_work_;
  std::optional<orders::Operation> operation_;
};

/// Counts since the start of the program, for tests.
struct RuntimeCounts {
  std::size_t allocations = 0;
  std::size_t live_allocations = 0;
  std::size_t objects = 0;         ///< Streams and events that were made.
  std::size_t copied_bytes = 0;    ///< Bytes copied by cudaMemcpyAsync and cudaMemcpy2DAsync.
  std::size_t queries = 0;         ///< Of streams and events; each answers at once, so these are the host's waits.
  std::size_t copies = 0;          ///< Calls of these two functions.
  std::size_t bus_bytes = 0;       ///< Bytes that they copied between host and device.
  std::size_t launches = 0;        ///< Launches by the host, of kernels and of graphs.
  std::size_t late_loads = 0;      ///< Launches of kernels that nothing had loaded before.
  std::size_t kernels = 0;         ///< That ran, also by graphs.
  std::size_t urgent_kernels = 0;  ///< Of these, with a higher priority than the usual one.
  std::size_t shared_memory_kernels = 0;  ///< Of these, that prefer the most shared memory.
  /// Copies between the device and memory of the host that is not pinned: they may block beyond any deadline.
  std::size_t pageable_copies = 0;

  /// Returns what was counted since `before`.
  RuntimeCounts since(const RuntimeCounts& before) const;
};
RuntimeCounts runtime_counts();
/// Returns what the calling thread has counted.
RuntimeCounts thread_counts();

/// Bytes that are allocated and not freed, and the most there were at a time.
struct HeldMemory {
  std::size_t device = 0;
  std::size_t pinned = 0;
  std::size_t most_device = 0;
  std::size_t most_pinned = 0;
};
/// Returns what the calling thread has allocated and any thread has not freed.
HeldMemory held_memory();
/// Begins to look for the most again, from what there is now.
void forget_most_memory();

/// Returns whether a call has made a context on the device: any that needs one, on the device that is current then.
bool has_context(int device);
/// Takes the contexts of all devices for gone.
void forget_contexts();

/// Runs a kernel on a grid for a stream, or captures it, and counts the launch.
cudaError_t launch_grid(cudaStream_t stream, unsigned ctas, unsigned threads, const void* kernel,
                        std::function<void()> call);
/// Delays the copies of this thread as long as CUDA may: until the host queries a stream, a launch, or the release of
/// memory. A copy that the program orders wrongly then has wrong bytes. False ends it.
void defer_copies(bool defer);
/// Runs the deferred copies that are left.
void finish_copies();
/// Says that every stream is being captured into a graph, or that none is.
void capture_streams(bool capture);
/// Answers that many of the next queries of this thread whether a stream is done with cudaErrorNotReady.
void be_busy(int questions);
/// Does so for some time.
void be_busy_for(std::chrono::milliseconds time);
/// Makes the allocation after `successes` more fail; a negative number means none.
void fail_allocation_after(int successes);
/// Sets the bytes that devices say they have free, for this thread; at first it is much.
void free_memory(std::size_t bytes);
/// Sets the memory that a device has; at first it is much. Memory that was allocated while the device was current
/// counts.
void limit_memory(int device, std::size_t bytes = kMuchMemory);
/// Makes every call with that device as the current one fail from now on, as after an illegal access of a kernel; with
/// cudaSuccess no longer.
void break_device(int device, cudaError_t error);
/// Makes the attribute 0 on all devices, or what it was at first.
void lack(cudaDeviceAttr attribute, bool lacks);
/// Makes the driver say that there is no memory at these addresses, to this thread; 0 bytes end it.
void take_away(const void* at, std::size_t bytes);

}  // namespace sparsecast::emulation
