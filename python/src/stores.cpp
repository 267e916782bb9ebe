// SPDX-License-Identifier: Apache-2.0

// Stores that Python brings: the library's calls, in any of its threads, become calls of a Python object's methods.

#if SPARSECAST_HAVE_LOG
#include "stores.hpp"

#include <fmt/format.h>
#include <pthread.h>

#include <algorithm>
#include <condition_variable>
#include <cstring>
#include <mutex>
#include <utility>

#include "core/interrupt.hpp"

namespace sparsecast::python {
namespace {

using std::chrono::steady_clock;
using std::chrono::system_clock;

/// Most bytes of all keys of a list, because the store decides its end.
constexpr std::uint64_t kMaxListedBytes = std::uint64_t{256} << 20;

/// The calls that are under way. Once the program ends, no new ones begin: their threads would wait for an interpreter
/// lock that nobody gives them, and whoever joins such a thread would wait for ever.
struct Calls {
  std::mutex mutex;
  std::condition_variable changed;
  int running = 0;
  bool over = false;
};

/// Never destroyed: threads may use it after static objects are gone.
Calls* all_calls = new Calls;

Calls& calls() { return *all_calls; }

void end_calls() {
  const GilRelease release;
  Calls& all = calls();
  std::unique_lock lock(all.mutex);
  all.over = true;
  wait_or_interrupt(all.changed, lock, steady_clock::time_point::max(), [&] { return all.running == 0; });
}

/// One call of a Python object: holds the interpreter lock. Throws Error{kIo} when the program ends.
class Call {
 public:
  explicit Call(const std::string& context) : begun_(context) {}

 private:
  struct Begun {
    explicit Begun(const std::string& context) {
      const std::lock_guard lock(calls().mutex);
      if (calls().over) throw Error(ErrorCode::kIo, "the program ends, and calls no store any more", context);
      ++calls().running;
    }
    ~Begun() {
      const std::lock_guard lock(calls().mutex);
      --calls().running;
      calls().changed.notify_all();
    }
    Begun(const Begun&) = delete;
    Begun& operator=(const Begun&) = delete;
  };

  Begun begun_;
  GilAcquire acquired_;
};

std::string text_of(nb::handle object) {
  try {
    return nb::cast<std::string>(nb::str(object));
  } catch (const std::exception&) {
    return {};
  }
}

std::string type_of(nb::handle object) { return text_of(object.type().attr("__name__")); }

/// Returns the code of a class of sparsecast.errors by its name.
ErrorCode code_named(const std::string& name) {
  for (int code = 1; code <= static_cast<int>(ErrorCode::kExpired); ++code) {
    if (to_string(static_cast<ErrorCode>(code)) == name) return static_cast<ErrorCode>(code);
  }
  return ErrorCode::kIo;
}

/// Returns the error for an exception of a store: a class of sparsecast.errors keeps its kind and words, others get a
/// kind by what they are.
Error error_of(nb::python_error& thrown, const std::string& context) {
  const nb::object value = nb::borrow(thrown.value());
  if (!thrown.matches(PyExc_Exception)) {
    keep_interrupt(value);
    return Error(ErrorCode::kIo, "the call of the store was interrupted", context);
  }
  const std::string words = fmt::format("{}: {}", type_of(value), text_of(value));
  if (nb::isinstance(value, nb::module_::import_("sparsecast.errors").attr("Error"))) {
    const std::string own = text_of(value.attr("context"));
    return Error(code_named(text_of(value.attr("code"))), text_of(value.attr("message")), own.empty() ? context : own);
  }
  const std::pair<PyObject*, ErrorCode> kinds[] = {{PyExc_FileNotFoundError, ErrorCode::kGone},
                                                   {PyExc_TimeoutError, ErrorCode::kTimeout},
                                                   {PyExc_PermissionError, ErrorCode::kUnauthenticated},
                                                   {PyExc_NotImplementedError, ErrorCode::kUnsupported}};
  for (const auto& [type, code] : kinds) {
    if (thrown.matches(type)) return Error(code, words, context);
  }
  return Error(ErrorCode::kIo, words, context);
}

/// Returns what `body` returns, which calls Python. Throws Error alone.
template <class Body>
auto in_python(const std::string& context, const Body& body) {
  const Call call(context);
  try {
    return body();
  } catch (nb::python_error& thrown) {
    throw error_of(thrown, context);
  } catch (const nb::cast_error&) {
    throw Error(ErrorCode::kUsage, "a method of the store returned something of another type than it must", context);
  }
}

/// Returns the bytes of an object with a buffer. Throws Error{kUsage} for others.
Bytes bytes_from(const nb::object& object, const std::string& context) {
  if (PyObject_CheckBuffer(object.ptr()) == 0) {
    throw Error(ErrorCode::kUsage, fmt::format("the store returned a {} in the place of bytes", type_of(object)),
                context);
  }
  const nb::bytes bytes(object);
  const ConstBytes view = bytes_of(bytes);
  return {view.begin(), view.end()};
}

class PythonUpload : public ObjectUpload {
 public:
  PythonUpload(nb::object upload, std::string context) : upload_(std::move(upload)), context_(std::move(context)) {}
  ~PythonUpload() override {
    try {
      in_python(context_, [&] { nb::steal(upload_.release()).attr("close")(); });
    } catch (const Error&) {
      upload_.release();  // What it has taken is dropped by its own end, at the latest that of the process.
    }
  }

  void append(ConstBytes bytes) override {
    in_python(context_, [&] { upload_.attr("write")(to_python(bytes)); });
  }
  void commit() override {
    in_python(context_, [&] { upload_.attr("commit")(); });
  }

