// SPDX-License-Identifier: Apache-2.0

// publish LOG [STEPS]: a trainer that publishes each step to a delta log (a directory, or s3://bucket/prefix), and a
// follower in the same process that verifies that it gets the trained weights. docs/publishing-to-a-log.md.

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <iostream>
#include <memory>
#include <string>
#include <vector>

#include "sparsecast/log_follower.hpp"
#include "sparsecast/log_publisher.hpp"

using namespace sparsecast;

namespace {

constexpr std::uint64_t kRows = 256;
constexpr std::uint64_t kColumns = 512;

/// Changes a few weights by one representable value, in place of an optimizer.
void train(std::vector<std::uint16_t>& weights, std::uint64_t step) {
  for (std::size_t i = step % 97; i < weights.size(); i += 97) ++weights[i];
}

int run(const std::string& location, std::uint64_t steps) {
  FileSystem& fs = FileSystem::posix();
  const std::shared_ptr<ObjectStore> store = open_object_store(fs, location);
  const auto table =
      std::make_shared<const TensorTable>(std::vector<TensorSpec>{{"layer.weight", DType::kBF16, {kRows, kColumns}}});
  std::vector<std::uint16_t> weights(kRows * kColumns, 0x3F80);
  const std::vector<TensorRef> live{ref_to((*table)[0], weights.data())};
  std::vector<std::uint16_t> received = weights;
  const std::vector<TensorRef> engine{ref_to((*table)[0], received.data())};

  LogReader reader(store);
  LogWriter writer(reader, {});
  LogCreation creation;
  creation.table = table;
  creation.digest = sum(digest_tensors(*table, live));
  const LogCommit genesis = writer.create(creation);

  LogPublisher publisher(store, fs, {}, table, live, {});
  for (std::uint64_t step = 1; step <= steps; ++step) {
    train(weights, step);
    publisher.publish("step " + std::to_string(step));
  }
  const Publication newest = publisher.wait(std::chrono::minutes(2));
  std::cout << "version " << newest.commit.version << " is durable, " << newest.commit.delta_bytes << " bytes\n";

  // An engine anywhere else that began with the same weights.
  const std::string scratch = (std::filesystem::temp_directory_path() / ("follow-" + to_hex(genesis.stream))).string();
  fs.make_directory(scratch);
  {
    SubscriberOptions options;
    options.stream = genesis.stream;
    options.version = genesis.version;
    Subscriber subscriber(table, engine, options);
    LogFollower follower(store, fs, scratch + "/state", make_subscriber_target(subscriber, table, engine, fs, scratch),
                         {});
    std::cout << "the follower is at version " << follower.step().version << "\n";
  }
  std::filesystem::remove_all(scratch);
  const bool same = std::memcmp(weights.data(), received.data(), weights.size() * sizeof weights[0]) == 0;
  std::cout << (same ? "every bit is the same\n" : "THE WEIGHTS DIFFER\n");
  return same ? EXIT_SUCCESS : EXIT_FAILURE;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 2 || argc > 3) {
    std::cerr << "usage: publish LOG [STEPS]; LOG is a new directory or s3://bucket/prefix\n";
    return EXIT_FAILURE;
  }
  try {
    return run(argv[1], argc == 3 ? std::strtoull(argv[2], nullptr, 10) : 5);
  } catch (const Error& error) {
    std::cerr << "error (" << to_string(error.code()) << "): " << error.what() << "\n";
    return EXIT_FAILURE;
  }
}
