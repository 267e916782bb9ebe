// SPDX-License-Identifier: Apache-2.0

// Object store in a bucket, through the S3 API.

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <map>
#include <mutex>

#include "core/parallel.hpp"
#include "core/sodium.hpp"
#include "sparsecast/error.hpp"
#include "sparsecast/object_store.hpp"
#include "store/curl/s3_client.hpp"
#include "store/object_key.hpp"
#include "store/s3_answers.hpp"

namespace sparsecast {
namespace {

/// Metadata that identify the call that created an object, so that the call can recognise its own object.
constexpr const char* kCreator = "meta-sparsecast-creator";
constexpr int kProbeWriters = 3;
// Bounds of a listing, because the server decides its end: pages, consecutive pages without a new key, and bytes of all
// keys.
constexpr int kMaxPages = 10'000;
constexpr int kMaxIdlePages = 16;
constexpr std::uint64_t kMaxListedBytes = std::uint64_t{256} << 20;

std::string random_name() { return to_hex(random_hash()); }

class S3Store : public ObjectStore {
 public:
  explicit S3Store(const S3Options& options) : client_(options) {}

  const std::string& location() const noexcept override { return client_.address().location; }

  void put(const std::string& key, ConstBytes bytes) override {
    require_object_key(key);
    put_s3_object(client_, key, bytes);
  }

  bool put_if_absent(const std::string& key, ConstBytes bytes) override {
    require_object_key(key);
    require_conditional_writes();
    return create(key, bytes);
  }

  std::unique_ptr<ObjectUpload> upload(const std::string& key, std::uint64_t expected_bytes) override {
    require_object_key(key);
    return begin_s3_upload(client_, key, expected_bytes);
  }

  std::optional<Bytes> get(const std::string& key, std::uint64_t max_bytes) override {
    require_object_key(key);
    return read_s3_object(client_, key, max_bytes);
  }

  std::optional<std::uint64_t> size(const std::string& key) override {
    require_object_key(key);
    return read_s3_size(client_, key);
  }

  void get_range(const std::string& key, std::uint64_t offset, std::span<std::byte> buffer) override {
    require_object_key(key);
    if (!buffer.empty()) {
      read_s3_range(client_, key, offset, buffer);
      return;
    }
    const auto size = read_s3_size(client_, key);
    if (!size) throw Error(ErrorCode::kGone, "there is no such object", client_.name_of(key));
    if (offset > *size) {
      throw Error(ErrorCode::kCorrupt, fmt::format("it ends at byte {}, before byte {}", *size, offset),
                  client_.name_of(key));
    }
  }

  std::vector<StoredObject> list(const std::string& prefix) override {
    const std::string name = client_.name_of(prefix);
    // By key in the bucket. The server may list keys in any order, even twice.
    std::map<std::string, StoredObject> found;
    std::string token;
    std::uint64_t bytes = 0;
    int idle = 0;
    for (int page = 0; page < kMaxPages && bytes <= kMaxListedBytes; ++page) {
      const S3Listing listing = list_page(prefix, token);
      const std::size_t before = found.size();
      for (const S3Listing::ListedObject& entry : listing.entries) {
        bytes += entry.key.size();
        add_entry(entry, prefix, found);
      }
      if (listing.next.empty()) return objects_of(std::move(found));
      idle = found.size() == before ? idle + 1 : 0;
      if (listing.next == token || idle > kMaxIdlePages) refuse_answer(name, "a listing that does not go on");
      token = listing.next;
    }
    refuse_answer(name, "a listing without an end");
  }

  void remove(const std::string& key) override {
    require_object_key(key);
    client_.call(removal_of(key), {404});
  }

  std::chrono::system_clock::time_point wall_now() override { return std::chrono::system_clock::now(); }

 private:
  static S3Request removal_of(const std::string& key) {
    S3Request request;
    request.method = "DELETE";
    request.key = key;
    return request;
  }

