// SPDX-License-Identifier: Apache-2.0
#pragma once

// Ranges for profilers that follow NVTX, in the domain "sparsecast"; docs/tracing.md lists them. Without a profiler a
// range costs a test of a pointer; in a build without NVTX's headers it costs nothing.
//
//     const TraceRange<"encode"> range({.version = header.version});

#include <algorithm>
#include <cstddef>
#include <cstdint>

#if defined(SPARSECAST_HAVE_NVTX)
#include <nvtx3/nvToolsExt.h>
#include <nvtx3/nvToolsExtPayload.h>
#endif

namespace sparsecast {

/// Numbers that a profiler shows with a range; a field that is not known is zero.
struct TracePayload {
  std::uint64_t version = 0;
  std::uint64_t bytes = 0;
  std::uint64_t changed = 0;  ///< Number of changed elements.
  double density = 0;         ///< Number of changed elements divided by the number of all elements.
};

inline double trace_density(std::uint64_t changed, std::uint64_t elements) {
  return elements == 0 ? 0 : static_cast<double>(changed) / static_cast<double>(elements);
}

/// A string literal that can be a template argument, so that each name of a range is registered once.
template <std::size_t kSize>
struct TraceName {
  constexpr TraceName(const char (&literal)[kSize]) { std::copy_n(literal, kSize, text); }
  char text[kSize] = {};
};

#if defined(SPARSECAST_HAVE_NVTX)

/// The library's NVTX domain, with the layout of TracePayload for profilers that know extended payloads.
class TraceDomain {
 public:
  static const TraceDomain& instance() {
    static const TraceDomain domain;
    return domain;
  }
  nvtxDomainHandle_t handle() const noexcept { return handle_; }

  /// Calls use(attributes) with the attributes of an event that has this name and this payload. For a profiler that
  /// does not know extended payloads, the payload is TracePayload::bytes alone.
  template <class Use>
  void with_event(nvtxStringHandle_t name, const TracePayload& payload, const Use& use) const {
    nvtxEventAttributes_t event{};
    event.version = NVTX_VERSION;
    event.size = NVTX_EVENT_ATTRIB_STRUCT_SIZE;
    event.messageType = NVTX_MESSAGE_TYPE_REGISTERED;
    event.message.registered = name;
    nvtxPayloadData_t data{schema_, sizeof payload, &payload};
    if (schema_ != 0) {
      event.payloadType = NVTX_PAYLOAD_TYPE_EXT;
      event.payload.ullValue = reinterpret_cast<std::uintptr_t>(&data);
      event.reserved0 = 1;  // Number of payloads that follow.
    } else {
      event.payloadType = NVTX_PAYLOAD_TYPE_UNSIGNED_INT64;
      event.payload.ullValue = payload.bytes;
    }
    use(event);
  }

 private:
  TraceDomain() : handle_(nvtxDomainCreateA("sparsecast")) {
    nvtxPayloadSchemaEntry_t entries[4] = {};
    const auto entry = [&entries](std::size_t i, std::uint64_t type, const char* name, std::size_t offset) {
      entries[i].type = type;
      entries[i].name = name;
      entries[i].offset = offset;
    };
    entry(0, NVTX_PAYLOAD_ENTRY_TYPE_UINT64, "version", offsetof(TracePayload, version));
    entry(1, NVTX_PAYLOAD_ENTRY_TYPE_UINT64, "bytes", offsetof(TracePayload, bytes));
    entry(2, NVTX_PAYLOAD_ENTRY_TYPE_UINT64, "changed", offsetof(TracePayload, changed));
    entry(3, NVTX_PAYLOAD_ENTRY_TYPE_DOUBLE, "density", offsetof(TracePayload, density));
    nvtxPayloadSchemaAttr_t schema{};
    schema.fieldMask = NVTX_PAYLOAD_SCHEMA_ATTR_FIELD_NAME | NVTX_PAYLOAD_SCHEMA_ATTR_FIELD_TYPE |
                       NVTX_PAYLOAD_SCHEMA_ATTR_FIELD_ENTRIES | NVTX_PAYLOAD_SCHEMA_ATTR_FIELD_NUM_ENTRIES |
                       NVTX_PAYLOAD_SCHEMA_ATTR_FIELD_STATIC_SIZE;
    schema.name = "sparsecast";
    schema.type = NVTX_PAYLOAD_SCHEMA_TYPE_STATIC;
    schema.entries = entries;
    schema.numEntries = 4;
    schema.payloadStaticSize = sizeof(TracePayload);
    schema_ = nvtxPayloadSchemaRegister(handle_, &schema);
  }

  nvtxDomainHandle_t handle_;
  std::uint64_t schema_ = 0;
};

/// A profiler range from construction to the end of the scope, on the calling thread.
template <TraceName kName>
class TraceRange {
 public:
  explicit TraceRange(const TracePayload& payload = {}) {
    const TraceDomain& domain = TraceDomain::instance();
    domain.with_event(name(), payload,
                      [&](const nvtxEventAttributes_t& event) { nvtxDomainRangePushEx(domain.handle(), &event); });
  }
  ~TraceRange() { nvtxDomainRangePop(TraceDomain::instance().handle()); }
  TraceRange(const TraceRange&) = delete;
  TraceRange& operator=(const TraceRange&) = delete;

  /// Adds a mark of the same name inside the range, for values known only near its end.
  void mark(const TracePayload& payload) const {
    const TraceDomain& domain = TraceDomain::instance();
    domain.with_event(name(), payload,
                      [&](const nvtxEventAttributes_t& event) { nvtxDomainMarkEx(domain.handle(), &event); });
  }

 private:
  static nvtxStringHandle_t name() {
    static const nvtxStringHandle_t handle = nvtxDomainRegisterStringA(TraceDomain::instance().handle(), kName.text);
    return handle;
  }
};

#else

template <TraceName kName>
class TraceRange {
 public:
  explicit TraceRange(const TracePayload& = {}) {}
  ~TraceRange() {}  // Not trivial, so that compilers do not warn of an unused variable.
  TraceRange(const TraceRange&) = delete;
  TraceRange& operator=(const TraceRange&) = delete;
  void mark(const TracePayload&) const {}
};

#endif

}  // namespace sparsecast
