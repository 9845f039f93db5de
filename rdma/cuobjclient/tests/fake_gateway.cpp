#include "fake_gateway.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cinttypes>
#include <cstdio>
#include <cstring>
#include <random>
#include <stdexcept>

namespace s3verbs::testing {

using samehost::Kind;
using samehost::Message;

namespace {

Message answer_to(const Message& message, Kind kind) {
    Message answer;
    answer.kind = kind;
    answer.serial = message.serial;
    return answer;
}

Secret random_secret() {
    static std::random_device random;
    Secret secret;
    for (auto& byte : secret) {
        byte = static_cast<std::uint8_t>(random());
    }
    return secret;
}

std::string hex(const Secret& secret) {
    std::string text;
    for (const auto byte : secret) {
        char digits[3];
        std::snprintf(digits, sizeof digits, "%02x", byte);
        text += digits;
    }
    return text;
}

}  // namespace

FakeGateway::FakeGateway(std::string path) : path_(std::move(path)) {
    sockaddr_un where{};
    where.sun_family = AF_UNIX;
    if (path_.size() >= sizeof where.sun_path) {
        throw std::runtime_error("the path is too long: " + path_);
    }
    std::memcpy(where.sun_path, path_.c_str(), path_.size());
    unlink(path_.c_str());
    listener_ = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    wake_ = eventfd(0, EFD_CLOEXEC);
    if (bind(listener_, reinterpret_cast<sockaddr*>(&where), sizeof where) != 0 || listen(listener_, 64) != 0 ||
        pipe2(lifeline_, O_CLOEXEC) != 0 || wake_ < 0) {
        throw std::runtime_error("the fake gateway cannot listen at " + path_ + ": " + std::strerror(errno));
    }
    thread_ = std::thread([this] { serve(); });
}

FakeGateway::~FakeGateway() {
    stopping_ = true;
    const std::uint64_t one = 1;
    [[maybe_unused]] const auto written = write(wake_, &one, sizeof one);
    thread_.join();
    for (const auto& [connection, peer] : peers_) {
        close(connection);
    }
    for (const int descriptor : {listener_, wake_, lifeline_[0], lifeline_[1]}) {
        if (descriptor >= 0) {
            close(descriptor);
        }
    }
    unlink(path_.c_str());
}

void FakeGateway::follow(Script script) {
    const std::lock_guard lock(mutex_);
    script_ = std::move(script);
}

void FakeGateway::hold(bool held) {
    const std::lock_guard lock(mutex_);
    holding_ = held;
    if (held) {
        return;
    }
    for (auto& [connection, peer] : peers_) {
        for (const auto& message : peer.held) {
            auto answer = answer_to(message, Kind::unregistered);
            answer.handle = message.handle;
            send(connection, {{encode(answer)}});
        }
        peer.held.clear();
    }
}

void FakeGateway::end_sessions(bool in_order) {
    const std::lock_guard lock(mutex_);
    for (auto& [connection, peer] : peers_) {
        if (in_order) {
            Message ended;
            ended.kind = Kind::ended;
            send(connection, {{encode(ended)}});
        }
        // The thread finds the end of the connection and forgets it.
        shutdown(connection, SHUT_RDWR);
    }
}

void FakeGateway::close_lifeline() {
    const std::lock_guard lock(mutex_);
    close(lifeline_[1]);
    lifeline_[1] = -1;
}

std::size_t FakeGateway::sessions() const {
    const std::lock_guard lock(mutex_);
    std::size_t count = 0;
    for (const auto& [connection, peer] : peers_) {
        count += peer.has_session;
    }
    return count;
}

std::size_t FakeGateway::regions() const {
    const std::lock_guard lock(mutex_);
    std::size_t count = 0;
    for (const auto& [connection, peer] : peers_) {
        count += peer.regions.size();
    }
    return count;
}

bool FakeGateway::can_reach(const std::string& token) const {
    std::uint64_t address = 0;
    std::uint64_t size = 0;
    if (std::sscanf(token.c_str(), "%16" SCNx64 ":%8" SCNx64 ":", &address, &size) != 2) {
        return false;
    }
    const auto name = token.rfind(":cma1:");
    if (name == token.npos) {
        return false;
    }
    const std::string session = token.substr(name + 6);
    const std::lock_guard lock(mutex_);
    for (const auto& [connection, peer] : peers_) {
        if (!peer.has_session || hex(peer.id) != session) {
            continue;
        }
        for (const auto& [handle, region] : peer.regions) {
            if (region.first <= address && address + size <= region.first + region.second) {
                return true;
            }
        }
    }
    return false;
}

void FakeGateway::serve() {
    while (!stopping_) {
        std::vector<pollfd> wanted{{listener_, POLLIN, 0}, {wake_, POLLIN, 0}};
        {
            const std::lock_guard lock(mutex_);
            for (const auto& [connection, peer] : peers_) {
                wanted.push_back({connection, POLLIN, 0});
            }
        }
        poll(wanted.data(), wanted.size(), -1);
        const std::lock_guard lock(mutex_);
        if (wanted[0].revents != 0) {
            const int connection = accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC);
            if (connection >= 0) {
                peers_[connection];
            }
        }
        for (std::size_t index = 2; index < wanted.size(); ++index) {
            if (wanted[index].revents != 0 && !receive(wanted[index].fd)) {
                close(wanted[index].fd);
                peers_.erase(wanted[index].fd);
            }
        }
    }
}

