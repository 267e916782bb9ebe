// SPDX-License-Identifier: Apache-2.0
#include "support/fake_bucket.hpp"

#include <algorithm>

namespace sparsecast::test {
namespace {

std::string tag_header(const FakeBucket::Object& object) {
  const std::string parts = object.parts == 0 ? "" : "-" + std::to_string(object.parts);
  return "ETag: \"" + std::to_string(object.version) + parts + "\"\r\n";
}

}  // namespace

HttpReply FakeBucket::operator()(const HttpQuestion& question) {
  if (question.method == "POST") return post(question);
  const bool of_upload = question.query.find("uploadId=") != std::string::npos;
  if (question.method == "PUT" && of_upload) {
    const int number = std::stoi(question.query.substr(question.query.find("partNumber=") + 11));
    uploads_[question.path][number] = question.body;
    return http_reply(200, "", "ETag: \"part-" + std::to_string(number) + "\"\r\n");
  }
  if (question.method == "PUT") return put(question, question.body);
  if (question.method == "DELETE") {
    (of_upload ? uploads_.erase(question.path) : objects.erase(question.path));
    return http_reply(204);
  }
  if (question.query.find("list-type=2") != std::string::npos) return list(question);
  const auto found = objects.find(question.path);
  if (found == objects.end()) {
    return question.method == "HEAD" ? http_reply(404) : s3_error_reply(404, "NoSuchKey");
  }
  return get(question, found->second);
}

HttpReply FakeBucket::put(const HttpQuestion& question, const std::string& content) {
  const bool create =
      google ? question.header("x-goog-if-generation-match") == "0" : question.header("if-none-match") == "*";
  if (honours_conditions && create && objects.count(question.path) != 0) {
    return s3_error_reply(412, "PreconditionFailed");
  }
  Object& object = objects[question.path];
  object = {content,
            keeps_metadata
                ? question.header(google ? "x-goog-meta-sparsecast-creator" : "x-amz-meta-sparsecast-creator")
                : "",
            ++versions_, 0};
  return http_reply(200, "", tag_header(object));
}

HttpReply FakeBucket::get(const HttpQuestion& question, const Object& object) const {
  std::string headers = tag_header(object);
  if (!object.creator.empty())
    headers += std::string(google ? "X-Goog" : "X-Amz") + "-Meta-Sparsecast-Creator: " + object.creator + "\r\n";
  if (question.method == "HEAD") {
    return {"HTTP/1.1 200 OK\r\nContent-Length: " + std::to_string(object.content.size()) + "\r\n" + headers + "\r\n",
            false,
            false,
            {}};
  }
  const std::string range = question.header("range");
  const std::size_t first = std::stoul(range.substr(6));
  if (first >= object.content.size()) return s3_error_reply(416, "InvalidRange");
  const std::size_t last = std::min(std::stoul(range.substr(range.find('-') + 1)), object.content.size() - 1);
  headers += "Content-Range: bytes " + std::to_string(first) + "-" + std::to_string(last) + "/" +
             std::to_string(object.content.size()) + "\r\n";
  return http_reply(206, object.content.substr(first, last - first + 1), headers);
}

HttpReply FakeBucket::post(const HttpQuestion& question) {
  if (question.query == "uploads=") {
    uploads_[question.path];
    return http_reply(200, "<InitiateMultipartUploadResult><UploadId>a/b+c</UploadId></InitiateMultipartUploadResult>");
  }
  const auto upload = uploads_.find(question.path);
  if (upload == uploads_.end()) return s3_error_reply(404, "NoSuchUpload");
  std::string content;
  for (const auto& [number, part] : upload->second) content += part;
  objects[question.path] = {content, "", ++versions_, upload->second.size()};
  uploads_.erase(upload);
  return http_reply(200, "<CompleteMultipartUploadResult/>");
}

HttpReply FakeBucket::list(const HttpQuestion& question) const {
  std::string xml = "<ListBucketResult><IsTruncated>false</IsTruncated>";
  for (const auto& [path, object] : objects) {
    xml += "<Contents><Key>" + path.substr(question.path.size() + 1) + "</Key><Size>" +
           std::to_string(object.content.size()) +
           "</Size><LastModified>2026-01-02T03:04:05.678Z</LastModified></Contents>";
  }
  return http_reply(200, xml + "</ListBucketResult>");
}

}  // namespace sparsecast::test
