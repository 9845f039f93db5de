// SHA-256 (FIPS 180-4) and HMAC (RFC 2104) for the one proof of the RC handshake.
//
// Own code for want of a library that is safe here: this library is loaded into processes that bring OpenSSLs of their
// own, of other versions, and whose symbols would mix with those of ours. The tests have the published vectors.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace s3verbs {

using Digest = std::array<std::uint8_t, 32>;

Digest sha256(const std::uint8_t* data, std::size_t size);

Digest hmac_sha256(const std::uint8_t* key, std::size_t key_size, const std::uint8_t* data, std::size_t size);

}  // namespace s3verbs
