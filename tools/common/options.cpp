// SPDX-License-Identifier: Apache-2.0
#include "tools/common/options.hpp"

#include <fmt/format.h>

#include <array>
#include <cstring>

#include "layout/name_pattern.hpp"

namespace sparsecast::tools {
namespace {

const std::string& require_replaceable(FileSystem& fs, const std::string& path) {
  if (!fs.exists(path)) return path;
  if (fs.is_directory(path)) throw Error(ErrorCode::kUsage, "the output is a directory", path);
  const std::unique_ptr<File> file = fs.open(path, OpenMode::kRead);
  std::array<std::byte, 4> magic{};
  if (file->size() >= magic.size()) file->read_at(0, magic);
  if (file->size() != 0 && std::memcmp(magic.data(), "SCH1", magic.size()) != 0) {
    throw Error(ErrorCode::kUsage, "exists and is no delta; it is not overwritten", path);
  }
  return path;
}

}  // namespace

void EncodeFlags::add_to(Parser& parser, bool with_values) {
  parser.add_option("-o,--output", output, "The delta file to write (.scd); an older delta there is replaced")
      ->required()
      ->type_name("DELTA");
  add_codec_to(parser, with_values);
}

void EncodeFlags::add_codec_to(Parser& parser, bool with_values) {
  parser
      .add_option("--positions", positions,
                  "How positions are coded: auto (by --objective), packed, gap16, index32, bitmap, or context (a third "
                  "smaller; "
                  "decoding reads all old weights, on the host; with ulp)")
      ->check(Condition::one_of({"auto", "packed", "gap16", "index32", "bitmap", "context"}))
      ->capture_default_str()
      ->type_name("CODEC");
  parser
      .add_option("--objective", objective,
                  "What auto saves: size (context where the old weights are at hand), speed (packed or bitmap), or the "
                  "time over a link, named by its rate: 100Mb/s, 12.5MB/s")
      ->check([](const std::string& text) {
        return objective_from_name(text) ? std::string() : "it is speed, size, or a rate in Mb/s, Gb/s, MB/s or GB/s";
      })
      ->capture_default_str()
      ->type_name("WHAT");
  if (with_values) {
    parser
        .add_option("--values", values,
                    "How values are coded: ulp (smallest; composes and inverts), xor, or raw (may be applied twice)")
        ->check(Condition::one_of({"ulp", "xor", "raw"}))
        ->capture_default_str()
        ->type_name("CODEC");
  }
  parser
      .add_option(
          "--block-changes", block_changes,
          "Changes of a block: 4096 (default), or 512 (with --objective speed), which a device decodes before its "
          "pause, in some 3 % more bytes")
      ->check(Condition::one_of({"512", "4096"}))
      ->type_name("N");
  parser.add_option("--zstd", zstd_level, "Compress frames with zstd at this level where that is smaller; 0: off")
      ->check(Condition::range(0, 19))
      ->capture_default_str()
      ->type_name("LEVEL");
  parser.add_option("--frame-mb", frame_mb, "Largest frame, in MiB: what a reader holds in memory")
      ->check(Condition::range(1, 1024))
      ->capture_default_str()
      ->type_name("MIB");
  add_threads(parser, threads);
}

EncodeOptions EncodeFlags::options() const {
  EncodeOptions encode;
  encode.positions = position_mode_from_name(positions).value();
  encode.values = value_codec_from_name(values).value();
  encode.objective = objective_from_name(objective).value();
  const std::uint32_t usual = encode.objective == Objective::speed() ? kBlockChanges : kLargeBlockChanges;
  encode.block_changes = block_changes != 0 ? block_changes : usual;
  encode.zstd_level = zstd_level;
  encode.frame_capacity = frame_mb << 20;
  encode.threads = threads;
  return encode;
}

void DTypeFlags::add_to(Parser& parser) {
  parser
      .add_option(
          "--dtype", dtypes,
          "Tensors of U8, I8 or I32 that hold 4-bit numbers, which then take fewer bytes: I4X2 (integers) or F4X2 "
          "(fp4 e2m1). The first pattern (* and ?) that fits a name counts")
      ->type_name("PATTERN=DTYPE");
}

void DTypeFlags::declare(Checkpoint& checkpoint) const {
  struct Declared {
    std::string pattern;
    DType pairs;
    bool found = false;
  };
  std::vector<Declared> declared;
  for (const std::string& text : dtypes) {
    const std::size_t equals = text.rfind('=');
    const std::optional<DType> dtype =
        equals == std::string::npos ? std::nullopt : dtype_from_name(std::string_view(text).substr(equals + 1));
    if (!dtype || !is_pair(*dtype)) {
      throw Error(ErrorCode::kUsage, fmt::format("--dtype {}: not PATTERN=I4X2 and not PATTERN=F4X2", text));
    }
    declared.push_back({text.substr(0, equals), *dtype});
  }
  checkpoint.declare([&](const TensorSpec& spec) -> std::optional<DType> {
    for (Declared& one : declared) {
      if (!matches_wildcard(one.pattern, spec.name)) continue;
      one.found = true;
      return one.pairs;
    }
    return std::nullopt;
  });
  for (const Declared& one : declared) {
    if (!one.found) {
      throw Error(ErrorCode::kUsage,
                  fmt::format("--dtype {}={}: no tensor has such a name, or an option before it fits", one.pattern,
                              to_string(one.pairs)));
    }
  }
}

void add_threads(Parser& parser, int& threads) {
  parser.add_option("--threads", threads, "Threads; 0: all cores. Never changes the result")
      ->check(Condition::range(0, 4096))
      ->capture_default_str()
      ->type_name("N");
}

void add_json(Parser& parser, bool& json) { parser.add_flag("--json", json, "Print one JSON object for machines"); }

DeltaOutput::DeltaOutput(FileSystem& fs, const std::string& path) : file_(fs, require_replaceable(fs, path)) {}

RecordSink DeltaOutput::sink() {
  return [this](Bytes&& record) { file_.append(record); };
}

}  // namespace sparsecast::tools
