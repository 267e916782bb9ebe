// SPDX-License-Identifier: Apache-2.0

// Uploads objects larger than a part: CreateMultipartUpload, several UploadPart at a time, CompleteMultipartUpload. The
// last request makes the whole object appear. Uploads that are not committed are aborted. Parts that a crash leaves are
// in no listing and cost storage until a lifecycle rule of the bucket (AbortIncompleteMultipartUpload) removes them.

#include "store/curl/s3_client.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <deque>
#include <future>
#include <map>
#include <mutex>

#include "core/parallel.hpp"
#include "sparsecast/error.hpp"
#include "store/s3_answers.hpp"

namespace sparsecast {
namespace {

constexpr std::uint64_t kMaxParts = 10'000;

/// Returns a part size with which an object of `expected_bytes` bytes has no more parts than S3 allows.
std::uint64_t part_size(const S3Client& client, std::uint64_t expected_bytes) {
  return std::max(client.options().part_bytes, expected_bytes / kMaxParts + 1);
}

void put_whole(S3Client& client, const std::string& key, ConstBytes bytes) {
  S3Request request;
  request.method = "PUT";
  request.key = key;
  request.body = bytes;
  client.call(request);
}

std::string xml_escaped(std::string_view text) {
  std::string result;
  for (const char c : text) {
    if (c == '"' || c == '&' || c == '<' || c == '>') {
      result += fmt::format("&#{};", static_cast<int>(c));
    } else {
      result += c;
    }
  }
  return result;
}

/// One multipart upload; the destructor aborts it unless complete() has ended it.
class Multipart {
 public:
  Multipart(S3Client& client, const std::string& key) : client_(client), key_(key) {
    S3Request request = this->request("POST", "uploads=");
    const HttpAnswer answer = client_.call(request);
    try {
      id_ = percent_encoded(parse_s3_upload_id(answer.text));
    } catch (const Error& error) {
      refuse_answer(client_.name_of(key_), error.message());
    }
  }

  ~Multipart() {
    if (completed_) return;
    try {
      S3Request abortion = request("DELETE", "uploadId=" + id_);
      abortion.deadline = kCleaningDeadline;
      client_.call(abortion, {404});
    } catch (...) {
      // The bucket's rule for abandoned uploads must remove the parts.
    }
  }
  Multipart(const Multipart&) = delete;
  Multipart& operator=(const Multipart&) = delete;

  /// Uploads a part. Part numbers begin at 1. Thread-safe.
  void put_part(std::uint64_t number, ConstBytes bytes) {
    S3Request part = request("PUT", fmt::format("partNumber={}&uploadId={}", number, id_));
    part.body = bytes;
    const std::string tag = client_.call(part).header("etag");
    if (tag.empty()) refuse_answer(client_.name_of(key_), "a part without its tag");
    const std::lock_guard lock(mutex_);
    tags_[number] = tag;
    bytes_ += bytes.size();
  }

  void complete() {
    std::string xml = "<CompleteMultipartUpload xmlns=\"http://s3.amazonaws.com/doc/2006-03-01/\">";
    for (const auto& [number, tag] : tags_) {
      xml += fmt::format("<Part><PartNumber>{}</PartNumber><ETag>{}</ETag></Part>", number, xml_escaped(tag));
    }
    xml += "</CompleteMultipartUpload>";
    S3Request completion = request("POST", "uploadId=" + id_);
    completion.headers = {"Content-Type: application/xml"};
    completion.body = std::as_bytes(std::span(xml));
    const HttpAnswer answer = client_.call(completion, {404});
    if (answer.status == 404) {
      require_completed_before();
    } else {
      try {
        require_s3_completion(answer.text);
      } catch (const Error& error) {
        refuse_answer(client_.name_of(key_), error.message());
      }
    }
    completed_ = true;
  }

 private:
  S3Request request(const std::string& method, const std::string& query) const {
    S3Request result;
    result.method = method;
    result.key = key_;
    result.query = query;
    return result;
  }

