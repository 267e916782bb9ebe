// SPDX-License-Identifier: Apache-2.0
#pragma once

// Paths from Python, wherever one is taken: a str or an os.PathLike.

#include <nanobind/nanobind.h>
#include <nanobind/stl/filesystem.h>

#include <string>

namespace sparsecast::python {

/// Path as text. A parameter of this type takes a str or an os.PathLike from Python.
struct PathText : std::string {};

}  // namespace sparsecast::python

template <>
struct nanobind::detail::type_caster<sparsecast::python::PathText> {
  NB_TYPE_CASTER(sparsecast::python::PathText, const_name("str | os.PathLike[str]"))

  bool from_python(handle source, std::uint8_t flags, cleanup_list* cleanup) noexcept {
    make_caster<std::filesystem::path> path;
    if (!path.from_python(source, flags, cleanup)) return false;
    static_cast<std::string&>(value) = path.value.string();
    return true;
  }
};
