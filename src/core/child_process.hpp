// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstddef>
#include <functional>
#include <string>
#include <vector>

namespace sparsecast {

/// A program that the library runs and waits for. It gets a process group of its own, so that processes that it starts
/// end with it, no input, and default signals.
struct ChildProcess {
  std::string what;                      ///< What the program is, for errors: "the notification's command".
  std::vector<std::string> command;      ///< The program, looked up in PATH, and its arguments.
  std::vector<std::string> environment;  ///< "NAME=value", added to this process's environment.
  std::chrono::milliseconds timeout{60'000};
  /// Is called about every 10 ms; the program is ended when it returns true. May be null. Interrupts
  /// (core/interrupt.hpp) end it in any case.
  std::function<bool()> stopped;
  std::size_t max_output = 0;  ///< Most bytes of its output; 0: the output goes where that of this process goes.
};

/// Runs the program, and returns its output ("" when max_output is 0). Throws Error{kTimeout} when it was ended at its
/// timeout or because it was stopped; kCorrupt when it wrote more than max_output bytes; kIo when it could not be run,
/// or ended with a signal or a status other than 0. The context of errors is the program.
std::string run_child(const ChildProcess& child);

}  // namespace sparsecast
