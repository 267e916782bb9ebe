// SPDX-License-Identifier: Apache-2.0

// sparsecast convert: converts versions of a model between deltas and the files of other systems.

#include <fmt/format.h>

#include <chrono>

#include "checkpoint/checkpoint_apply.hpp"
#include "codec/frame_reader.hpp"
#include "interop/formats/directory_output.hpp"
#include "interop/formats/patch_store.hpp"
#include "sparsecast/publisher.hpp"
#include "tools/common/commands.hpp"
#include "tools/common/options.hpp"
#include "tools/common/progress.hpp"
#include "tools/common/report.hpp"
#include "tools/delta/convert_steps.hpp"

namespace sparsecast::tools {
namespace {

struct ConvertFlags {
  std::vector<std::string> inputs;
  std::string from = "auto";
  std::string to;
  std::string base;
  std::string output;
  std::string stream;
  std::string checksum = "xxh3-128";
  std::optional<std::uint64_t> base_version;
  std::uint64_t full_every = 0;
  EncodeFlags encode;
  bool json = false;
};

struct Written {
  std::uint64_t base_version = 0;
  std::uint64_t version = 0;
  std::uint64_t changed = 0;
  std::uint64_t bytes = 0;
  std::vector<std::string> paths;
};

std::uint64_t bytes_of(FileSystem& fs, const std::string& path) {
  if (!fs.is_directory(path)) return fs.open(path, OpenMode::kRead)->size();
  std::uint64_t bytes = 0;
  for (const std::string& name : fs.list(path)) bytes += bytes_of(fs, path + "/" + name);
  return bytes;
}

/// Converts a chain of versions. Each version is relative to the state before it, so a copy of the base is updated
/// along the way, unless the chain has only one step.
class Conversion {
 public:
  Conversion(Console& console, const ConvertFlags& flags, const std::vector<ConvertStep>& steps,
             const Progress& progress)
      : console_(console),
        fs_(console.fs),
        flags_(flags),
        single_(steps.size() == 1),
        progress_(progress),
        scratch_(fs_, flags.output),
        state_(flags.base) {
    const CheckpointStore store(Checkpoint::open(fs_, state_));
    digest_ = sum(digest_store(store, flags.encode.threads, progress));
  }

  Written convert(const ConvertStep& step, bool last) {
    Written written;
    written.base_version = *step.base_version;
    written.version = *step.version;
    const std::string delta = step.foreign ? read(step, written) : format() ? step.path : rewrite(step.path, written);
    const bool full = is_full(written.version);
    if (format()) written_from(delta, full, written);
    if (!last || full) advance(delta);
    if (full) write_anchor(written);
    for (const std::string& path : written.paths) written.bytes += bytes_of(fs_, path);
    return written;
  }

 private:
  std::optional<ForeignFormat> format() const { return foreign_format_from_name(flags_.to); }
  bool slime() const { return flags_.to.starts_with("slime"); }
  bool is_full(std::uint64_t version) const { return flags_.full_every != 0 && version % flags_.full_every == 0; }

  std::string delta_path(std::uint64_t version) {
    if (format()) return scratch_.path("delta");
    if (single_) return flags_.output;
    make_output_directory(fs_, flags_.output);
    return fmt::format("{}/step_{:06d}.scd", flags_.output, version);
  }

  /// Converts a version of another system to a delta file, which is the result if deltas are requested.
  std::string read(const ConvertStep& step, Written& written) {
    DeltaHeader header;
    header.base_version = written.base_version;
    header.version = written.version;
    header.base_digest = digest_;
    if (!flags_.stream.empty()) header.stream = hash_from_hex(flags_.stream);
    std::string path = delta_path(written.version);
    DeltaOutput output(fs_, path);
    const Checkpoint base = Checkpoint::open(fs_, state_);
    const CommitRecord commit =
        read_foreign_step(fs_, *step.foreign, base, header, flags_.encode.options(), flags_.output, output.sink());
    output.commit();
    written.changed = commit.changed;
    if (!format()) written.paths = {path};
    return path;
  }

