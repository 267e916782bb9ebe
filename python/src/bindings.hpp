// SPDX-License-Identifier: Apache-2.0
#pragma once

// Parts of the Python module `sparsecast._core`, one function for each file. Classes mirror those of the C++ headers;
// docstrings describe what Python adds. Every call that may block releases the interpreter lock.

#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/string_view.h>
#include <nanobind/stl/vector.h>

#include <chrono>
#include <cmath>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "gil.hpp"
#include "sparsecast/codec.hpp"
#include "sparsecast/delta.hpp"
#include "sparsecast/digest.hpp"
#include "sparsecast/error.hpp"

namespace sparsecast::python {

namespace nb = nanobind;

using ReleaseGil = nb::call_guard<GilRelease>;

void bind_interrupts(nb::module_& m);
void bind_errors(nb::module_& m);
void bind_memory(nb::module_& m);
void bind_memory_shortage(nb::module_& m);
void bind_tables(nb::module_& m);
void bind_layouts(nb::module_& m);
void bind_channels(nb::module_& m);
void bind_sync(nb::module_& m);
void bind_sharded(nb::module_& m);
void bind_logs(nb::module_& m);
void bind_quantize(nb::module_& m);

/// Returns a duration that is given in seconds, the unit of every function of the module. Throws Error{kUsage} unless
/// it is from 0 to 1e9 seconds.
inline std::chrono::microseconds microseconds(double seconds) {
  constexpr double kLongest = 1e9;
  if (!(seconds >= 0) || seconds > kLongest) throw Error(ErrorCode::kUsage, "a timeout is 0 to 1e9 seconds");
  return std::chrono::microseconds(static_cast<std::int64_t>(std::llround(seconds * 1e6)));
}
/// Returns the duration of microseconds(), rounded to milliseconds.
inline std::chrono::milliseconds milliseconds(double seconds) {
  return std::chrono::round<std::chrono::milliseconds>(microseconds(seconds));
}

/// Returns the hash in a text of the form of to_hex(). Throws Error{kUsage}, with `what` as its context, for any other
/// form.
Hash128 hash_from_python(const std::string& text, const char* what);

/// Runs the handlers of signals, unless one has raised during a wait already, and returns the exception that one of
/// them has raised. Returns an object that is not valid if there is none, and in threads other than the main one, where
/// no handlers run.
nb::object take_interrupt();
/// Keeps an exception that ended a callback and is no Exception, such as KeyboardInterrupt: the library's call ends
/// soon and raises it. In threads other than the main one it is reported as unraisable.
void keep_interrupt(const nb::object& exception);

/// Returns a Python object with a copy of the bytes.
inline nb::bytes to_python(ConstBytes bytes) { return nb::bytes(bytes.data(), bytes.size()); }
/// Returns a view of the bytes in a Python object, valid as long as that object lives.
inline ConstBytes bytes_of(const nb::bytes& bytes) {
  return {static_cast<const std::byte*>(static_cast<const void*>(bytes.c_str())), bytes.size()};
}

/// Returns the options of an encoder, given by the names that they have on the command line. Throws Error{kUsage} that
/// lists the valid names for a name that is not valid.
EncodeOptions encode_options(const std::string& positions, const std::string& values,
                             const std::optional<std::string>& objective, std::uint32_t block_changes, int zstd_level,
                             std::uint32_t frame_capacity, int threads);

}  // namespace sparsecast::python
