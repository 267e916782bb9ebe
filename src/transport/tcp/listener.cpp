#include "transport/tcp/listener.hpp"

#include <fmt/format.h>

#include <charconv>

#include "sparsecast/network.hpp"

namespace sparsecast {

using std::chrono::steady_clock;

void parse_endpoint(const std::string& text, std::string& host, std::uint16_t& port) {
  const std::size_t colon = text.rfind(':');
  const bool brackets = !text.empty() && text.front() == '[';
  const bool ambiguous = !brackets && colon != std::string::npos && text.find(':') != colon;
  if (colon == std::string::npos || colon == 0 || ambiguous || (brackets && (colon < 3 || text[colon - 1] != ']'))) {
    throw Error(ErrorCode::kUsage, fmt::format("'{}' is not HOST:PORT; an IPv6 address needs [brackets]", text));
  }
  const char* const begin = text.data() + colon + 1;
  const char* const end = text.data() + text.size();
  const auto [stop, code] = std::from_chars(begin, end, port);
  if (code != std::errc{} || stop != end) {
    throw Error(ErrorCode::kUsage, fmt::format("'{}' has no port from 0 to 65535", text));
  }
  host = brackets ? text.substr(1, colon - 2) : text.substr(0, colon);
}

RendezvousListener::RendezvousListener(const RendezvousOptions& options) : impl_(std::make_unique<Impl>()) {
  try {
    const std::string host =
        options.interface.empty()
            ? (options.host.size() > 2 && options.host.front() == '[' ? options.host.substr(1, options.host.size() - 2)
                                                                      : options.host)
            : choose_interface(network_interfaces(), options.interface, "").interface.address;
    impl_->socket = listen_on(resolve(host, options.port, steady_clock::now() + options.timeout).front());
  } catch (const Error& error) {
    throw error.within("rendezvous, rank 0");
  }
  impl_->host = impl_->socket.local().host();
  impl_->port = impl_->socket.local().port();
}

RendezvousListener::~RendezvousListener() = default;
const std::string& RendezvousListener::host() const noexcept { return impl_->host; }
std::uint16_t RendezvousListener::port() const noexcept { return impl_->port; }

}  // namespace sparsecast
