#include "samehost/link.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>

#include "transport.h"

namespace s3verbs::samehost {

namespace {

// Whether one of the events comes until then; that the other end has hung up always counts.
bool ready(int descriptor, short events, Clock::time_point deadline) {
    while (true) {
        const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - Clock::now()).count();
        pollfd wanted{descriptor, events, 0};
        const int count = poll(&wanted, 1, static_cast<int>(std::clamp<std::int64_t>(left, 0, 60'000)));
        if (count > 0) {
            return true;
        }
        if (count == 0 && Clock::now() >= deadline) {
            return false;
        }
        if (count < 0 && errno != EINTR) {
            return false;
        }
    }
}

std::string printable(std::string text) {
    std::replace_if(
        text.begin(), text.end(), [](unsigned char c) { return c < 0x20 || c == 0x7f; }, '?');
    return text;
}

// Descriptors that came along. More than one is against the protocol, but must not leak.
void take_descriptors(msghdr& header, Descriptor& into) {
    for (cmsghdr* part = CMSG_FIRSTHDR(&header); part != nullptr; part = CMSG_NXTHDR(&header, part)) {
        if (part->cmsg_level != SOL_SOCKET || part->cmsg_type != SCM_RIGHTS) {
            continue;
        }
        const std::size_t count = (part->cmsg_len - CMSG_LEN(0)) / sizeof(int);
        for (std::size_t index = 0; index < count; ++index) {
            int descriptor;
            std::memcpy(&descriptor, CMSG_DATA(part) + index * sizeof descriptor, sizeof descriptor);
            if (into) {
                close(descriptor);
            } else {
                into = Descriptor(descriptor);
            }
        }
    }
}

}  // namespace

Link::Link(const Candidate& candidate, std::chrono::milliseconds patience) : patience_(patience) {
    const auto seconds = std::chrono::ceil<std::chrono::seconds>(patience).count();
    socket_ = connect_to(candidate.path, static_cast<unsigned>(seconds));
    if (!socket_) {
        throw LinkLost(std::strerror(errno));
    }
    fcntl(socket_.get(), F_SETFL, O_NONBLOCK);
    ucred peer{};
    socklen_t size = sizeof peer;
    if (getsockopt(socket_.get(), SOL_SOCKET, SO_PEERCRED, &peer, &size) != 0) {
        throw LinkLost(std::strerror(errno));
    }
    if (!is_trusted(candidate, peer.uid)) {
        throw TransportError("uid " + std::to_string(peer.uid) + " listens there, who is not trusted");
    }
    supervisor_ = peer.pid;
    open();
}

void Link::open() {
    Message hello;
    const Message challenge = ask(hello);
    if (challenge.kind != Kind::challenge) {
        lose("the gateway speaks another protocol");
    }
    Message proof;
    proof.kind = Kind::proof;
    proof.secret = challenge.secret;
    const Message session = ask(proof);
    if (session.kind != Kind::session) {
        lose("the gateway speaks another protocol");
    }
    id_ = session.secret;
}

std::uint32_t Link::next_serial() noexcept {
    if (++serial_ == 0) {
        serial_ = 1;
    }
    return serial_;
}

bool Link::usable() {
    return take_news() && !silent_;
}

std::uint64_t Link::register_memory(std::uint64_t address, std::uint64_t length) {
    Message message;
    message.kind = Kind::register_memory;
    message.address = address;
    message.length = length;
    Message answer;
    try {
        answer = ask(message);
    } catch (const Refused& refusal) {
        if (refusal.code != Refusal::not_permitted || supervisor_ <= 0) {
            throw;
        }
        // Only now: there is one such permission in a process, and it may have been given to another.
        prctl(PR_SET_PTRACER, supervisor_, 0, 0, 0);
        answer = ask(message);
    }
    if (answer.kind != Kind::registered) {
        lose("the gateway speaks another protocol");
    }
    return answer.handle;
}

bool Link::is_quiet(std::uint64_t handle) {
    if (!lost_ && letting_go_.count(handle) == 0) {
        Message message;
        message.kind = Kind::unregister;
        message.serial = next_serial();
        message.handle = handle;
        try {
            if (send(message, Clock::now())) {
                letting_go_.insert(handle);
            }
        } catch (const LinkLost&) {
            // What that means is decided below.
        }
    }
    const bool goes_on = take_news();
    const bool is = ended_ || quiet_.count(handle) != 0 || (!goes_on && gateway_is_gone());
    if (is) {
        letting_go_.erase(handle);
        quiet_.erase(handle);
    }
    return is;
}

int Link::news() const noexcept {
    return lost_ ? lifeline_.get() : socket_.get();
}

bool Link::gateway_is_gone() const {
    return lifeline_ && ready(lifeline_.get(), 0, Clock::now());
}

Message Link::ask(Message message) {
    const auto deadline = Clock::now() + patience_;
    message.serial = next_serial();
    awaited_ = message.serial;
    answer_.reset();
    const bool spoken = send(message, deadline);
    while (!answer_) {
        if (!spoken || !receive(deadline)) {
            awaited_ = 0;
            silent_ = true;
            throw LinkLost("the gateway does not answer");
        }
    }
    awaited_ = 0;
    if (answer_->kind == Kind::refused) {
        throw Refused(answer_->code, printable(answer_->text));
    }
    return *answer_;
}

// False when the gateway has not made room for it until then. Throws LinkLost.
bool Link::send(const Message& message, Clock::time_point deadline) {
    if (lost_) {
        throw LinkLost("the gateway has ended the session");
    }
    const std::string packet = encode(message);
    while (::send(socket_.get(), packet.data(), packet.size(), MSG_NOSIGNAL) < 0) {
        if (errno == EINTR) {
            continue;
        }
        if (errno != EAGAIN && errno != EWOULDBLOCK) {
            const std::string why = std::strerror(errno);
            // ENDED may have come before the end.
            take_news();
            lose(why);
        }
        if (!ready(socket_.get(), POLLOUT, deadline)) {
            return false;
        }
    }
    return true;
}

bool Link::take_news() {
    try {
        while (receive(Clock::time_point::min())) {
        }
    } catch (const LinkLost&) {
    }
    return !lost_;
}

// Takes one message; false when none comes until then. Throws LinkLost.
bool Link::receive(Clock::time_point deadline) {
    if (lost_) {
        throw LinkLost("the gateway has ended the session");
    }
    std::array<char, largest_message + 1> packet;
    alignas(cmsghdr) std::array<char, CMSG_SPACE(4 * sizeof(int))> beside;
    while (true) {
        iovec where{packet.data(), packet.size()};
        msghdr header{};
        header.msg_iov = &where;
        header.msg_iovlen = 1;
        header.msg_control = beside.data();
        header.msg_controllen = beside.size();
        const ssize_t size = recvmsg(socket_.get(), &header, MSG_CMSG_CLOEXEC | MSG_DONTWAIT);
        if (size < 0) {
            if (errno == EINTR) {
                continue;
            }
            if (errno != EAGAIN && errno != EWOULDBLOCK) {
                lose(std::strerror(errno));
            }
            if (deadline == Clock::time_point::min() || !ready(socket_.get(), POLLIN, deadline)) {
                return false;
            }
            continue;
        }
        take_descriptors(header, lifeline_);
        if (size == 0) {
            lose("the gateway has ended the session");
        }
        try {
            if (header.msg_flags & MSG_TRUNC) {
                throw MalformedMessage("it is too long");
            }
            take(decode(packet.data(), static_cast<std::size_t>(size)));
        } catch (const MalformedMessage& error) {
            lose(std::string("a message of the gateway: ") + error.what());
        }
        return true;
    }
}

void Link::take(const Message& message) {
    if (message.kind == Kind::ended) {
        ended_ = true;
        lose("the gateway has ended the session");
    }
    if (message.kind == Kind::unregistered) {
        if (letting_go_.count(message.handle) != 0) {
            quiet_.insert(message.handle);
        }
    } else if (awaited_ != 0 && message.serial == awaited_) {
        answer_ = message;
    }
    // Anything else is the answer to a question that was given up.
}

void Link::hang_up() noexcept {
    lost_ = true;
    socket_.close();
}

void Link::lose(const std::string& why) {
    hang_up();
    throw LinkLost(why);
}

}  // namespace s3verbs::samehost
