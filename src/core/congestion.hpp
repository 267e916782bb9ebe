// SPDX-License-Identifier: Apache-2.0
#pragma once

// Congestion control of this library's own TCP sockets. The default of most systems, cubic, takes every lost packet for
// a sign of a full link, so that a few losses on a long way make it many times slower; bbr does not.

#include <string>

namespace sparsecast {

/// Returns the name of the congestion control for TCP sockets: `option`, or, when it is empty, the value of
/// SPARSECAST_CONGESTION in the environment, or "" (the system's default) when that is not set either. Throws
/// Error{kUsage} when this process cannot use the algorithm, and kIo when it cannot open a socket to test that.
std::string congestion_control(const std::string& option);

/// Sets the congestion control of a TCP socket; "" leaves it as it is. A connection inherits the congestion control of
/// the listening socket. Throws Error{kUsage} when the kernel does not have the algorithm, or does not allow it to this
/// process; the message lists the algorithms that it has.
void set_congestion_control(int socket, const std::string& algorithm);

}  // namespace sparsecast