  /// Opens the delta at `path`. Throws Error{kWrongBase} unless it starts from the state before it.
  DeltaFile open_delta(const std::string& path) {
    DeltaFile delta = DeltaFile::open(fs_, path);
    if (delta.header().base_digest == digest_) return delta;
    throw Error(ErrorCode::kWrongBase,
                fmt::format("starts from {}, but the state before it has the digest {}", describe_base(delta.header()),
                            to_hex(digest_.value)),
                path);
  }

  /// Writes the delta `input` again, with the positions and compression that are asked for. Returns the path of the
  /// result.
  std::string rewrite(const std::string& input, Written& written) {
    const DeltaFile delta = open_delta(input);
    if (flags_.encode.values != "ulp" && flags_.encode.values != to_string(delta.header().values)) {
      throw Error(ErrorCode::kUsage,
                  fmt::format("its values are '{}', which stay as they are", to_string(delta.header().values)), input);
    }
    std::string path = delta_path(written.version);
    DeltaOutput output(fs_, path);
    const Checkpoint base = Checkpoint::open(fs_, state_);
    written.changed = recode(delta, flags_.encode.options(), output.sink(), base.reader()).changed;
    output.commit();
    written.paths = {path};
    return path;
  }

  void written_from(const std::string& path, bool full, Written& written) {
    const DeltaFile delta = open_delta(path);
    written.changed = delta.commit().changed;
    if (full && slime()) return;  // A version directory holds one or the other.
    const Checkpoint base = Checkpoint::open(fs_, state_);
    ForeignWriteOptions options;
    options.format = *format();
    options.checksum = flags_.checksum;
    written.paths = write_foreign_step(fs_, delta, base, flags_.output, options);
  }

  void write_anchor(Written& written) {
    const Checkpoint checkpoint = Checkpoint::open(fs_, state_);
    written.paths.push_back(write_foreign_anchor(fs_, checkpoint, written.version, flags_.output, *format()));
  }

  void advance(const std::string& delta) {
    CheckpointApplyOptions options;
    options.threads = flags_.encode.threads;
    options.progress = progress_;
    CheckpointApplyReport report;
    if (state_ == flags_.base) {
      const std::string copy = scratch_.path("state");
      report = apply_to_copy(fs_, flags_.base, {delta}, copy, options);
      state_ = copy;
    } else {
      report = apply_in_place(fs_, state_, {delta}, options);
    }
    digest_ = report.digest;
  }