bool FakeGateway::receive(int connection) {
    char packet[samehost::largest_message + 1];
    const auto size = recv(connection, packet, sizeof packet, MSG_DONTWAIT);
    return size > 0 && answer(connection, samehost::decode(packet, static_cast<std::size_t>(size)));
}

bool FakeGateway::answer(int connection, const Message& message) {
    if (script_) {
        if (const auto reply = script_(message)) {
            return send(connection, *reply);
        }
    }
    auto& peer = peers_[connection];
    switch (message.kind) {
        case Kind::hello: {
            auto challenge = answer_to(message, Kind::challenge);
            challenge.secret = random_secret();
            return send(connection, {{encode(challenge)}});
        }
        case Kind::proof: {
            peer.id = random_secret();
            peer.has_session = true;
            auto session = answer_to(message, Kind::session);
            session.secret = peer.id;
            session.regions = 1024;
            return send(connection, {{encode(session)}, false, 1});
        }
        case Kind::register_memory: {
            auto registered = answer_to(message, Kind::registered);
            registered.handle = ++last_handle_;
            peer.regions[registered.handle] = {message.address, message.length};
            ++registrations_;
            return send(connection, {{encode(registered)}});
        }
        case Kind::unregister: {
            peer.regions.erase(message.handle);
            if (holding_) {
                peer.held.push_back(message);
                return true;
            }
            auto unregistered = answer_to(message, Kind::unregistered);
            unregistered.handle = message.handle;
            return send(connection, {{encode(unregistered)}});
        }
        default:
            return false;
    }
}

bool FakeGateway::send(int connection, const Reply& reply) {
    for (const auto& packet : reply.packets) {
        iovec what{const_cast<char*>(packet.data()), packet.size()};
        msghdr header{};
        header.msg_iov = &what;
        header.msg_iovlen = 1;
        alignas(cmsghdr) char beside[CMSG_SPACE(8 * sizeof(int))]{};
        if (reply.descriptors != 0) {
            const auto bytes = static_cast<std::size_t>(reply.descriptors) * sizeof(int);
            header.msg_control = beside;
            header.msg_controllen = CMSG_SPACE(bytes);
            cmsghdr* part = CMSG_FIRSTHDR(&header);
            part->cmsg_level = SOL_SOCKET;
            part->cmsg_type = SCM_RIGHTS;
            part->cmsg_len = CMSG_LEN(bytes);
            for (int index = 0; index < reply.descriptors; ++index) {
                std::memcpy(CMSG_DATA(part) + static_cast<std::size_t>(index) * sizeof(int), &lifeline_[0],
                            sizeof(int));
            }
        }
        if (sendmsg(connection, &header, MSG_NOSIGNAL) < 0) {
            return false;
        }
    }
    return !reply.close;
}

}  // namespace s3verbs::testing
