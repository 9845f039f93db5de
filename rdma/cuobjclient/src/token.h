// The buffer descriptor that a request carries in a signed header. Source: docs/wire-format.md.
#pragma once

#include <array>
#include <cstdint>
#include <string>

namespace s3verbs {

using Secret = std::array<std::uint8_t, 16>;
using Gid = std::array<std::uint8_t, 16>;

// `<16 address>:<8 size>:<8 rkey>:<4 lid>:<6 DC target>:1:<32 gid>`, 81 characters.
std::string dc_token(std::uint64_t address, std::uint32_t size, std::uint32_t rkey, std::uint16_t lid,
                     std::uint32_t dct_number, const Gid& gid);

// As above with the rdma_cm port in place of the DC target, then `:rc1:<32 nonce>`.
std::string rc_token(std::uint64_t address, std::uint32_t size, std::uint32_t rkey, std::uint16_t port, const Gid& gid,
                     const Secret& nonce);

// Fields from rkey to GID are zero, then `:cma1:<32 session id>`.
std::string samehost_token(std::uint64_t address, std::uint32_t size, const Secret& session);

}  // namespace s3verbs
