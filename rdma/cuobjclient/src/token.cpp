#include "token.h"

#include <cinttypes>
#include <cstdio>

namespace s3verbs {

namespace {

std::string hex(const std::array<std::uint8_t, 16>& bytes) {
    constexpr char digits[] = "0123456789abcdef";
    std::string text;
    text.reserve(2 * bytes.size());
    for (const auto byte : bytes) {
        text += digits[byte >> 4];
        text += digits[byte & 15];
    }
    return text;
}

std::string fields(std::uint64_t address, std::uint32_t size, std::uint32_t rkey, std::uint16_t lid, std::uint32_t qp,
                   bool has_gid, const Gid& gid) {
    char text[64];
    std::snprintf(text, sizeof text, "%016" PRIx64 ":%08" PRIx32 ":%08" PRIx32 ":%04x:%06" PRIx32 ":%d:", address, size,
                  rkey, static_cast<unsigned>(lid), qp & 0xffffff, has_gid ? 1 : 0);
    return text + hex(gid);
}

}  // namespace

std::string dc_token(std::uint64_t address, std::uint32_t size, std::uint32_t rkey, std::uint16_t lid,
                     std::uint32_t dct_number, const Gid& gid) {
    return fields(address, size, rkey, lid, dct_number, true, gid);
}

std::string rc_token(std::uint64_t address, std::uint32_t size, std::uint32_t rkey, std::uint16_t port, const Gid& gid,
                     const Secret& nonce) {
    return fields(address, size, rkey, 0, port, true, gid) + ":rc1:" + hex(nonce);
}

std::string samehost_token(std::uint64_t address, std::uint32_t size, const Secret& session) {
    return fields(address, size, 0, 0, 0, false, Gid{}) + ":cma1:" + hex(session);
}

}  // namespace s3verbs
