// SPDX-License-Identifier: Apache-2.0

// A profiler for tests: NVTX loads it as NVTX_INJECTION64_PATH says, and it writes down what the domain "sparsecast"
// emits. The test program reads it through recorded_events().

#include <nvtx3/nvToolsExt.h>
#include <nvtx3/nvToolsExtPayload.h>

#include <cstring>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "trace/recorder.hpp"

namespace {

using sparsecast::test::RecordedEvent;

constexpr std::uint64_t kSchema = 77;

struct Recorder {
  std::mutex mutex;
  std::vector<std::string> strings;
  std::vector<std::string> open;
  std::vector<RecordedEvent> events;
};
Recorder& recorder() {
  static Recorder recorder;
  return recorder;
}

void record(RecordedEvent::Kind kind, const nvtxEventAttributes_t* event) {
  Recorder& into = recorder();
  const std::lock_guard<std::mutex> lock(into.mutex);
  RecordedEvent recorded;
  recorded.kind = kind;
  recorded.name = into.strings.at(reinterpret_cast<std::uintptr_t>(event->message.registered) - 1);
  recorded.depth = into.open.size();
  const auto* data = reinterpret_cast<const nvtxPayloadData_t*>(event->payload.ullValue);
  if (event->payloadType == NVTX_PAYLOAD_TYPE_EXT && event->reserved0 == 1 && data->schemaId == kSchema &&
      data->size == sizeof recorded.payload) {
    std::memcpy(&recorded.payload, data->payload, sizeof recorded.payload);
    recorded.has_payload = true;
  }
  into.events.push_back(recorded);
  if (kind == RecordedEvent::Kind::kPush) into.open.push_back(recorded.name);
}

nvtxDomainHandle_t NVTX_API create_domain(const char* name) {
  return std::strcmp(name, "sparsecast") == 0 ? reinterpret_cast<nvtxDomainHandle_t>(1) : nullptr;
}
nvtxStringHandle_t NVTX_API register_string(nvtxDomainHandle_t, const char* text) {
  const std::lock_guard<std::mutex> lock(recorder().mutex);
  recorder().strings.emplace_back(text);
  return reinterpret_cast<nvtxStringHandle_t>(recorder().strings.size());
}
int NVTX_API push(nvtxDomainHandle_t, const nvtxEventAttributes_t* event) {
  record(RecordedEvent::Kind::kPush, event);
  return 0;
}
void NVTX_API mark(nvtxDomainHandle_t, const nvtxEventAttributes_t* event) {
  record(RecordedEvent::Kind::kMark, event);
}
int NVTX_API pop(nvtxDomainHandle_t) {
  const std::lock_guard<std::mutex> lock(recorder().mutex);
  if (recorder().open.empty()) return -1;
  RecordedEvent recorded;
  recorded.kind = RecordedEvent::Kind::kPop;
  recorded.name = recorder().open.back();
  recorder().open.pop_back();
  recorded.depth = recorder().open.size();
  recorder().events.push_back(recorded);
  return 0;
}
std::uint64_t NVTX_API register_schema(nvtxDomainHandle_t, const nvtxPayloadSchemaAttr_t* schema) {
  return schema->numEntries == 4 && std::strcmp(schema->entries[1].name, "bytes") == 0 ? kSchema : 0;
}

}  // namespace

#define EXPORTED extern "C" __attribute__((visibility("default")))

EXPORTED int InitializeInjectionNvtx2(NvtxGetExportTableFunc_t get_export_table) {
  const auto* callbacks = static_cast<const NvtxExportTableCallbacks*>(get_export_table(NVTX_ETID_CALLBACKS));
  NvtxFunctionTable table = nullptr;
  unsigned size = 0;
  if (callbacks == nullptr || callbacks->GetModuleFunctionTable(NVTX_CB_MODULE_CORE2, &table, &size) == 0 ||
      size <= NVTX_CBID_CORE2_DomainCreateA) {
    return 0;
  }
  *table[NVTX_CBID_CORE2_DomainCreateA] = reinterpret_cast<NvtxFunctionPointer>(create_domain);
  *table[NVTX_CBID_CORE2_DomainRegisterStringA] = reinterpret_cast<NvtxFunctionPointer>(register_string);
  *table[NVTX_CBID_CORE2_DomainRangePushEx] = reinterpret_cast<NvtxFunctionPointer>(push);
  *table[NVTX_CBID_CORE2_DomainRangePop] = reinterpret_cast<NvtxFunctionPointer>(pop);
  *table[NVTX_CBID_CORE2_DomainMarkEx] = reinterpret_cast<NvtxFunctionPointer>(mark);
  return 1;
}

EXPORTED int InitializeInjectionNvtxExtension(nvtxExtModuleInfo_t* module) {
  if (module->moduleId != NVTX_EXT_PAYLOAD_MODULEID || module->segmentsCount == 0) return 0;
  module->segments[0].functionSlots[NVTX3EXT_CBID_nvtxPayloadSchemaRegister] =
      reinterpret_cast<std::intptr_t>(register_schema);
  return 1;
}

EXPORTED const std::vector<RecordedEvent>* recorded_events() { return &recorder().events; }
