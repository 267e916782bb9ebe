// SPDX-License-Identifier: Apache-2.0
#include <sparsecast/sparsecast.hpp>

#include <array>
#include <cstdint>
#include <iostream>
#include <memory>

int main() {
  using namespace sparsecast;
  auto table = std::make_shared<const TensorTable>(std::vector<TensorSpec>{{"weight", DType::kBF16, {4}}});
  std::array<std::uint16_t, 4> trainer = {0x3F80, 0x4000, 0x4040, 0x4080};
  std::array<std::uint16_t, 4> engine = trainer;
  Publisher publisher(table, {ref_to((*table)[0], trainer.data())}, {});
  Subscriber subscriber(table, {ref_to((*table)[0], engine.data())}, {});
  trainer[2] = 0x4041;  // The optimizer step.
  subscriber.stage(publisher.publish());
  publisher.commit(subscriber.apply().version);
  std::cout << "sparsecast " << version_string() << ": version " << subscriber.version() << '\n';
  return engine == trainer && subscriber.digest() == publisher.digest() ? 0 : 1;
}
