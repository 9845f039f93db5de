// A gateway for tests: speaks docs/samehost-protocol.md on a socket of its own, keeps a table of sessions and regions,
// and misbehaves as it is told. It moves no bytes.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "samehost/protocol.h"

namespace s3verbs::testing {

// What is sent for a message, raw, instead of the right answer.
struct Reply {
    std::vector<std::string> packets;
    bool close = false;
    int descriptors = 0;
};

class FakeGateway {
public:
    using Script = std::function<std::optional<Reply>(const samehost::Message&)>;

    // Listens at `path` when it returns.
    explicit FakeGateway(std::string path);
    ~FakeGateway();

    const std::string& path() const { return path_; }

    // From now on: nothing returned means the right answer. On the gateway's thread.
    void follow(Script script);

    // Regions are still in use: UNREGISTERED is not sent before `hold(false)`.
    void hold(bool held);

    // Close all connections, after ENDED or without.
    void end_sessions(bool in_order);

    // No process of it is left: the other end of every client's pipe goes.
    void close_lifeline();

    std::size_t sessions() const;
    std::size_t regions() const;
    std::size_t registrations() const { return registrations_; }
    // Whether the token's session has a region around the token's range.
    bool can_reach(const std::string& token) const;

private:
    struct Peer {
        Secret id{};
        bool has_session = false;
        std::map<std::uint64_t, std::pair<std::uint64_t, std::uint64_t>> regions;
        std::vector<samehost::Message> held;
    };

    void serve();
    bool receive(int connection);
    bool answer(int connection, const samehost::Message& message);
    bool send(int connection, const Reply& reply);

    const std::string path_;
    int listener_ = -1;
    int wake_ = -1;
    int lifeline_[2] = {-1, -1};
    std::atomic<bool> stopping_{false};
    std::atomic<std::size_t> registrations_{0};
    mutable std::mutex mutex_;
    std::map<int, Peer> peers_;
    Script script_;
    bool holding_ = false;
    std::uint64_t last_handle_ = 0;
    std::thread thread_;
};

}  // namespace s3verbs::testing
