// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstddef>
#include <functional>
#include <string>
#include <vector>

namespace sparsecast {

/// A program that the library runs and waits for. It reads no input, and all its signals have their default actions. It
/// runs in a process group of its own, so that processes that it has started are killed, too, when the library ends it.
struct ChildProcess {
  std::string what;                  ///< Description of the program for errors, such as "the notification's command".
  std::vector<std::string> command;  ///< The program, looked up in PATH, and its arguments.
  std::vector<std::string> environment;  ///< Variables "NAME=value" that are added to the environment of this process.
  std::chrono::milliseconds timeout{60'000};
  /// Function that is called about every 10 ms; when it returns true, the program is ended. May be null. Interrupts
  /// (core/interrupt.hpp) end the program in any case.
  std::function<bool()> stopped;
  /// Maximum bytes of the program's standard output. 0: the output is not captured, but goes to that of this process.
  std::size_t max_output = 0;
};

/// Runs the program, and returns its output ("" when max_output is 0). Throws Error{kTimeout} when the program was
/// ended at its timeout, by `stopped` or by an interrupt; kCorrupt when it wrote more than max_output bytes; kIo when
/// it could not be run, or ended by a signal or with a status other than 0. The context of errors is the name of the
/// program.
std::string run_child(const ChildProcess& child);

}  // namespace sparsecast
