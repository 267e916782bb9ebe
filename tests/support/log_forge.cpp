// SPDX-License-Identifier: Apache-2.0
#include "support/log_forge.hpp"

#include "support/fault_fs.hpp"

namespace sparsecast::test {

std::shared_ptr<const SigningKey> fixed_key(unsigned char seed) {
  const std::array<std::byte, 1> byte{static_cast<std::byte>(seed)};
  std::string text = "ed25519-secret:";
  for (int i = 0; i < 32; ++i) text += hex_of(byte);
  FaultFileSystem fs;
  const std::unique_ptr<File> file = fs.open("key", OpenMode::kCreatePrivate);
  file->write_at(0, std::as_bytes(std::span(std::string_view(text))));
  return SigningKey::load(fs, "key");
}

}  // namespace sparsecast::test
