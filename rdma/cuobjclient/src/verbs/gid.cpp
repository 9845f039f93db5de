#include "verbs/gid.h"

#include <arpa/inet.h>
#include <netinet/in.h>

#include <algorithm>
#include <cstring>

namespace s3verbs {
namespace {

constexpr std::array<std::uint8_t, 12> mapped = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff};

Gid ipv4_gid(const void* address) {
    Gid gid;
    std::copy(mapped.begin(), mapped.end(), gid.begin());
    std::memcpy(gid.data() + mapped.size(), address, 4);
    return gid;
}

Gid ipv6_gid(const void* address) {
    Gid gid;
    std::memcpy(gid.data(), address, gid.size());
    return gid;
}

}  // namespace

bool is_ipv4(const Gid& gid) {
    return std::equal(mapped.begin(), mapped.end(), gid.begin());
}

bool is_link_local(const Gid& gid) {
    if (is_ipv4(gid))
        return gid[12] == 169 && gid[13] == 254;
    return gid[0] == 0xfe && (gid[1] & 0xc0) == 0x80;
}

bool is_loopback(const Gid& gid) {
    return is_ipv4(gid) ? gid[12] == 127 : gid == Gid{0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1};
}

std::string address_text(const Gid& gid) {
    char text[INET6_ADDRSTRLEN] = "";
    if (is_ipv4(gid)) {
        inet_ntop(AF_INET, gid.data() + mapped.size(), text, sizeof text);
    } else {
        inet_ntop(AF_INET6, gid.data(), text, sizeof text);
    }
    return text;
}

std::optional<Gid> parse_address(const std::string& text) {
    in6_addr parsed;
    if (inet_pton(AF_INET, text.c_str(), &parsed) == 1)
        return ipv4_gid(&parsed);
    if (inet_pton(AF_INET6, text.c_str(), &parsed) == 1)
        return ipv6_gid(&parsed);
    return std::nullopt;
}

std::optional<Gid> gid_of(const sockaddr* address) {
    if (address == nullptr)
        return std::nullopt;
    if (address->sa_family == AF_INET)
        return ipv4_gid(&reinterpret_cast<const sockaddr_in*>(address)->sin_addr);
    if (address->sa_family == AF_INET6)
        return ipv6_gid(&reinterpret_cast<const sockaddr_in6*>(address)->sin6_addr);
    return std::nullopt;
}

sockaddr_storage socket_address(const Gid& gid, unsigned scope) {
    sockaddr_storage storage{};
    if (is_ipv4(gid)) {
        sockaddr_in address{};
        address.sin_family = AF_INET;
        std::memcpy(&address.sin_addr, gid.data() + mapped.size(), 4);
        std::memcpy(&storage, &address, sizeof address);
    } else {
        sockaddr_in6 address{};
        address.sin6_family = AF_INET6;
        address.sin6_scope_id = scope;
        std::memcpy(&address.sin6_addr, gid.data(), gid.size());
        std::memcpy(&storage, &address, sizeof address);
    }
    return storage;
}

}  // namespace s3verbs
