#pragma once

#include <string>

#include "transport/tcp/socket.hpp"
#include "sparsecast/rendezvous.hpp"

namespace sparsecast {

struct RendezvousListener::Impl {
  Socket socket;
  std::string host;
  std::uint16_t port = 0;
};

}  // namespace sparsecast
