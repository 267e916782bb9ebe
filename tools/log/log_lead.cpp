// SPDX-License-Identifier: Apache-2.0
#include "tools/log/log_lead.hpp"

#include <fmt/format.h>
#include "tools/common/parser.hpp"

#include <algorithm>
#include <array>

#include "sparsecast/error.hpp"
#include "sparsecast/safetensors.hpp"

namespace sparsecast::tools {
namespace {

/// Reads the tensors of a safetensors object from its header alone.
std::vector<TensorSpec> read_specs(ObjectStore& store, const std::string& key, std::uint64_t file_bytes) {
  std::array<std::byte, 8> prefix{};
  store.get_range(key, 0, prefix);
  std::uint64_t length = 0;
  for (std::size_t i = prefix.size(); i-- > 0;) length = length << 8 | std::to_integer<std::uint64_t>(prefix[i]);
  if (length > SafetensorsHeader::kMaxHeaderBytes || length + prefix.size() > file_bytes) {
    throw Error(ErrorCode::kCorrupt, "is no safetensors file", store.location() + ": " + key);
  }
  Bytes header(prefix.size() + length);
  store.get_range(key, 0, header);
  std::vector<TensorSpec> specs;
  for (const SafetensorsEntry& entry : SafetensorsHeader::parse(header, file_bytes).entries) {
    specs.push_back(entry.spec);
  }
  return specs;
}

TensorTable table_of_delta(FileSystem& fs, OpenLog& log, const LogCommit& head, const std::string& scratch) {
  log.reader->fetch_delta({head.version - 1, head.version, head.delta, head.delta_bytes}, fs, scratch);
  TensorTable table = DeltaFile::open(fs, scratch).table();
  fs.remove(scratch);
  return table;
}

TensorTable table_of_anchor(OpenLog& log, const AnchorRef& ref) {
  std::vector<TensorSpec> specs;
  for (const LogAnchor::FileEntry& file : log.reader->anchor(ref).files) {
    if (!file.name.ends_with(".safetensors")) continue;
    const std::vector<TensorSpec> of_file = read_specs(*log.store, anchor_directory(ref) + "/" + file.name, file.bytes);
    specs.insert(specs.end(), of_file.begin(), of_file.end());
  }
  std::sort(specs.begin(), specs.end(), [](const TensorSpec& a, const TensorSpec& b) { return a.name < b.name; });
  return TensorTable(std::move(specs));
}

}  // namespace

void LeadFlags::add_to(Parser& parser) {
  add_key(parser, key);
  parser
      .add_option("--state", state,
                  "The publisher's state file; default: beside the weights, named by the log's location")
      ->type_name("FILE");
  parser.add_flag("--take-over", take_over,
                  "Where another publisher leads, or one whose state is lost: begin a new epoch. It cannot publish any "
                  "more from then on");
}

Leader::Leader(Console& console, OpenLog& log, const LeadFlags& flags, const std::string& state_path,
               LogWriterOptions options, const LogCommit& head)
    : console_(console),
      log_(log),
      take_over_(flags.take_over),
      state_path_(flags.state.empty() ? state_path : flags.state),
      head_(head) {
  const std::optional<PublisherState> kept = PublisherState::load(console.fs, state_path_);
  leads_ = kept && kept->leads(head);
  state_ = leads_ ? *kept : PublisherState::random(head.stream);
  options.publisher = state_.publisher;
  options.key = load_key(console.fs, flags.key);
  writer_ = std::make_unique<LogWriter>(*log.reader, std::move(options));
}

LogCommit Leader::lead(std::shared_ptr<const TensorTable> table, const StateDigest& digest) {
  if (leads_) return writer_->resume(std::move(table), digest);
  if (!take_over_) {
    throw Error(
        ErrorCode::kFenced,
        fmt::format("version {} is another publisher's ({}, epoch {}), or this one's state is not at '{}'. To "
                    "lead from here on, pass --take-over: the other one cannot publish any more then. If `log init` "
                    "printed another state file, pass it as --state",
                    head_.version, to_hex(head_.publisher).substr(0, 8), head_.epoch, state_path_),
        log_.store->location());
  }
  state_.save(console_.fs, state_path_);
  const LogCommit taken = writer_->take_over(std::move(table), digest);
  leads_ = true;
  console_.err << fmt::format("sparsecast: took over from {}: version {} begins epoch {}\n",
                              to_hex(head_.publisher).substr(0, 8), taken.version, taken.epoch);
  return taken;
}

TensorTable read_log_table(FileSystem& fs, OpenLog& log, const LogCommit& head, const std::string& scratch) {
  std::optional<TensorTable> table;
  if (head.kind != CommitKind::kGenesis) {
    table = table_of_delta(fs, log, head, scratch);
  } else if (const std::optional<LogCatalog> catalog = log.reader->catalog(); catalog && !catalog->anchors.empty()) {
    table = table_of_anchor(log, catalog->anchors.back());
  } else {
    throw Error(ErrorCode::kUsage, "there is neither a delta nor an anchor yet, so its tensors are not known",
                log.store->location());
  }
  if (table->hash() == head.table_hash) return std::move(*table);
  throw Error(ErrorCode::kMixed, "these are not the tensors that the newest commit names", log.store->location());
}

}  // namespace sparsecast::tools
