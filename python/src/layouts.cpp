// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>
#include <nanobind/operators.h>
#include <nanobind/stl/pair.h>

#include "bindings.hpp"
#include "sparsecast/layout.hpp"

namespace sparsecast::python {
namespace {

std::shared_ptr<Layout> make_layout(const TensorTable& table, std::vector<RankLayout> ranks,
                                    const std::vector<std::pair<std::string, std::string>>& ties) {
  std::vector<TiedTensor> tied;
  for (const auto& [alias, original] : ties) tied.push_back({alias, original});
  return std::make_shared<Layout>(table, std::move(ranks), std::move(tied));
}

LocalTensor make_local(const std::string& name, const std::string& dtype, std::uint64_t elements) {
  const std::optional<DType> known = dtype_from_name(dtype);
  if (!known) {
    throw Error(ErrorCode::kUnsupported, fmt::format("there is no dtype '{}'", dtype),
                fmt::format("local tensor '{}'", name));
  }
  return {name, *known, elements};
}

std::vector<std::pair<std::string, std::string>> ties_of(const Layout& layout) {
  std::vector<std::pair<std::string, std::string>> ties;
  for (const TiedTensor& tie : layout.ties()) ties.emplace_back(tie.alias, tie.original);
  return ties;
}

void bind_parts(nb::module_& m) {
  nb::class_<Box>(m, "Box",
                  "A rectangular part of a canonical tensor: elements [offset, offset + extent) in each dimension.")
      .def(
          "__init__",
          [](Box* self, std::vector<std::uint64_t> offset, std::vector<std::uint64_t> extent) {
            new (self) Box{std::move(offset), std::move(extent)};
          },
          nb::arg("offset"), nb::arg("extent"))
      .def_prop_ro(
          "offset", [](const Box& self) { return nb::tuple(nb::cast(self.offset)); },
          nb::for_getter(nb::sig("def offset(self, /) -> tuple[int, ...]")))
      .def_prop_ro(
          "extent", [](const Box& self) { return nb::tuple(nb::cast(self.extent)); },
          nb::for_getter(nb::sig("def extent(self, /) -> tuple[int, ...]")))
      .def_prop_ro("elements", &Box::elements)
      .def(nb::self == nb::self, nb::sig("def __eq__(self, other: object, /) -> bool"))
      .def("__hash__",
           [](const Box& self) { return nb::hash(nb::make_tuple(nb::cast(self.offset), 0).attr("__repr__")()); })
      .def("__repr__", [](const Box& self) { return fmt::format("Box({})", to_string(self)); });
  nb::class_<LocalTensor>(m, "LocalTensor", "A contiguous tensor in the memory of a rank, named as its framework does.")
      .def(
          "__init__",
          [](LocalTensor* self, const std::string& name, const std::string& dtype, std::uint64_t elements) {
            new (self) LocalTensor(make_local(name, dtype, elements));
          },
          nb::arg("name"), nb::arg("dtype"), nb::arg("elements"))
      .def_ro("name", &LocalTensor::name)
      .def_prop_ro("dtype", [](const LocalTensor& self) { return std::string(to_string(self.dtype)); })
      .def_ro("elements", &LocalTensor::elements)
      .def("__repr__", [](const LocalTensor& self) {
        return fmt::format("LocalTensor('{}', {}, {})", self.name, to_string(self.dtype), self.elements);
      });
  nb::class_<Shard>(
      m, "Shard",
      "A box of a canonical tensor where it lies in a local tensor: its element (i, j, ...), counted from "
      "the box's first, is element first + i * strides[0] + j * strides[1] + ... of the local tensor.")
      .def(
          "__init__",
          [](Shard* self, std::uint32_t tensor, Box box, std::uint32_t local, std::uint64_t first,
             std::vector<std::int64_t> strides,
             bool has_base) { new (self) Shard{tensor, std::move(box), local, first, std::move(strides), has_base}; },
          nb::arg("tensor"), nb::arg("box"), nb::arg("local"), nb::arg("first"), nb::arg("strides"),
          nb::arg("has_base") = true)
      .def_ro("tensor", &Shard::tensor)
      .def_ro("box", &Shard::box)
      .def_ro("local", &Shard::local)
      .def_ro("first", &Shard::first)
      .def_prop_ro(
          "strides", [](const Shard& self) { return nb::tuple(nb::cast(self.strides)); },
          nb::for_getter(nb::sig("def strides(self, /) -> tuple[int, ...]")))
      .def_ro("has_base", &Shard::has_base)
      .def("__repr__", [](const Shard& self) {
        return fmt::format("Shard(tensor {}, {} at element {} of local {})", self.tensor, to_string(self.box),
                           self.first, self.local);
      });
  nb::class_<RankLayout>(m, "RankLayout", "Local tensors and shards of one rank.")
      .def(
          "__init__",
          [](RankLayout* self, std::vector<LocalTensor> tensors, std::vector<Shard> shards, const std::string& node) {
            new (self) RankLayout{node, std::move(tensors), std::move(shards)};
          },
          nb::arg("tensors"), nb::arg("shards"), nb::arg("node") = "")
      .def_prop_ro("tensors", [](const RankLayout& self) { return self.tensors; })
      .def_prop_ro("shards", [](const RankLayout& self) { return self.shards; })
      .def_ro("node", &RankLayout::node);
}

}  // namespace

void bind_layouts(nb::module_& m) {
  bind_parts(m);
  nb::class_<Layout>(m, "Layout",
                     "Canonical tensors of one side, a trainer or an engine, and where its ranks hold them. "
                     "Immutable. Raises UsageError naming the rank and the tensor of anything inconsistent.")
      .def(nb::new_(&make_layout), nb::arg("table"), nb::arg("ranks"),
           nb::arg("ties") = std::vector<std::pair<std::string, std::string>>{})
      .def_prop_ro("table", [](const Layout& self) { return self.table(); })
      .def_prop_ro("ranks", [](const Layout& self) { return self.ranks(); })
      .def_prop_ro("ties", &ties_of, "(alias, original): two names of one tensor.")
      .def_prop_ro("hash", [](const Layout& self) { return to_hex(self.hash()); })
      .def(
          "serialize", [](const Layout& self) { return to_python(self.serialize()); }, "For ranks to exchange.")
      .def_static(
          "parse", [](const nb::bytes& bytes) { return std::make_shared<Layout>(Layout::parse(bytes_of(bytes))); },
          nb::arg("data"), "Inverse of serialize; CorruptError for anything else.")
      .def("to_json", [](const Layout& self) { return layout_to_json(self); })
      .def_static(
          "from_json",
          [](const std::string& text, const std::string& name) {
            return std::make_shared<Layout>(parse_layout_json(text, name));
          },
          nb::arg("text"), nb::arg("name") = "layout", "Reads the JSON form of docs/layout-format.md.")
      .def(
          "__eq__", [](const Layout& self, const Layout& other) { return self.hash() == other.hash(); },
          nb::is_operator(), nb::sig("def __eq__(self, other: object, /) -> bool"))
      .def("__hash__", [](const Layout& self) { return self.hash().lo; })
      .def("__repr__", [](const Layout& self) {
        return fmt::format("<sparsecast.Layout of {} tensors on {} ranks>", self.table().size(), self.ranks().size());
      });
}

}  // namespace sparsecast::python
