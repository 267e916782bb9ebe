// SPDX-License-Identifier: Apache-2.0

// sparsecast compose: joins a chain of deltas to one.

#include <fmt/format.h>

#include "sparsecast/delta.hpp"
#include "tools/common/commands.hpp"
#include "tools/common/options.hpp"
#include "tools/common/report.hpp"
#include "tools/delta/delta_base.hpp"

namespace sparsecast::tools {
namespace {

struct ComposeFlags {
  std::vector<std::string> deltas;
  std::string base;
  EncodeFlags encode;
  bool json = false;
};

/// A delta file that is removed on destruction.
class TemporaryDelta {
 public:
  TemporaryDelta(FileSystem& fs, std::string path) : fs_(fs), path_(std::move(path)) {}
  ~TemporaryDelta() {
    try {
      if (fs_.exists(path_)) fs_.remove(path_);
    } catch (...) {  // The file stays; its name says that it is temporary.
    }
  }
  TemporaryDelta(const TemporaryDelta&) = delete;
  TemporaryDelta& operator=(const TemporaryDelta&) = delete;
  const std::string& path() const { return path_; }

 private:
  FileSystem& fs_;
  std::string path_;
};

CommitRecord compose_pair(FileSystem& fs, const std::string& first, const std::string& second,
                          const EncodeOptions& options, const std::string& output,
                          const std::optional<Checkpoint>& base) {
  const DeltaFile a = DeltaFile::open(fs, first);
  const DeltaFile b = DeltaFile::open(fs, second);
  DeltaOutput file(fs, output);
  const CommitRecord commit = compose(a, b, options, file.sink(), base ? std::optional(base->reader()) : std::nullopt);
  file.commit();
  return commit;
}

int run_compose(Console& console, const ComposeFlags& flags) {
  FileSystem& fs = console.fs;
  const EncodeOptions options = flags.encode.options();
  EncodeOptions intermediate = options;
  intermediate.zstd_level = 0;
  std::optional<Checkpoint> base;
  if (!flags.base.empty()) {
    base = open_base(fs, flags.base, DeltaFile::open(fs, flags.deltas.front()), flags.encode.threads);
  }
  std::unique_ptr<TemporaryDelta> merged;
  for (std::size_t i = 1; i < flags.deltas.size(); ++i) {
    const bool last = i + 1 == flags.deltas.size();
    const std::string& first = merged ? merged->path() : flags.deltas.front();
    if (last) {
      compose_pair(fs, first, flags.deltas[i], options, flags.encode.output, base);
      break;
    }
    std::string name;
    for (std::size_t n = i; name.empty() || fs.exists(name); ++n)
      name = fmt::format("{}.part{}", flags.encode.output, n);
    auto next = std::make_unique<TemporaryDelta>(fs, name);
    compose_pair(fs, first, flags.deltas[i], intermediate, next->path(), base);
    merged = std::move(next);
  }
  const DeltaFile result = DeltaFile::open(fs, flags.encode.output);
  Report report;
  report.add("delta", flags.encode.output, "delta");
  report.add("composed", std::uint64_t{flags.deltas.size()}, "composed of");
  report.add("base_version", result.header().base_version, "");
  report.add("version", result.header().version, "version",
             fmt::format("{} -> {}", result.header().base_version, result.header().version));
  report.add("changed", result.commit().changed, "changed");
  report.add("delta_bytes", result.bytes(), "delta bytes");
  report.add("base_digest", result.header().base_digest.value, "base digest");
  report.add("result_digest", result.commit().result_digest.value, "result digest");
  report.print(console, flags.json);
  return kExitGood;
}

}  // namespace

AddedCommand add_compose(Parser& app, Console& console) {
  auto flags = std::make_shared<ComposeFlags>();
  Parser* parser = app.add_subcommand("compose", "Merge deltas that follow one another into one");
  parser->add_option("deltas", flags->deltas, "Two or more delta files, oldest first")
      ->required()
      ->expected(2, 1 << 20)
      ->type_name("D1 D2 ...");
  flags->encode.add_to(*parser, false);
  parser->add_option("--base", flags->base, "The checkpoint that the first delta starts from; context deltas need it")
      ->type_name("CHECKPOINT");
  add_json(*parser, flags->json);
  parser->footer(
      "The result leads from where the first delta starts to where the last one ends. Elements that return to their "
      "first\n"
      "value vanish (ulp, xor). All must have the same stream, tensors and value codec.\n\n"
      "Example:\n"
      "  sparsecast compose 101.scd 102.scd 103.scd -o 100_to_103.scd");
  return {parser, [flags, &console] { return run_compose(console, *flags); }};
}

}  // namespace sparsecast::tools
