// interop_bench: one version of a recorded run in our frames and in the layouts of other systems.

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <iostream>
#include <nlohmann/json.hpp>

#include "interop_bench/layouts.hpp"
#include "sparsecast/error.hpp"

int main(int argc, char** argv) {
  using namespace sparsecast::bench;
  CLI::App app("Bytes and times, on one thread, of one version of a recorded run in the layouts of docs/interop.md",
               "interop_bench");
  std::string trace;
  std::string scratch = "/dev/shm";
  std::size_t step = 1;
  int repeats = 20;
  bool json = false;
  app.add_option("trace", trace, "A directory of checkpoints and sparse steps")->required()->type_name("DIR");
  app.add_option("--step", step, "Which step after the first checkpoint")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  app.add_option("--repeats", repeats, "The least time of this many")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  app.add_option("--scratch", scratch, "Where files go; best a file system in memory")->capture_default_str();
  app.add_flag("--json", json, "Print JSON for machines");
  CLI11_PARSE(app, argc, argv);
  try {
    const auto all = measure_layouts(sparsecast::FileSystem::posix(), trace, step, repeats, scratch);
    const LayoutFigures& ours = all.front();
    nlohmann::ordered_json rows = nlohmann::ordered_json::array();
    if (!json) std::cout << "layout                  bytes  ratio  encode ms  ratio  decode ms  ratio\n";
    for (const LayoutFigures& one : all) {
      rows.push_back(
          {{"layout", one.name}, {"bytes", one.bytes}, {"encode_ms", one.encode_ms}, {"decode_ms", one.decode_ms}});
      if (json) continue;
      std::cout << fmt::format("{:<20} {:>8}  {:>5.2f}  {:>9.3f}  {:>5.2f}  {:>9.3f}  {:>5.2f}\n", one.name, one.bytes,
                               static_cast<double>(one.bytes) / static_cast<double>(ours.bytes), one.encode_ms,
                               one.encode_ms / ours.encode_ms, one.decode_ms, one.decode_ms / ours.decode_ms);
    }
    if (json) std::cout << rows.dump(2) << '\n';
  } catch (const sparsecast::Error& error) {
    std::cerr << "interop_bench: " << error.what() << '\n';
    return 3;
  }
  return 0;
}
