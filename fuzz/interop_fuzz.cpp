// SPDX-License-Identifier: Apache-2.0

// Files of other systems, of arbitrary bytes: each is refused with an Error, or what it says is true of the base's
// table. The first byte chooses what the others are.

#include <unistd.h>

#include <cstdint>
#include <cstdlib>
#include <span>
#include <string>

#include "interop/formats/packed.hpp"
#include "interop/formats/slime.hpp"
#include "sparsecast/error.hpp"

namespace {

using namespace sparsecast;

void require(bool condition) {
  if (!condition) std::abort();
}

/// The table that the inputs are about: small, with every element size.
struct Base {
  Base() {
    const std::vector<TensorSpec> specs = {
        {"a", DType::kBF16, {40}}, {"b", DType::kF32, {5, 5}}, {"c", DType::kU8, {100}}, {"d", DType::kI64, {3}}};
    path = "/tmp/sparsecast_interop_fuzz." + std::to_string(::getpid());
    SafetensorsWriter writer(fs, path, specs);
    for (const TensorSpec& spec : specs) writer.append(Bytes(spec.bytes(), std::byte{0x3C}));
    writer.finish();
    checkpoint = Checkpoint::open(fs, path);
    fs.remove(path);
  }

  FileSystem& fs = FileSystem::posix();
  std::string path;
  Checkpoint checkpoint;
};

void decode(const Base& base, const std::function<void(PatchStore&)>& read) {
  WorkDirectory scratch(base.fs, base.path);
  PatchStore store(base.checkpoint.table(), scratch);
  read(store);
  const TensorPatches patches = store.patches();
  Bytes room;
  for (std::size_t n = 0; n < patches.heads.size(); ++n) {
    const TensorPatch patch = patches.read(n, room);
    require(patch.tensor < base.checkpoint.table().size() && patch.count > 0);
    require(patch.indices.size() == patch.count * 4);
    require(patch.values.size() == patch.count * element_size(base.checkpoint.table()[patch.tensor].dtype));
    check_patch(base.checkpoint.table(), patch);
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const Base base;
  if (size == 0) return 0;
  const ConstBytes bytes = std::as_bytes(std::span(data, size)).subspan(1);
  const std::size_t tensor = (data[0] >> 4) % base.checkpoint.table().size();
  try {
    switch (data[0] % 4) {
      case 0:
        slime::parse_index(std::string(reinterpret_cast<const char*>(bytes.data()), bytes.size()));
        break;
      case 1:
      case 2:
        decode(base, [&](PatchStore& store) {
          slime::decode_tensor(bytes, data[0] % 4 == 1 ? "xor" : "overwrite", tensor, base.checkpoint, store.sink());
        });
        break;
      default:
        decode(base,
               [&](PatchStore& store) { packed::read_flush(bytes, "input", base.checkpoint.table(), store.sink()); });
    }
  } catch (const Error& error) {
    require(error.code() == ErrorCode::kCorrupt || error.code() == ErrorCode::kUnsupported ||
            error.code() == ErrorCode::kTableMismatch);
  }
  return 0;
}