  /// Returns whether the object was created. A 412 may be due to this call itself, if an earlier attempt succeeded but
  /// its reply was lost; the object's metadata tell.
  bool create(const std::string& key, ConstBytes bytes) {
    const std::string creator = random_name();
    S3Request request;
    request.method = "PUT";
    request.key = key;
    request.headers = {condition(), fmt::format("{}: {}", client_.extension(kCreator), creator)};
    request.body = bytes;
    const HttpAnswer answer = client_.call(request, {412, 501});
    if (answer.status == 501) refuse_endpoint();
    return answer.status != 412 || is_made_by(key, creator, bytes, answer.earlier_attempts != 0);
  }

  bool is_made_by(const std::string& key, const std::string& creator, ConstBytes bytes, bool repeated) {
    S3Request request;
    request.method = "HEAD";
    request.key = key;
    const HttpAnswer answer = client_.call(request, {404});
    if (answer.status == 404) return false;
    const std::string found = answer.header(client_.extension(kCreator));
    if (!found.empty()) return found == creator;
    // The object was written by other means, or the server stores no metadata. After a lost reply, equal bytes count as
    // this call's own.
    if (!repeated || answer.header("content-length") != std::to_string(bytes.size())) return false;
    const auto content = read_s3_object(client_, key, bytes.size());
    return content && std::equal(content->begin(), content->end(), bytes.begin(), bytes.end());
  }

  /// Tests conditional writes, once for each store: a few requests race to create an object with a random key. A server
  /// that ignores the header, or does not check and write atomically, would let two publishers commit the same version.
  void require_conditional_writes() {
    const std::lock_guard lock(mutex_);
    if (conditional_writes_) return;
    const std::string key = "probe-" + random_name();
    std::atomic<int> creators{0};
    parallel_for(kProbeWriters, kProbeWriters, [&](std::size_t, std::size_t) {
      const std::string content = random_name();
      creators += create(key, std::as_bytes(std::span(content)));
    });
    remove_probe(key);
    if (creators > 1) refuse_endpoint();
    conditional_writes_ = true;
  }

  void remove_probe(const std::string& key) {
    try {
      S3Request removal = removal_of(key);
      removal.deadline = kCleaningDeadline;
      client_.call(removal, {404});
    } catch (const Error&) {
      // Writers need no permission to remove objects; then a small object remains.
    }
  }

  /// The header by which an object is only created. Google honours If-None-Match for reads alone.
  std::string condition() const {
    return is_google(client_.options()) ? "x-goog-if-generation-match: 0" : "If-None-Match: *";
  }

  [[noreturn]] void refuse_endpoint() const {
    throw Error(
        ErrorCode::kUnsupported,
        fmt::format("the endpoint does not honour {}, so two publishers could commit the same version", condition()),
        location());
  }

  S3Listing list_page(const std::string& prefix, const std::string& token) {
    S3Request request;
    request.prefix = prefix;
    if (!token.empty()) request.query = "continuation-token=" + percent_encoded(token) + "&";
    request.query += "list-type=2&max-keys=1000&prefix=" + percent_encoded(client_.address().key_prefix + prefix);
    const HttpAnswer answer = client_.call(request);
    try {
      return parse_s3_listing(answer.text);
    } catch (const Error& error) {
      refuse_answer(client_.name_of(prefix), error.message());
    }
  }

  void add_entry(const S3Listing::ListedObject& entry, const std::string& prefix,
                 std::map<std::string, StoredObject>& found) const {
    const std::string& root = client_.address().key_prefix;
    if (!entry.key.starts_with(root + prefix)) refuse_answer(client_.name_of(prefix), "a listing of other keys");
    found.try_emplace(entry.key, StoredObject{entry.key.substr(root.size()), entry.bytes, entry.modified});
  }

  /// Returns the objects sorted by key, without foreign objects such as "directories" that a web console makes.
  static std::vector<StoredObject> objects_of(std::map<std::string, StoredObject>&& found) {
    std::vector<StoredObject> objects;
    for (auto& [key, object] : found) {
      if (is_object_key(object.key)) objects.push_back(std::move(object));
    }
    return objects;
  }

  S3Client client_;
  std::mutex mutex_;
  bool conditional_writes_ = false;
};

}  // namespace

std::unique_ptr<ObjectStore> open_s3_store(const S3Options& options) { return std::make_unique<S3Store>(options); }

}  // namespace sparsecast
