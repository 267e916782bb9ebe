// SPDX-License-Identifier: Apache-2.0

// broadcast: a trainer and an engine, two threads that meet over TCP. Each step changes 1 % of the weights, and only
// those are sent. Between processes or machines only host, port and secret differ.

#include <cstdint>
#include <future>
#include <iostream>

#include "sparsecast/sparsecast.hpp"

using namespace sparsecast;
using namespace std::chrono_literals;
using Weights = std::vector<std::uint16_t>;
using Table = std::shared_ptr<const TensorTable>;

namespace {

constexpr int kSteps = 5;

void train_and_send(const Table& table, Weights& weights, const RendezvousOptions& place, RendezvousListener& port) {
  const auto transport = make_tcp_transport(Rendezvous::meet(place, port));
  Publisher publisher(table, {ref_to((*table)[0], weights.data())}, {});
  for (std::size_t step = 0; step < kSteps; ++step) {
    for (std::size_t i = step; i < weights.size(); i += 100) ++weights[i];
    const SyncReport report = sync_send(publisher, *transport, 60s);  // Returns when the engine has verified it.
    std::cout << "version " << report.version << ": " << report.changed << " changed, " << report.wire_bytes
              << " bytes instead of " << weights.size() * sizeof weights[0] << "\n";
  }
}

void receive(const Table& table, Weights& weights, const RendezvousOptions& place) {
  const auto transport = make_tcp_transport(Rendezvous::meet(place));
  Subscriber subscriber(table, {ref_to((*table)[0], weights.data())}, {});
  for (int step = 0; step < kSteps; ++step) sync_receive(subscriber, *transport, 0, 60s);
}

}  // namespace

int main() try {
  const auto table =
      std::make_shared<const TensorTable>(std::vector<TensorSpec>{{"layer.weight", DType::kBF16, {1000, 1000}}});
  Weights trained(std::size_t{1000} * 1000, 0x3F80), received = trained;
  RendezvousOptions place;
  place.size = 2;
  place.secret = "openssl rand -hex 32 makes a better one";
  RendezvousListener listener(place);  // On a port that the system chooses.
  place.port = listener.port();
  RendezvousOptions engine_place = place;
  engine_place.rank = 1;
  auto engine = std::async(std::launch::async, [&] { receive(table, received, engine_place); });
  train_and_send(table, trained, place, listener);
  engine.get();
  std::cout << (trained == received ? "every bit is the same\n" : "THE WEIGHTS DIFFER\n");
  return trained == received ? 0 : 1;
} catch (const Error& error) {
  std::cerr << "error (" << to_string(error.code()) << "): " << error.what() << "\n";
  return 1;
}
