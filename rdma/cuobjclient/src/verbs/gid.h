// GIDs of RoCE as IP addresses. A GID is 16 raw bytes in order; RoCE v2 over IPv4 is ::ffff:a.b.c.d.
#pragma once

#include <sys/socket.h>

#include <optional>
#include <string>

#include "token.h"

namespace s3verbs {

bool is_ipv4(const Gid& gid);
bool is_link_local(const Gid& gid);
bool is_loopback(const Gid& gid);

// 10.0.1.2, or fe80::1.
std::string address_text(const Gid& gid);

// The GID of an IPv4 or IPv6 address in text, without a scope; nothing when it is none.
std::optional<Gid> parse_address(const std::string& text);

// The GID of a sockaddr_in or sockaddr_in6; nothing for another family.
std::optional<Gid> gid_of(const sockaddr* address);

// Port 0. `scope`: index of the interface of a link-local address.
sockaddr_storage socket_address(const Gid& gid, unsigned scope);

}  // namespace s3verbs
