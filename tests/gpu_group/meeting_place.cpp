// SPDX-License-Identifier: Apache-2.0
#include "gpu_group/meeting_place.hpp"

#include <filesystem>
#include <fstream>
#include <stdexcept>
#include <thread>

namespace sparsecast::test {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

std::shared_ptr<ControlChannel> MeetingPlace::meet(int size, std::uint32_t generation) {
  RendezvousOptions options;
  options.rank = rank_;
  options.size = size;
  options.secret = plan_.secret;
  options.generation = generation;
  options.timeout = plan_.timeout;
  options.max_blob_bytes = std::uint64_t{256} << 20;
  const std::string file = plan_.directory + "/port";
  if (rank_ == 0) {
    if (!listener_) {
      listener_.emplace(options);
      std::ofstream(file + ".new") << listener_->port();
      if (std::rename((file + ".new").c_str(), file.c_str()) != 0) throw std::runtime_error("cannot write " + file);
    }
    options.port = listener_->port();
    return Rendezvous::meet(options, *listener_);
  }
  wait_until(
      deadline(), [&] { return static_cast<bool>(std::ifstream(file) >> options.port); },
      "rank 0 has not said its port");
  return Rendezvous::meet(options);
}

void MeetingPlace::invite() { std::ofstream(plan_.directory + "/invitation"); }

void MeetingPlace::wait_for_invitation() {
  // The others may take a whole deadline to notice the loss, and meet before.
  wait_until(
      Clock::now() + 3 * plan_.timeout, [&] { return std::filesystem::exists(plan_.directory + "/invitation"); },
      "no meeting for a late rank");
}

void MeetingPlace::wait_until(Deadline end, const std::function<bool()>& holds, const char* complaint) {
  while (!holds()) {
    if (Clock::now() > end) throw std::runtime_error(complaint);
    std::this_thread::sleep_for(milliseconds(20));
  }
}

}  // namespace sparsecast::test
