// SPDX-License-Identifier: Apache-2.0

// A wide-area network between network namespaces, for kernels with and without netem:
//
//     wide_area_link NAMESPACE MBIT DELAY_MS JITTER_MS LOSS_PERCENT [NAMESPACE ...]...
//
// Host i is the i-th namespace, at 10.99.0.(i + 1) on a TUN device wan0 that this program makes there. Its link has a
// direction to the host and one from it, each with the bandwidth (0: no limit), one-way delay, additional delay of up
// to the jitter, and independent losses that are given; a packet passes the sender's link, then the receiver's. A
// direction keeps the order of its packets, and drops what would wait longer than one round trip of its delay, and
// 50 ms. Reads commands, one a line, and answers each with a line; ends with its standard input:
//
//     cut HOST            the link drops everything, also what is under way             -> cut HOST
//     cut HOST BYTES      the same, once so many more bytes have reached the host       -> (later) cut HOST
//     heal HOST                                                                         -> healed HOST
//     bytes HOST          bytes of packets that have reached the host, and left it      -> bytes HOST IN OUT
//
// A request to connect (TCP SYN) that a cut link drops is reported: lost FROM TO PORT, where PORT is the sender's.

#include <fcntl.h>
#include <linux/if_tun.h>
#include <net/if.h>
#include <poll.h>
#include <sched.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <limits>
#include <random>
#include <string>
#include <vector>

namespace {

using Nanoseconds = std::chrono::nanoseconds;
using Packet = std::vector<unsigned char>;

constexpr std::size_t kSmallestHeader = 20;
constexpr std::size_t kLargestPacket = 65536;
constexpr int kPacketsInARow = 64;  ///< Read from one device before others have their turn.

Nanoseconds now() { return std::chrono::steady_clock::now().time_since_epoch(); }

[[noreturn]] void fail(const std::string& what) {
  std::perror(what.c_str());
  std::exit(1);
}

struct Link {
  double bytes_per_ns = 0;  ///< 0: no limit.
  Nanoseconds delay{0};
  Nanoseconds jitter{0};
  double loss = 0;
};

struct Waiting {
  Nanoseconds due{0};
  std::size_t to = 0;
  Packet packet;
};

/// One direction of a link. Packets leave it in the order in which they came.
class Direction {
 public:
  explicit Direction(const Link& link) : link_(link) {}

  void push(std::size_t to, Packet packet, Nanoseconds at, std::mt19937_64& random) {
    std::uniform_real_distribution<double> uniform;
    Nanoseconds begin = std::max(free_, at);
    if (begin - at > 2 * link_.delay + std::chrono::milliseconds(50)) return;
    if (link_.bytes_per_ns > 0) {
      begin += Nanoseconds(static_cast<std::int64_t>(static_cast<double>(packet.size()) / link_.bytes_per_ns));
    }
    free_ = begin;
    if (uniform(random) < link_.loss) return;
    const auto jitter = static_cast<double>(link_.jitter.count()) * uniform(random);
    last_ = std::max(last_, begin + link_.delay + Nanoseconds(static_cast<std::int64_t>(jitter)));
    waiting_.push_back({last_, to, std::move(packet)});
  }
  Nanoseconds next() const { return waiting_.empty() ? Nanoseconds::max() : waiting_.front().due; }
  Waiting pop() {
    Waiting first = std::move(waiting_.front());
    waiting_.pop_front();
    return first;
  }
  void clear() { waiting_.clear(); }

 private:
  Link link_;
  Nanoseconds free_{0};
  Nanoseconds last_{0};
  std::deque<Waiting> waiting_;
};

struct Host {
  int device = -1;
  Direction from;
  Direction to;
  bool cut = false;
  std::uint64_t cut_after = std::numeric_limits<std::uint64_t>::max();
  std::uint64_t received = 0;
  std::uint64_t sent = 0;
};

/// Returns a TUN device wan0 in the namespace, which this thread enters for it.
int open_device(const std::string& name) {
  const std::string path = "/run/netns/" + name;
  const int space = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (space < 0 || setns(space, CLONE_NEWNET) != 0) fail(path);
  close(space);
  const int device = open("/dev/net/tun", O_RDWR | O_NONBLOCK | O_CLOEXEC);
  ifreq request{};
  request.ifr_flags = IFF_TUN | IFF_NO_PI;
  std::strcpy(request.ifr_name, "wan0");
  if (device < 0 || ioctl(device, TUNSETIFF, &request) != 0) fail("/dev/net/tun");
  return device;
}

class Network {
 public:
  void add(const std::string& name, const Link& link) {
    hosts_.push_back({.device = open_device(name), .from = Direction(link), .to = Direction(link)});
  }

