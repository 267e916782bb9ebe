// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>
#include <nanobind/stl/tuple.h>

#include "bindings.hpp"
#include "memory.hpp"
#include "sparsecast/digest.hpp"
#include "sparsecast/tensor.hpp"

namespace sparsecast::python {
namespace {

/// Entry of a tensor table as Python gives it: (name, safetensors dtype, shape).
using PythonSpec = std::tuple<std::string, std::string, std::vector<std::uint64_t>>;

TensorTable make_table(const std::vector<PythonSpec>& tensors) {
  std::vector<TensorSpec> specs;
  for (const auto& [name, dtype, shape] : tensors) {
    const std::optional<DType> known = dtype_from_name(dtype);
    if (!known) {
      throw Error(ErrorCode::kUnsupported, fmt::format("there is no dtype '{}'", dtype),
                  fmt::format("tensor '{}'", name));
    }
    specs.push_back({name, *known, shape});
  }
  return TensorTable(std::move(specs));
}

nb::tuple entry(const TensorTable& table, std::int64_t i) {
  const auto size = static_cast<std::int64_t>(table.size());
  if (i < -size || i >= size) throw nb::index_error("no such tensor");
  const TensorSpec& spec = table[static_cast<std::size_t>(i < 0 ? i + size : i)];
  return nb::make_tuple(spec.name, std::string(to_string(spec.dtype)), nb::tuple(nb::cast(spec.shape)));
}

std::string digest(const TensorTable& table, const std::vector<Memory>& memory, int threads) {
  const std::vector<TensorRef> tensors = tensors_for(table, memory, false, "tensor");
  if (device_of(tensors) != kHostMemory) {
    throw Error(ErrorCode::kUnsupported, "digests of device memory are taken by its publisher");
  }
  const GilRelease release;
  return to_hex(sum(digest_tensors(table, tensors, threads)).value);
}

}  // namespace

Hash128 hash_from_python(const std::string& text, const char* what) {
  if (text.size() != 32 || text.find_first_not_of("0123456789abcdef") != std::string::npos) {
    throw Error(ErrorCode::kUsage, "it must be 32 lower-case hexadecimal digits", what);
  }
  return hash_from_hex(text);
}

EncodeOptions encode_options(const std::string& positions, const std::string& values,
                             const std::optional<std::string>& objective, std::uint32_t block_changes, int zstd_level,
                             std::uint32_t frame_capacity, int threads) {
  EncodeOptions options;
  const auto mode = position_mode_from_name(positions);
  if (!mode) throw Error(ErrorCode::kUsage, fmt::format("there is no position codec '{}'", positions));
  const auto codec = value_codec_from_name(values);
  if (!codec) throw Error(ErrorCode::kUsage, fmt::format("there is no value codec '{}': raw, xor, ulp", values));
  options.positions = *mode;
  options.values = *codec;
  if (objective) {
    options.objective = objective_from_name(*objective);
    if (!options.objective) {
      throw Error(
          ErrorCode::kUsage,
          fmt::format("there is no objective '{}': speed, size, or a rate in Mb/s, Gb/s, MB/s or GB/s", *objective));
    }
  }
  options.block_changes = block_changes;
  options.zstd_level = zstd_level;
  options.frame_capacity = frame_capacity;
  options.threads = threads;
  return options;
}

void bind_tables(nb::module_& m) {
  nb::class_<TensorTable>(m, "TensorTable",
                          "Ordered list of the tensors of a stream: (name, dtype, shape), dtypes by safetensors "
                          "names. Both ends must agree; they compare `hash`. Immutable.")
      .def(
          "__init__",
          [](TensorTable* self, const std::vector<PythonSpec>& tensors) {
            new (self) TensorTable(make_table(tensors));
          },
          nb::arg("tensors"))
      .def("__len__", &TensorTable::size)
      .def("__getitem__", &entry, nb::sig("def __getitem__(self, index: int, /) -> tuple[str, str, tuple[int, ...]]"))
      .def(
          "__iter__",
          [](const TensorTable& self) {
            nb::list entries;
            for (std::size_t i = 0; i < self.size(); ++i) entries.append(entry(self, static_cast<std::int64_t>(i)));
            return nb::iter(entries);
          },
          nb::sig("def __iter__(self, /) -> collections.abc.Iterator[tuple[str, str, tuple[int, ...]]]"))
      .def("find", &TensorTable::find, nb::arg("name"), "Index of the tensor, or None.")
      .def_prop_ro("hash", [](const TensorTable& self) { return to_hex(self.hash()); })
      .def_prop_ro("elements", &TensorTable::elements)
      .def_prop_ro("nbytes", &TensorTable::bytes)
      .def(
          "__eq__", [](const TensorTable& self, const TensorTable& other) { return self.hash() == other.hash(); },
          nb::is_operator(), nb::sig("def __eq__(self, other: object, /) -> bool"))
      .def("__hash__", [](const TensorTable& self) { return self.hash().lo; })
      .def("__repr__", [](const TensorTable& self) {
        return fmt::format("<sparsecast.TensorTable of {} tensors, {} bytes>", self.size(), self.bytes());
      });
  m.def("digest", &digest, nb::arg("table"), nb::arg("tensors"), nb::arg("threads") = 1,
        "Returns the state digest of tensors in host memory, as `sparsecast digest` prints it for such a "
        "checkpoint: 32 hexadecimal digits. Reads every byte. Raises UsageError naming a tensor that does not fit "
        "the table.");
}

}  // namespace sparsecast::python
