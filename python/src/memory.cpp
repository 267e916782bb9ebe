// SPDX-License-Identifier: Apache-2.0
#include "memory.hpp"

#include <fmt/format.h>

namespace sparsecast::python {
namespace {

std::optional<DType> dtype_of(nb::dlpack::dtype type) {
  if (type.lanes != 1) return std::nullopt;
  const auto code = static_cast<nb::dlpack::dtype_code>(type.code);
  switch (code) {
    case nb::dlpack::dtype_code::Bfloat:
      return type.bits == 16 ? std::optional(DType::kBF16) : std::nullopt;
    case nb::dlpack::dtype_code::Bool:
      return type.bits == 8 ? std::optional(DType::kBool) : std::nullopt;
    case nb::dlpack::dtype_code::Float:
      if (type.bits == 16) return DType::kF16;
      if (type.bits == 32) return DType::kF32;
      return type.bits == 64 ? std::optional(DType::kF64) : std::nullopt;
    case nb::dlpack::dtype_code::Int:
      if (type.bits == 8) return DType::kI8;
      if (type.bits == 16) return DType::kI16;
      if (type.bits == 32) return DType::kI32;
      return type.bits == 64 ? std::optional(DType::kI64) : std::nullopt;
    case nb::dlpack::dtype_code::UInt:
      if (type.bits == 8) return DType::kU8;
      if (type.bits == 16) return DType::kU16;
      if (type.bits == 32) return DType::kU32;
      return type.bits == 64 ? std::optional(DType::kU64) : std::nullopt;
    case nb::dlpack::dtype_code::Complex:
      return type.bits == 64 ? std::optional(DType::kC64) : std::nullopt;
    default:
      return std::nullopt;
  }
}

DType named_dtype(const std::string& name) {
  if (const std::optional<DType> dtype = dtype_from_name(name)) return *dtype;
  throw Error(ErrorCode::kUnsupported, fmt::format("there is no dtype '{}': BF16, F16, F32, F8_E4M3, I32, ...", name));
}

std::string shape_text(const std::vector<std::uint64_t>& shape) { return fmt::format("[{}]", fmt::join(shape, ", ")); }

}  // namespace

Memory::Memory(nb::ndarray<> array, const std::optional<std::string>& dtype, bool writable)
    : array_(std::move(array)), writable_(writable) {
  const nb::dlpack::dtype type = array_.dtype();
  const std::optional<DType> own = dtype_of(type);
  if (dtype) {
    dtype_ = named_dtype(*dtype);
    if (type.lanes != 1 || element_size(dtype_) * 8 != type.bits) {
      throw Error(ErrorCode::kUsage, fmt::format("elements of {} bits cannot be {}", type.bits * type.lanes, *dtype));
    }
  } else if (own) {
    dtype_ = *own;
  } else {
    throw Error(ErrorCode::kUnsupported,
                fmt::format("an array of DLPack type code {}, {} bits: give the dtype by name", type.code, type.bits));
  }
  if (array_.device_type() == nb::device::cuda::value) {
    device_ = array_.device_id();
  } else if (array_.device_type() != nb::device::cpu::value && array_.device_type() != nb::device::cuda_host::value) {
    throw Error(ErrorCode::kUnsupported,
                fmt::format("memory of DLPack device type {}: only that of the CPU and of CUDA", array_.device_type()));
  }
  data_ = static_cast<std::byte*>(array_.data());
  for (std::size_t d = 0; d < array_.ndim(); ++d) {
    shape_.push_back(array_.shape(d));
    strides_.push_back(array_.stride(d));
  }
}

std::string Memory::device_name() const { return device_ < 0 ? "cpu" : fmt::format("cuda:{}", device_); }

std::uint64_t Memory::elements() const noexcept {
  std::uint64_t product = 1;
  for (const std::uint64_t extent : shape_) product *= extent;
  return product;
}

bool Memory::contiguous() const noexcept {
  if (elements() == 0) return true;
  std::int64_t expected = 1;
  for (std::size_t d = shape_.size(); d-- > 0;) {
    if (shape_[d] != 1 && strides_[d] != expected) return false;
    expected *= static_cast<std::int64_t>(shape_[d]);
  }
  return true;
}

void require_device_and_dtype(const Memory& one, const Memory& first, const std::string& first_name, DType dtype,
                              const char* says, const std::string& context) {
  if (one.device() != first.device()) {
    throw Error(ErrorCode::kUsage,
                fmt::format("it is on {}, and '{}' on {}: all must be on one device", one.device_name(), first_name,
                            first.device_name()),
                context);
  }
  // Array libraries have no name for the dtypes beyond kBool: their bytes come as uint8.
  if (one.dtype() != dtype && !(one.dtype() == DType::kU8 && dtype > DType::kBool)) {
    throw Error(ErrorCode::kUsage,
                fmt::format("it has dtype {}, and the {} says {}", to_string(one.dtype()), says, to_string(dtype)),
                context);
  }
}

void require_writable(const Memory& one, const std::string& context) {
  if (!one.writable()) throw Error(ErrorCode::kUsage, "its memory is read-only", context);
}

RankMemory rank_memory(const Layout& layout, std::size_t rank, const std::vector<Memory>& tensors, bool writable,
                       bool masters) {
  if (rank >= layout.ranks().size()) {
    throw Error(ErrorCode::kUsage, fmt::format("rank {} of a layout of {}", rank, layout.ranks().size()));
  }
  const std::vector<LocalTensor>& locals = layout.ranks()[rank].tensors;
  if (tensors.size() != locals.size()) {
    throw Error(ErrorCode::kUsage, fmt::format("{} tensors for a layout's {}", tensors.size(), locals.size()),
                fmt::format("rank {}", rank));
  }
  RankMemory out;
  out.kept = tensors;
  for (std::size_t t = 0; t < tensors.size(); ++t) {
    const Memory& one = tensors[t];
    const LocalTensor& local = locals[t];
    const std::string context = fmt::format("rank {}: local tensor '{}'", rank, local.name);
    const bool master = masters && local.dtype == DType::kBF16 && one.dtype() == DType::kF32;
    const DType dtype = master ? DType::kF32 : local.dtype;
    require_device_and_dtype(one, tensors[0], locals[0].name, dtype, "layout", context);
    if (one.elements() != local.elements) {
      throw Error(ErrorCode::kUsage,
                  fmt::format("it has {} elements, and the layout says {}", one.elements(), local.elements), context);
    }
    if (!one.contiguous()) throw Error(ErrorCode::kUsage, "it is not contiguous", context);
    if (writable) require_writable(one, context);
    out.tensors.push_back(one.ref(dtype));
  }
  return out;
}

std::vector<MutableBytes> contiguous_bytes(const TensorTable& table, const std::vector<Memory>& memory) {
  std::vector<MutableBytes> bytes;
  for (std::size_t i = 0; i < memory.size(); ++i) {
    if (!memory[i].contiguous()) {
      throw Error(ErrorCode::kUsage, "it is not contiguous", fmt::format("tensor '{}'", table[i].name));
    }
    bytes.emplace_back(memory[i].data(), memory[i].bytes());
  }
  return bytes;
}

TensorRef Memory::ref(DType dtype) const {
  return {data_, dtype, shape_, contiguous() ? std::vector<std::int64_t>{} : strides_, device_};
}

std::vector<TensorRef> tensors_for(const TensorTable& table, const std::vector<Memory>& memory, bool writable,
                                   const char* what) {
  if (memory.size() != table.size()) {
    throw Error(ErrorCode::kUsage, fmt::format("{} {}s for a table of {}", memory.size(), what, table.size()));
  }
  std::vector<TensorRef> refs;
  for (std::size_t i = 0; i < memory.size(); ++i) {
    const Memory& one = memory[i];
    const TensorSpec& spec = table[i];
    const std::string context = fmt::format("{} '{}'", what, spec.name);
    require_device_and_dtype(one, memory[0], table[0].name, spec.dtype, "table", context);
    if (one.shape() != spec.shape) {
      throw Error(
          ErrorCode::kUsage,
          fmt::format("it has shape {}, and the table says {}", shape_text(one.shape()), shape_text(spec.shape)),
          context);
    }
    if (writable) require_writable(one, context);
    refs.push_back(one.ref(spec.dtype));
  }
  return refs;
}

DeviceOptions device_options(int device, std::uintptr_t stream, double timeout,
                             std::optional<std::uint64_t> entry_bytes) {
  DeviceOptions options;
  options.device = device;
  // NOLINTNEXTLINE(performance-no-int-to-ptr): torch and cupy give streams as numbers.
  options.cuda_stream = reinterpret_cast<CUstream_st*>(stream);
  options.deadline = milliseconds(timeout);
  options.entry_bytes = entry_bytes;
  return options;
}

void bind_memory(nb::module_& m) {
  nb::class_<Memory>(m, "Memory",
                     "Memory of one tensor that another library owns: nothing is copied, and the owner is kept "
                     "alive. sparsecast.describe() makes it from torch, numpy and anything with DLPack or the "
                     "buffer protocol.")
      .def(
          "__init__",
          [](Memory* self, const nb::object& array, const std::optional<std::string>& dtype) {
            nb::ndarray<> writable;
            nb::ndarray<nb::ro> read_only;
            if (nb::try_cast(array, writable, false)) {
              new (self) Memory(std::move(writable), dtype, true);
            } else if (nb::try_cast(array, read_only, false)) {
              new (self) Memory(nb::ndarray<>(read_only.handle()), dtype, false);
            } else {
              throw nb::type_error("neither DLPack nor the buffer protocol");
            }
          },
          nb::arg("array"), nb::arg("dtype") = nb::none(),
          nb::sig("def __init__(self, array: object, dtype: str | None = None) -> None"),
          "Raises TypeError for an object with neither DLPack nor the buffer protocol.")
      .def_prop_ro(
          "dtype", [](const Memory& self) { return std::string(to_string(self.dtype())); },
          "Safetensors name of the dtype: \"BF16\", \"F32\", \"F8_E4M3\", ...")
      .def_prop_ro(
          "shape", [](const Memory& self) { return nb::tuple(nb::cast(self.shape())); },
          nb::for_getter(nb::sig("def shape(self, /) -> tuple[int, ...]")))
      .def_prop_ro(
          "strides", [](const Memory& self) { return nb::tuple(nb::cast(self.strides())); },
          nb::for_getter(nb::sig("def strides(self, /) -> tuple[int, ...]")), "In elements.")
      .def_prop_ro("data_ptr", [](const Memory& self) { return reinterpret_cast<std::uintptr_t>(self.data()); })
      .def_prop_ro("device", &Memory::device_name, "\"cpu\" or \"cuda:0\".")
      .def_prop_ro("nbytes", &Memory::bytes, "Bytes of the elements, without gaps between them.")
      .def_prop_ro("elements", &Memory::elements)
      .def_prop_ro("contiguous", &Memory::contiguous)
      .def_prop_ro("writable", &Memory::writable)
      .def("__repr__", [](const Memory& self) {
        return fmt::format("<sparsecast.Memory {} {} on {}>", to_string(self.dtype()), shape_text(self.shape()),
                           self.device_name());
      });
}

}  // namespace sparsecast::python