  Console& console_;
  FileSystem& fs_;
  const ConvertFlags& flags_;
  bool single_;
  Progress progress_;
  WorkDirectory scratch_;
  std::string state_;
  StateDigest digest_;
};

void print(Console& console, const ConvertFlags& flags, const std::vector<Written>& all, double seconds) {
  nlohmann::ordered_json rows = nlohmann::ordered_json::array();
  Columns columns({"output", "version", "changed", "bytes"});
  for (const Written& one : all) {
    rows.push_back({{"base_version", one.base_version},
                    {"version", one.version},
                    {"changed", one.changed},
                    {"bytes", one.bytes},
                    {"outputs", one.paths}});
    columns.add({one.paths.empty() ? "(nothing to send)" : one.paths.front(),
                 fmt::format("{} -> {}", one.base_version, one.version), human_count(one.changed),
                 human_count(one.bytes)});
  }
  if (!flags.json) {
    columns.print(console.out);
    return;
  }
  Report report;
  report.add("to", flags.to, "");
  report.add("steps", std::move(rows), "", "");
  report.add("seconds", seconds, "", "");
  report.print(console, true);
}

void check_flags(const ConvertFlags& flags, const std::vector<ConvertStep>& steps) {
  if (steps.empty()) throw Error(ErrorCode::kUsage, "there is no version after the base's");
  if (flags.to == "scd" && flags.full_every != 0)
    throw Error(ErrorCode::kUsage, "--full-every needs --to trl or slime-*");
  if (flags.full_every != 0 && flags.to != "trl" && !flags.to.starts_with("slime")) {
    throw Error(ErrorCode::kUsage, fmt::format("'{}' has no full versions", flags.to));
  }
}

int run_convert(Console& console, ConvertFlags flags) {
  if (flags.to == "modelexpress") {  // The files of slime, with the only checksum that its receiver takes.
    flags.to = "slime-xor";
    flags.checksum = "adler32";
  }
  const auto began = std::chrono::steady_clock::now();
  require_not_interrupted(console.fs, flags.base);
  const std::vector<ConvertStep> steps =
      chain_of(find_convert_steps(console.fs, flags.inputs, flags.from), flags.base_version);
  check_flags(flags, steps);
  ProgressBar bar(console);
  std::vector<Written> all;
  {
    Conversion conversion(console, flags, steps, bar.callback());
    for (std::size_t i = 0; i < steps.size(); ++i) all.push_back(conversion.convert(steps[i], i + 1 == steps.size()));
  }
  bar.wipe();
  print(console, flags, all, std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count());
  return kExitGood;
}

}  // namespace

AddedCommand add_convert(Parser& app, Console& console) {
  auto flags = std::make_shared<ConvertFlags>();
  Parser* parser = app.add_subcommand("convert", "Convert versions between deltas and the files of other systems");
  parser->add_option("inputs", flags->inputs, "Deltas, steps or version directories, or directories of them")
      ->required()
      ->type_name("IN");
  parser->add_option("--from", flags->from, "What the inputs are: auto, scd, trl, slime or packed")
      ->check(Condition::one_of({"auto", "scd", "trl", "slime", "packed"}))
      ->capture_default_str()
      ->type_name("FORMAT");
  parser
      ->add_option("--to", flags->to,
                   "scd, trl, slime-xor, slime-overwrite, modelexpress, packed-indices, packed-deltas, "
                   "packed-deltas-zstd, verl, vllm")
      ->required()
      ->check(Condition::one_of({"scd", "trl", "slime-xor", "slime-overwrite", "modelexpress", "packed-indices",
                                 "packed-deltas", "packed-deltas-zstd", "verl", "vllm"}))
      ->type_name("FORMAT");
  parser->add_option("--base", flags->base, "The checkpoint before the first version")
      ->required()
      ->type_name("CHECKPOINT");
  parser->add_option("-o,--output", flags->output, "A delta file, when one is asked for; else the directory to add to")
      ->required()
      ->type_name("OUT");
  parser->add_option("--base-version", flags->base_version,
                     "Version number of the base; versions up to it are skipped");
  parser->add_option("--stream", flags->stream,
                     "Stream id of deltas, 32 hexadecimal digits; default: from the tensors");
  parser
      ->add_option("--checksum", flags->checksum,
                   "Checksum in slime's directories: xxh3-128 or adler32 (modelexpress: always)")
      ->check(Condition::one_of({"xxh3-128", "adler32"}))
      ->capture_default_str()
      ->type_name("NAME");
  parser
      ->add_option("--full-every", flags->full_every, "trl, slime: a full checkpoint at every multiple of N; 0: never")
      ->type_name("N");
  flags->encode.add_codec_to(*parser, true);
  add_json(*parser, flags->json);
  parser->footer(
      "Every version is checked against the state before it, and nothing appears half-written. docs/interop.md says "
      "what\n"
      "each system reads.\n\n"
      "Examples:\n"
      "  sparsecast convert 101.scd --to slime-xor --base step_100.safetensors -o shared/\n"
      "  sparsecast convert shared/ --from slime --to scd --base model/ -o deltas/\n"
      "  sparsecast convert step_13.safetensors --to scd --base step_12.safetensors -o 13.scd\n"
      "  sparsecast convert 101.scd --to scd --objective speed --base step_100.safetensors -o for_devices.scd");
  return {parser, [flags, &console] { return run_convert(console, *flags); }};
}

}  // namespace sparsecast::tools