 private:
  nb::object upload_;
  std::string context_;
};

class PythonStore : public ObjectStore {
 public:
  explicit PythonStore(nb::object store) : store_(std::move(store)) {
    try {
      location_ = text_of(store_.attr("location"));
    } catch (const nb::python_error&) {
      location_ = type_of(store_);
    }
  }
  ~PythonStore() override {
    try {
      in_python(location_, [&] { store_.reset(); });
    } catch (const Error&) {
      store_.release();
    }
  }

  const std::string& location() const noexcept override { return location_; }

  void put(const std::string& key, ConstBytes bytes) override {
    in_python(name_of(key), [&] { store_.attr("put")(key, to_python(bytes)); });
  }

  bool put_if_absent(const std::string& key, ConstBytes bytes) override {
    const std::string name = name_of(key);
    return in_python(name, [&] {
      const nb::object created = store_.attr("put_if_absent")(key, to_python(bytes));
      // Anything else would be taken for the loss, or worse the win, of a race.
      if (!nb::isinstance<nb::bool_>(created)) {
        throw Error(ErrorCode::kUsage, fmt::format("put_if_absent returned a {}, not a bool", type_of(created)), name);
      }
      return nb::cast<bool>(created);
    });
  }

  std::unique_ptr<ObjectUpload> upload(const std::string& key, std::uint64_t expected_bytes) override {
    const std::string name = name_of(key);
    return in_python(name, [&]() -> std::unique_ptr<ObjectUpload> {
      return std::make_unique<PythonUpload>(store_.attr("upload")(key, expected_bytes), name);
    });
  }

  std::optional<Bytes> get(const std::string& key, std::uint64_t max_bytes) override {
    const std::string name = name_of(key);
    std::optional<Bytes> bytes = or_absent([&] {
      return in_python(name, [&]() -> std::optional<Bytes> {
        const nb::object found = store_.attr("get")(key, max_bytes);
        return found.is_none() ? std::nullopt : std::optional(bytes_from(found, name));
      });
    });
    if (bytes && bytes->size() > max_bytes) {
      throw Error(ErrorCode::kCorrupt,
                  fmt::format("it has {} bytes, more than the {} that it can have", bytes->size(), max_bytes), name);
    }
    return bytes;
  }

  std::optional<std::uint64_t> size(const std::string& key) override {
    return or_absent([&] {
      return in_python(name_of(key), [&]() -> std::optional<std::uint64_t> {
        const nb::object found = store_.attr("size")(key);
        return found.is_none() ? std::nullopt : std::optional(nb::cast<std::uint64_t>(found));
      });
    });
  }

  void get_range(const std::string& key, std::uint64_t offset, std::span<std::byte> buffer) override {
    const std::string name = name_of(key);
    const Bytes bytes =
        in_python(name, [&] { return bytes_from(store_.attr("get_range")(key, offset, buffer.size()), name); });
    if (bytes.size() != buffer.size()) {
      throw Error(
          ErrorCode::kCorrupt,
          fmt::format("{} bytes from byte {} on, of {} that were asked for", bytes.size(), offset, buffer.size()),
          name);
    }
    std::copy(bytes.begin(), bytes.end(), buffer.begin());
  }

  std::vector<StoredObject> list(const std::string& prefix) override {
    const std::string name = name_of(prefix);
    std::vector<StoredObject> objects = in_python(name, [&] { return listed(prefix, name); });
    std::sort(objects.begin(), objects.end(),
              [](const StoredObject& a, const StoredObject& b) { return a.key < b.key; });
    return objects;
  }

  void remove(const std::string& key) override {
    or_absent([&] {
      in_python(name_of(key), [&] { store_.attr("remove")(key); });
      return std::optional(true);
    });
  }

  system_clock::time_point wall_now() override { return system_clock::now(); }

 private:
  std::string name_of(const std::string& key) const { return key.empty() ? location_ : location_ + "/" + key; }

  /// Takes the error that an object is gone for its absence.
  template <class Body>
  static auto or_absent(const Body& body) -> decltype(body()) {
    try {
      return body();
    } catch (const Error& error) {
      if (error.code() != ErrorCode::kGone) throw;
      return std::nullopt;
    }
  }

  std::vector<StoredObject> listed(const std::string& prefix, const std::string& name) const {
    std::vector<StoredObject> objects;
    std::uint64_t bytes = 0;
    for (const nb::handle entry : nb::iter(store_.attr("list")(prefix))) {
      StoredObject object;
      object.key = nb::cast<std::string>(entry.attr("key"));
      object.bytes = nb::cast<std::uint64_t>(entry.attr("bytes"));
      object.modified = system_clock::time_point(std::chrono::duration_cast<system_clock::duration>(
          std::chrono::duration<double>(nb::cast<double>(entry.attr("modified").attr("timestamp")()))));
      bytes += object.key.size();
      if (bytes > kMaxListedBytes) throw Error(ErrorCode::kIo, "the store's list has no end", name);
      if (object.key.starts_with(prefix)) objects.push_back(std::move(object));
    }
    return objects;
  }

  nb::object store_;
  std::string location_;
};

}  // namespace

std::shared_ptr<ObjectStore> store_in_python(nb::object object) {
  return std::make_shared<PythonStore>(std::move(object));
}

bool is_store(nb::handle object) noexcept {
  try {
    return nb::isinstance(object, nb::module_::import_("sparsecast.stores").attr("Store"));
  } catch (nb::python_error& error) {
    error.discard_as_unraisable("sparsecast: the class of stores");
    return false;
  }
}

void end_stores_with_the_program() {
  // The threads that make calls are not in a child.
  pthread_atfork(nullptr, nullptr, [] { all_calls = new Calls; });
  nb::module_::import_("atexit").attr("register")(nb::cpp_function(&end_calls));
}

}  // namespace sparsecast::python
#endif
