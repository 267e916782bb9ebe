// SPDX-License-Identifier: Apache-2.0
#pragma once

// Location of a log, from Python: a directory or a bucket as text, or an object that stores it
// (sparsecast.stores.Store).

#include <chrono>
#include <memory>
#include <string>

#include "bindings.hpp"
#include "path_text.hpp"
#include "sparsecast/object_store.hpp"

namespace sparsecast::python {

/// Returns a store that calls the methods of a Python object, in whatever thread it is called from; see the class
/// sparsecast.stores.Store. It keeps a reference to the object. Needs the interpreter lock, here alone.
std::shared_ptr<ObjectStore> store_in_python(nb::object object);

/// A parameter of this type takes a str, an os.PathLike or a sparsecast.stores.Store from Python.
class StoreLocation {
 public:
  StoreLocation() = default;
  explicit StoreLocation(std::string text) : text_(std::move(text)) {}
  explicit StoreLocation(std::shared_ptr<ObjectStore> store) : text_(store->location()), store_(std::move(store)) {}

  /// Opens the store. `deadline` is that of open_object_store(); a store of Python has its own.
  std::shared_ptr<ObjectStore> open(std::chrono::milliseconds deadline) const {
    return store_ ? store_ : open_object_store(FileSystem::posix(), text_, deadline);
  }
  const std::string& text() const noexcept { return text_; }

 private:
  std::string text_;
  std::shared_ptr<ObjectStore> store_;
};

/// Has calls of stores in Python end with the program, which waits for those that are under way. Called once.
void end_stores_with_the_program();

/// Returns whether the object is a sparsecast.stores.Store. Never throws.
bool is_store(nb::handle object) noexcept;

}  // namespace sparsecast::python

template <>
struct nanobind::detail::type_caster<sparsecast::python::StoreLocation> {
  NB_TYPE_CASTER(sparsecast::python::StoreLocation, const_name("str | os.PathLike[str] | sparsecast.stores.Store"))

  bool from_python(handle source, std::uint8_t flags, cleanup_list* cleanup) noexcept {
    make_caster<sparsecast::python::PathText> path;
    if (path.from_python(source, flags, cleanup)) {
      value = sparsecast::python::StoreLocation(path.value);
      return true;
    }
    if (!sparsecast::python::is_store(source)) return false;
    value = sparsecast::python::StoreLocation(sparsecast::python::store_in_python(borrow(source)));
    return true;
  }
};