  /// Called if the upload no longer exists: an earlier attempt completed it and its reply was lost, or somebody aborted
  /// it.
  void require_completed_before() {
    S3Request head = request("HEAD", "");
    const HttpAnswer answer = client_.call(head, {404});
    // A multipart object's tag ends with the number of its parts.
    const bool is_ours = answer.status == 200 && answer.header("content-length") == std::to_string(bytes_) &&
                         answer.header("etag").find(fmt::format("-{}\"", tags_.size())) != std::string::npos;
    if (!is_ours) throw Error(ErrorCode::kIo, "its multipart upload was aborted by another", client_.name_of(key_));
  }

  S3Client& client_;
  std::string key_;
  std::string id_;
  std::mutex mutex_;
  std::map<std::uint64_t, std::string> tags_;
  std::uint64_t bytes_ = 0;
  bool completed_ = false;
};

class S3Upload : public ObjectUpload {
 public:
  S3Upload(S3Client& client, const std::string& key, std::uint64_t expected_bytes)
      : client_(client), key_(key), part_bytes_(part_size(client, expected_bytes)) {}

  ~S3Upload() override {
    for (std::future<void>& part : in_flight_) part.wait();
  }

  void append(ConstBytes bytes) override {
    require_open();
    try {
      while (!bytes.empty()) {
        // A full buffer is sent only when more bytes follow, so that an object of exactly one part needs one request.
        if (buffer_.size() == part_bytes_) send_part();
        const std::uint64_t taken = std::min<std::uint64_t>(bytes.size(), part_bytes_ - buffer_.size());
        buffer_.insert(buffer_.end(), bytes.begin(), bytes.begin() + static_cast<std::ptrdiff_t>(taken));
        bytes = bytes.subspan(taken);
      }
    } catch (...) {
      open_ = false;
      throw;
    }
  }

  void commit() override {
    require_open();
    open_ = false;
    if (!multipart_) {
      put_whole(client_, key_, buffer_);
      return;
    }
    send_part();
    while (!in_flight_.empty()) finish_oldest();
    multipart_->complete();
  }

 private:
  void require_open() const {
    if (!open_) {
      throw Error(ErrorCode::kUsage, "the object is committed already, or an attempt to write it failed",
                  client_.name_of(key_));
    }
  }

  void send_part() {
    if (++parts_ > kMaxParts) {
      throw Error(
          ErrorCode::kUsage,
          fmt::format("it has more than {} parts of {} bytes: say how large it will be", kMaxParts, part_bytes_),
          client_.name_of(key_));
    }
    if (!multipart_) multipart_ = std::make_unique<Multipart>(client_, key_);
    while (in_flight_.size() >= static_cast<std::size_t>(client_.options().connections)) finish_oldest();
    in_flight_.push_back(std::async(std::launch::async, [this, number = parts_, part = std::move(buffer_)] {
      multipart_->put_part(number, part);
    }));
    buffer_ = Bytes();
  }

  void finish_oldest() {
    std::future<void> part = std::move(in_flight_.front());
    in_flight_.pop_front();
    part.get();
  }

  S3Client& client_;
  std::string key_;
  std::uint64_t part_bytes_;
  Bytes buffer_;
  std::uint64_t parts_ = 0;
  bool open_ = true;
  std::unique_ptr<Multipart> multipart_;
  std::deque<std::future<void>> in_flight_;
};

}  // namespace

std::unique_ptr<ObjectUpload> begin_s3_upload(S3Client& client, const std::string& key, std::uint64_t expected_bytes) {
  return std::make_unique<S3Upload>(client, key, expected_bytes);
}

void put_s3_object(S3Client& client, const std::string& key, ConstBytes bytes) {
  const std::uint64_t step = part_size(client, bytes.size());
  if (bytes.size() <= step) {
    put_whole(client, key, bytes);
    return;
  }
  Multipart multipart(client, key);
  parallel_for(client.options().connections, (bytes.size() + step - 1) / step, [&](std::size_t, std::size_t i) {
    multipart.put_part(i + 1, bytes.subspan(i * step, std::min<std::uint64_t>(step, bytes.size() - i * step)));
  });
  multipart.complete();
}

}  // namespace sparsecast
