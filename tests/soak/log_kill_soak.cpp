// SPDX-License-Identifier: Apache-2.0

// Kills `sparsecast log ...` with SIGKILL at every call of the file system, and once more in the middle of every write.
// What is left must not mislead a reader; the same command at its first restart must do all that it was to do; and then
// everybody holds the newest version, bit for bit.

#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/wait.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <random>
#include <sstream>
#include <stdexcept>

#include "killing_fs.hpp"
#include "soak.hpp"
#include "sparsecast/safetensors.hpp"
#include "support/log_scene.hpp"
#include "tools/common/cli.hpp"

namespace sparsecast {
namespace {

namespace files = std::filesystem;
using soak::CallCounter;
using soak::KillingFileSystem;
using tools::Console;
using Arguments = std::vector<std::string>;

constexpr const char* kUsage =
    "log_kill_soak: SIGKILL at every call of the file system that `sparsecast log` commands make\n"
    "  --seconds S   points at random for so long; 0 (default): every point once\n"
    "  --double 1    each restart is killed, too, at a random point, before the one that must succeed\n"
    "  --seed N\n";

/// A scenario: a command that is killed, and the conditions after it has run again.
struct Scenario {
  std::string name;
  std::vector<Arguments> before;     ///< Commands that make the world.
  Arguments command;                 ///< The one that is killed.
  std::uint64_t old_step = 0;        ///< The newest before the command, and
  std::uint64_t new_step = 0;        ///< after it.
  std::vector<std::string> holders;  ///< Checkpoints that hold `new_step` afterwards.
};

constexpr std::uint64_t kSteps = 9;

Arguments words(const std::string& line) {
  std::istringstream in(line);
  Arguments result;
  for (std::string word; in >> word;) result.push_back(word);
  return result;
}

std::string publish(std::uint64_t step) {
  return fmt::format("log publish log {}.safetensors --base {}.safetensors --state s", step, step - 1);
}

/// A log with so many published steps.
std::vector<Arguments> log_of(std::uint64_t steps) {
  std::vector<Arguments> commands = {words("log init log 0.safetensors --state s")};
  for (std::uint64_t step = 1; step <= steps; ++step) commands.push_back(words(publish(step)));
  return commands;
}

std::vector<Arguments> then(std::vector<Arguments> commands, const std::vector<std::string>& more) {
  for (const std::string& line : more) commands.push_back(words(line));
  return commands;
}

std::vector<Scenario> scenarios() {
  const auto pull = [](const std::string& flags) { return words("log pull log copy " + flags); };
  return {
      {"init", {}, words("log init log 0.safetensors --state s"), 0, 0, {}},
      {"publish on a base", log_of(2), words(publish(3)), 2, 3, {}},
      {"publish with a takeover",
       log_of(2),
       words("log publish log 3.safetensors --base 2.safetensors --take-over --state other"),
       2,
       3,
       {}},
      {"publish on a mirror, with upkeep",
       then(log_of(7), {"log pull log mirror --version 6"}),
       words("log publish log 8.safetensors --mirror mirror --state s"),
       7,
       8,
       {"mirror"}},
      {"publish signed",
       {words("log keygen -o key"), words("log init log 0.safetensors --state s --key key")},
       words(publish(1) + " --key key"),
       0,
       1,
       {}},
      {"pull in place, one delta", then(log_of(1), {"log pull log copy", publish(2)}), pull(""), 2, 2, {"copy"}},
      {"pull in place, every version",
       then(log_of(1), {"log pull log copy", publish(2), publish(3), publish(4)}),
       pull("--every-version"),
       4,
       4,
       {"copy"}},
      {"pull in place, merged",
       then(log_of(8), {"log pull log copy --version 4", "log compact log --scratch . --mirror mirror"}),
       pull("--lease reader"),
       8,
       8,
       {"copy"}},
      {"pull by copy-on-write",
       then(log_of(1), {"log pull log copy", publish(2), publish(3)}),
       pull("--copy-on-write"),
       3,
       3,
       {"copy"}},
      {"pull from an anchor", log_of(3), pull(""), 3, 3, {"copy"}},
      {"pull after gc went past",
       then(log_of(1), {"log pull log copy", publish(2), publish(3), publish(4),
                        "log anchor log --checkpoint 4.safetensors", "log gc log --keep 1 --grace 0"}),
       pull(""),
       4,
       4,
       {"copy"}},
      {"follow with a lease",
       then(log_of(1), {"log follow log copy --once --lease reader", publish(2), publish(3)}),
       words("log follow log copy --once --lease reader"),
       3,
       3,
       {"copy"}},
      {"anchor of a checkpoint", log_of(3), words("log anchor log --checkpoint 3.safetensors"), 3, 3, {}},
      {"anchor of a mirror",
       then(log_of(3), {"log pull log mirror --version 2"}),
       words("log anchor log --mirror mirror"),
       3,
       3,
       {"mirror"}},
      {"compact", log_of(9), words("log compact log --scratch . --mirror mirror"), 9, 9, {"mirror"}},
      {"gc",
       then(log_of(8), {"log compact log --scratch . --mirror mirror", "log pull log copy --version 7 --lease reader",
                        "log anchor log --checkpoint 6.safetensors"}),
       words("log gc log --keep 1 --grace 0"),
       8,
       8,
       {}},
      {"change of keys",
       {words("log keygen -o key"), words("log init log 0.safetensors --state s --key key"),
        words(publish(1) + " --key key")},
       words("log keys log --add next.pub --key key --state s"),
       1,
       1,
       {}},
  };
}

struct Outcome {
  int code = 0;
  std::string err;
};

Outcome run(FileSystem& fs, const Arguments& arguments) {
  std::ostringstream out;
  std::ostringstream err;
  Console console{fs, out, err};
  const int code = tools::run_cli(arguments, console);
  return {code, err.str()};
}

std::string joined(const Arguments& arguments) {
  std::string text = "sparsecast";
  for (const std::string& argument : arguments) text += ' ' + argument;
  return text;
}

void require(bool good, const std::string& what) {
  if (!good) throw std::runtime_error(what);
}

class Soak {
 public:
  Soak(std::uint64_t seed, double seconds, bool twice) : random_(seed), seconds_(seconds), twice_(twice) {
    void* shared = ::mmap(nullptr, sizeof(CallCounter), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    require(shared != MAP_FAILED, "no shared memory");
    counter_ = new (shared) CallCounter;
    std::string pattern = (files::temp_directory_path() / "sparsecast_kill_XXXXXX").string();
    require(::mkdtemp(pattern.data()) != nullptr, "no temporary folder");
    folder_ = pattern;
    files::create_directory(folder_ / "weights");
    std::ofstream(folder_ / "weights" / "next.pub") << to_string(SigningKey::generate()->public_key()) << '\n';
    for (std::uint64_t step = 0; step <= kSteps; ++step) {
      const Bytes bytes = scene_.checkpoint(step);
      std::ofstream(folder_ / "weights" / fmt::format("{}.safetensors", step), std::ios::binary)
          .write(reinterpret_cast<const char*>(bytes.data()), static_cast<std::streamsize>(bytes.size()));
    }
  }
  ~Soak() {
    std::error_code ignored;
    files::current_path("/", ignored);
    files::remove_all(folder_, ignored);
  }
  Soak(const Soak&) = delete;
  Soak& operator=(const Soak&) = delete;

  int run();

 private:
  struct World {
    const Scenario* scenario;
    files::path path;
    std::uint64_t calls = 0;
    std::vector<bool> is_write;
  };

  World make_world(const Scenario& scenario);
  void enter_copy(const World& world);
  bool killed_in(const World& world, std::uint64_t call, bool torn);
  void point(const World& world, std::uint64_t call, bool torn);
  void require_no_lie(const Scenario& scenario);
  void require_all_done(const Scenario& scenario);
  bool holds(const std::string& checkpoint, std::uint64_t step);

  test::LogScene scene_;
  std::mt19937_64 random_;
  double seconds_;
  bool twice_;
  CallCounter* counter_ = nullptr;
  files::path folder_;
  std::uint64_t kills_ = 0;
  std::uint64_t second_kills_ = 0;
};

Soak::World Soak::make_world(const Scenario& scenario) {
  World world{&scenario, folder_ / fmt::format("world of {}", scenario.name), 0, {}};
  files::copy(folder_ / "weights", world.path, files::copy_options::recursive);
  files::current_path(world.path);
  for (const Arguments& arguments : scenario.before) {
    const Outcome done = sparsecast::run(FileSystem::posix(), arguments);
    require(done.code == 0, fmt::format("{}: {}: {}", scenario.name, joined(arguments), done.err));
  }
  enter_copy(world);
  require(!killed_in(world, CallCounter::kNever, false), "killed without a reason");
  world.calls = counter_->calls;
  require(world.calls <= CallCounter::kMostCalls, scenario.name + ": more calls than are remembered");
  for (std::uint64_t call = 0; call < world.calls; ++call) world.is_write.push_back(counter_->is_write[call]);
  require_all_done(scenario);
  return world;
}

void Soak::enter_copy(const World& world) {
  const files::path copy = folder_ / "here";
  files::current_path(folder_);
  files::remove_all(copy);
  files::copy(world.path, copy, files::copy_options::recursive);
  files::current_path(copy);
}

/// Runs the scenario's command in a child that dies at that call. False when it came to its end before.
bool Soak::killed_in(const World& world, std::uint64_t call, bool torn) {
  counter_->calls = 0;
  for (std::atomic<bool>& is_write : counter_->is_write) is_write = false;
  const pid_t child = ::fork();
  require(child >= 0, "fork failed");
  if (child == 0) {
    KillingFileSystem fs(*counter_, call, torn);
    ::_exit(sparsecast::run(fs, world.scenario->command).code);
  }
  int status = 0;
  require(::waitpid(child, &status, 0) == child, "the child is lost");
  if (WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL) return true;
  require(WIFEXITED(status) && WEXITSTATUS(status) == 0, fmt::format("the command failed by itself: {:#x}", status));
  return false;
}

bool Soak::holds(const std::string& path, std::uint64_t step) {
  const Checkpoint checkpoint = Checkpoint::open(FileSystem::posix(), path);
  if (!(checkpoint.table().hash() == scene_.table()->hash())) return false;
  for (std::size_t t = 0; t < checkpoint.table().size(); ++t) {
    const Bytes bytes = checkpoint.tensor(t);
    const Bytes& wanted = scene_.state(step)[t];
    if (!std::equal(bytes.begin(), bytes.end(), wanted.begin(), wanted.end())) return false;
  }
  return true;
}

/// Before any restart: whoever joins now gets a version that there was, whole, or there is no log yet; and a checkpoint
/// that was being written is refused, or is of one version.
void Soak::require_no_lie(const Scenario& scenario) {
  for (const std::string& holder : scenario.holders) {
    if (sparsecast::run(FileSystem::posix(), {"digest", holder}).code != 0) continue;
    bool is_version = false;
    for (std::uint64_t step = 0; step <= kSteps; ++step) is_version = is_version || holds(holder, step);
    require(is_version, holder + " passes for a checkpoint and is of no version");
  }
  const Outcome joined = sparsecast::run(FileSystem::posix(), words("log pull log early"));
  if (joined.code != 0) {
    require(scenario.command[1] == "init", "before the restart nobody could join: " + joined.err);
    return;
  }
  require(holds("early", scenario.old_step) || holds("early", scenario.new_step), "a joiner got wrong bytes, silently");
}

void Soak::require_all_done(const Scenario& scenario) {
  const Outcome verified = sparsecast::run(FileSystem::posix(), words("log verify log --scratch ."));
  require(verified.code == 0, "the log is not good afterwards: " + verified.err);
  for (const std::string& holder : scenario.holders) require(holds(holder, scenario.new_step), holder + " is wrong");
  const Outcome joined = sparsecast::run(FileSystem::posix(), words("log pull log late"));
  require(joined.code == 0, "nobody can join afterwards: " + joined.err);
  require(holds("late", scenario.new_step), "a joiner does not get the newest version");
}

void Soak::point(const World& world, std::uint64_t call, bool torn) {
  enter_copy(world);
  if (!killed_in(world, call, torn)) return;
  ++kills_;
  try {
    require_no_lie(*world.scenario);
    if (twice_ && killed_in(world, random_() % world.calls, random_() % 2 == 0)) ++second_kills_;
    const Outcome again = sparsecast::run(FileSystem::posix(), world.scenario->command);
    require(again.code == 0, "the restart failed: " + again.err);
    require_all_done(*world.scenario);
  } catch (const std::exception& error) {
    throw std::runtime_error(fmt::format("{}, killed at call {} of {}{}: {}", world.scenario->name, call, world.calls,
                                         torn ? " (torn)" : "", error.what()));
  }
}

int Soak::run() {
  const soak::Stopwatch watch;
  const std::vector<Scenario> all = scenarios();
  std::vector<World> worlds;
  std::uint64_t points = 0;
  for (const Scenario& scenario : all) {
    worlds.push_back(make_world(scenario));
    points += worlds.back().calls;
  }
  std::printf("%zu commands, %llu calls\n", worlds.size(), static_cast<unsigned long long>(points));
  if (seconds_ > 0) {
    while (watch.seconds() < seconds_) {
      const World& world = worlds[random_() % worlds.size()];
      const std::uint64_t call = random_() % world.calls;
      point(world, call, world.is_write[call] && random_() % 2 == 0);
    }
  } else {
    for (const World& world : worlds) {
      const std::uint64_t before = kills_;
      for (std::uint64_t call = 0; call < world.calls; ++call) {
        point(world, call, false);
        if (world.is_write[call]) point(world, call, true);
      }
      std::printf("%-34s %5llu calls, %4lld of them writes: %llu kills, all recovered\n", world.scenario->name.c_str(),
                  static_cast<unsigned long long>(world.calls),
                  static_cast<long long>(std::count(world.is_write.begin(), world.is_write.end(), true)),
                  static_cast<unsigned long long>(kills_ - before));
    }
  }
  std::printf("%llu kills (and %llu restarts killed), 0 stuck, 0 silent, %.1f s\n",
              static_cast<unsigned long long>(kills_), static_cast<unsigned long long>(second_kills_), watch.seconds());
  return 0;
}

}  // namespace
}  // namespace sparsecast

int main(int argc, char** argv) {
  std::setvbuf(stdout, nullptr, _IOLBF, BUFSIZ);
  try {
    using namespace sparsecast;
    soak::Flags flags(argc, argv, kUsage);
    const std::uint64_t seed = flags.number("--seed", std::random_device{}());
    const auto seconds = static_cast<double>(flags.number("--seconds", 0));
    const bool twice = flags.number("--double", 0) != 0;
    flags.require_all_known();
    std::printf("seed %llu\n", static_cast<unsigned long long>(seed));
    return Soak(seed, seconds, twice).run();
  } catch (const std::exception& error) {
    std::fprintf(stderr, "log_kill_soak: %s\n", error.what());
    return 1;
  }
}