  void run() {
    std::vector<pollfd> files;
    for (const Host& host : hosts_) files.push_back({host.device, POLLIN, 0});
    files.push_back({STDIN_FILENO, POLLIN, 0});
    for (;;) {
      const Nanoseconds wait = std::max(next() - now(), Nanoseconds(0));
      const timespec until{static_cast<time_t>(wait.count() / 1'000'000'000), wait.count() % 1'000'000'000};
      ppoll(files.data(), files.size(), next() == Nanoseconds::max() ? nullptr : &until, nullptr);
      for (std::size_t i = 0; i < hosts_.size(); ++i) {
        if (files[i].revents != 0) read_packets(i);
      }
      if (files.back().revents != 0 && !read_commands()) return;
      move();
    }
  }

 private:
  Nanoseconds next() const {
    Nanoseconds first = Nanoseconds::max();
    for (const Host& host : hosts_) first = std::min({first, host.from.next(), host.to.next()});
    return first;
  }

  void read_packets(std::size_t from) {
    unsigned char buffer[kLargestPacket];
    for (int i = 0; i < kPacketsInARow; ++i) {
      const ssize_t size = read(hosts_[from].device, buffer, sizeof(buffer));
      if (size <= 0) return;
      if (static_cast<std::size_t>(size) < kSmallestHeader || buffer[0] >> 4 != 4) continue;  // Not IPv4.
      const std::size_t to = buffer[19] - std::size_t{1};
      if (to >= hosts_.size() || to == from) continue;
      hosts_[from].sent += static_cast<std::uint64_t>(size);
      Packet packet(buffer, buffer + size);
      if (hosts_[from].cut || hosts_[to].cut) {
        report_lost(from, to, packet);
      } else {
        hosts_[from].from.push(to, std::move(packet), now(), random_);
      }
    }
  }

  static void report_lost(std::size_t from, std::size_t to, const Packet& packet) {
    constexpr unsigned char kTcp = 6;
    constexpr unsigned char kSyn = 2;
    const std::size_t header = std::size_t{4} * (packet[0] & 15U);
    if (packet[9] != kTcp || packet.size() < header + kSmallestHeader || packet[header + 13] != kSyn) return;
    std::printf("lost %zu %zu %d\n", from, to, packet[header] * 256 + packet[header + 1]);
  }

  /// Moves the packets that are due from a link to the next, or to their host.
  void move() {
    for (Nanoseconds at = now(); next() <= at; at = now()) {
      for (Host& host : hosts_) {
        while (host.from.next() <= at) {
          Waiting waiting = host.from.pop();
          Host& receiver = hosts_[waiting.to];
          if (!receiver.cut) receiver.to.push(waiting.to, std::move(waiting.packet), waiting.due, random_);
        }
      }
      for (std::size_t i = 0; i < hosts_.size(); ++i) {
        while (hosts_[i].to.next() <= at) deliver(i, hosts_[i].to.pop().packet);
      }
    }
  }

  void deliver(std::size_t to, const Packet& packet) {
    Host& host = hosts_[to];
    host.received += packet.size();
    if (write(host.device, packet.data(), packet.size()) < 0) return;  // Its queue is full: a loss like others.
    if (host.received >= host.cut_after) cut(to);
  }

  void cut(std::size_t i) {
    Host& host = hosts_[i];
    host.cut = true;
    host.cut_after = std::numeric_limits<std::uint64_t>::max();
    host.from.clear();
    host.to.clear();
    std::printf("cut %zu\n", i);
  }

  /// Returns false at the end of the input.
  bool read_commands() {
    char buffer[256];
    const ssize_t size = read(STDIN_FILENO, buffer, sizeof(buffer));
    if (size <= 0) return false;
    commands_.append(buffer, static_cast<std::size_t>(size));
    for (std::size_t end = 0; (end = commands_.find('\n')) != std::string::npos; commands_.erase(0, end + 1)) {
      obey(commands_.substr(0, end));
    }
    return true;
  }

  void obey(const std::string& command) {
    char word[16] = {};
    std::size_t i = 0;
    unsigned long long bytes = 0;
    const int fields = std::sscanf(command.c_str(), "%15s %zu %llu", word, &i, &bytes);
    if (fields < 2 || i >= hosts_.size()) {
      std::printf("not understood: %s\n", command.c_str());
    } else if (std::strcmp(word, "cut") == 0 && fields == 3) {
      hosts_[i].cut_after = hosts_[i].received + bytes;
    } else if (std::strcmp(word, "cut") == 0) {
      cut(i);
    } else if (std::strcmp(word, "heal") == 0) {
      hosts_[i].cut = false;
      std::printf("healed %zu\n", i);
    } else {
      std::printf("bytes %zu %llu %llu\n", i, static_cast<unsigned long long>(hosts_[i].received),
                  static_cast<unsigned long long>(hosts_[i].sent));
    }
  }

  std::vector<Host> hosts_;
  std::mt19937_64 random_{20261127};
  std::string commands_;
};

}  // namespace

int main(int count, char** arguments) {
  constexpr int kFields = 5;
  constexpr double kBytesPerNanosecond = 1.0 / 8000;  // of one Mbit/s
  const auto milliseconds = [](const char* text) {
    return Nanoseconds(static_cast<std::int64_t>(std::atof(text) * 1e6));
  };
  if (count < 1 + kFields || (count - 1) % kFields != 0) {
    std::fputs("wide_area_link NAMESPACE MBIT DELAY_MS JITTER_MS LOSS_PERCENT ...\n", stderr);
    return 2;
  }
  std::setvbuf(stdout, nullptr, _IOLBF, 0);
  prctl(PR_SET_TIMERSLACK, 1000UL);
  Network network;
  for (int i = 1; i < count; i += kFields) {
    network.add(arguments[i], {.bytes_per_ns = std::atof(arguments[i + 1]) * kBytesPerNanosecond,
                               .delay = milliseconds(arguments[i + 2]),
                               .jitter = milliseconds(arguments[i + 3]),
                               .loss = std::atof(arguments[i + 4]) / 100});
  }
  std::puts("ready");
  network.run();
  return 0;
}
