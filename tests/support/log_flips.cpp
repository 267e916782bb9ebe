// SPDX-License-Identifier: Apache-2.0
#include "support/log_flips.hpp"

#include <stdexcept>
#include <vector>

#include "log/format/records.hpp"
#include "sparsecast/error.hpp"
#include "support/fault_fs.hpp"
#include "support/log_scene.hpp"

namespace sparsecast::test {
namespace {

/// Bytes that a reader was given, by name.
using Delivery = std::map<std::string, std::string>;

class FlippedLog {
 public:
  FlippedLog() {
    fs_.make_directory("scratch");
    LogReader reader(open());
    LogWriterOptions options;
    options.key = key_;
    options.merge_spans = {3};
    LogWriter writer(reader, options);
    writer.create(scene_.creation());
    for (std::uint64_t version = 1; version <= 6; ++version) {
      const Bytes delta = scene_.delta(version - 1, version, version);
      writer.publish(DeltaFile::over(delta, "delta"));
    }
    fs_.put_file("checkpoint.safetensors", scene_.checkpoint(0));
    writer.write_anchor(fs_, "checkpoint.safetensors", 0);
    writer.compact(fs_, "scratch");
    LogFloor floor{scene_.stream(), 0, {}};
    open()->put(kFloorKey, pack(floor, key_.get()));
    LogLease lease{scene_.stream(), "reader", 1, {}, std::chrono::hours(24 * 365 * 1000)};
    open()->put(lease_key("reader"), pack(lease));
    fs_.remove("checkpoint.safetensors");
    published_ = read();
  }

  FlipCount run(std::uint64_t first, std::uint64_t stride) {
    FlipCount count;
    std::uint64_t next = first;
    for (const std::string& path : fs_.files()) {
      const std::string content = *fs_.content(path);
      const std::uint64_t bits = content.size() * 8;
      for (; next < count.bits + bits; next += stride) {
        const std::uint64_t bit = next - count.bits;
        std::string flipped = content;
        flipped[bit / 8] = static_cast<char>(flipped[bit / 8] ^ (1 << (bit % 8)));
        fs_.put_file(path, flipped);
        judge(path + ", bit " + std::to_string(bit), count);
        ++count.flips;
        forget();
      }
      fs_.put_file(path, content);
      count.bits += bits;
    }
    return count;
  }

 private:
  std::shared_ptr<ObjectStore> open() { return open_directory_store(fs_, "log"); }

  /// Drops the history that the file system keeps for crash states, which are not used here.
  void forget() {
    fs_.sync_directory(".");
    fs_.sync_directory("scratch");
    fs_.reset_log();
  }

  std::string take(const std::string& path) {
    const std::string content = *fs_.content(path);
    fs_.remove(path);
    return content;
  }

  Delivery read() {
    LogTrust trust;
    trust.pinned = {key_->public_key()};
    LogReader reader(open(), trust);
    Delivery delivery;
    const LogCommit head = reader.head().value();
    delivery["head"] = to_hex(head.record_hash);
    delivery["floor"] = std::to_string(reader.floor());
    for (const LogLease& lease : reader.leases()) delivery["lease " + lease.name] = std::to_string(lease.version);
    for (std::uint64_t version = 1; version <= head.version; ++version) {
      const LogCommit commit = reader.commit(version).value();
      reader.fetch_delta({version - 1, version, commit.delta, commit.delta_bytes}, fs_, "fetched");
      delivery["delta " + std::to_string(version)] = take("fetched");
    }
    if (const std::optional<LogCatalog> catalog = reader.catalog()) {
      for (const DeltaRef& ref : catalog->merged) {
        reader.fetch_delta(ref, fs_, "fetched");
        delivery["merged " + std::to_string(ref.from)] = take("fetched");
      }
      for (const AnchorRef& ref : catalog->anchors) {
        const LogAnchor anchor = reader.anchor(ref);
        reader.fetch_anchor(anchor, fs_, "scratch");
        for (const auto& file : anchor.files) delivery[file.name] = take("scratch/" + file.name);
      }
    }
    return delivery;
  }

  void judge(const std::string& where, FlipCount& count) {
    Delivery delivery;
    try {
      delivery = read();
    } catch (const Error& error) {
      ++count.refused[std::string(to_string(error.code()))];
      for (const char* path : {"fetched", "fetched.part"}) {
        if (fs_.exists(path)) fs_.remove(path);
      }
      for (const std::string& name : fs_.list("scratch")) fs_.remove("scratch/" + name);
      return;
    } catch (const std::exception& error) {
      throw std::runtime_error(where + ": " + error.what());
    }
    // A lease that cannot be read counts, but from the first version on: more is kept.
    if (delivery.at("lease reader") == "0") delivery["lease reader"] = published_.at("lease reader");
    for (const auto& [name, bytes] : delivery) {
      if (published_.at(name) != bytes) throw std::runtime_error(where + ": silently another " + name);
    }
    for (const auto& [name, bytes] : published_) {
      const bool spared = name.starts_with("merged") || name.starts_with("model");
      if (!spared && !delivery.contains(name)) throw std::runtime_error(where + ": silently without " + name);
    }
    ++count.harmless;
  }

  FaultFileSystem fs_;
  LogScene scene_{1, 200};
  std::shared_ptr<const SigningKey> key_ = SigningKey::generate();
  Delivery published_;
};

}  // namespace

FlipCount flip_bits(std::uint64_t first, std::uint64_t stride) { return FlippedLog().run(first, stride); }

}  // namespace sparsecast::test
