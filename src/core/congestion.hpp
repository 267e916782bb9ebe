// SPDX-License-Identifier: Apache-2.0
#pragma once

// Congestion control of this library's own TCP sockets. What the system has as its default, most often cubic, takes
// every lost packet for a full link, so that a few losses on a long way slow it down many times; bbr does not.

#include <string>

namespace sparsecast {

/// Returns the name of the congestion control for TCP sockets: `option`, or the environment's SPARSECAST_CONGESTION if
/// `option` is empty, or "" (the system's default) if that is not set either. Throws as set_congestion_control() does
/// if a socket of this process cannot have it.
std::string congestion_control(const std::string& option);

/// Sets the congestion control of a TCP socket; "" leaves it as it is. A connection has that of the socket which
/// accepted it. Throws Error{kUsage} that names an algorithm that this kernel does not have, or does not allow to this
/// process, and those that it has.
void set_congestion_control(int socket, const std::string& algorithm);

}  // namespace sparsecast
