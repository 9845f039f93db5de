#include "log.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cctype>
#include <chrono>
#include <cstring>
#include <map>
#include <mutex>
#include <new>
#include <ostream>
#include <string>

#include "process.h"

namespace s3verbs {

namespace {

using Clock = std::chrono::steady_clock;

// More distinct lines than that are not remembered: the memory of a process that runs for months must not grow.
constexpr std::size_t max_remembered = 1000;
constexpr unsigned all_levels = 0xf;

struct Sink {
    std::atomic<LogLevel> most{LogLevel::info};
    std::atomic<int> descriptor{STDERR_FILENO};
    // When a text was last logged. fork_mutex() guards it.
    std::map<std::string, Clock::time_point, std::less<>> remembered;
    std::mutex stream_mutex;
    std::ostream* stream = nullptr;
    std::atomic<bool> has_stream{false};
    std::atomic<unsigned> stream_levels{all_levels};
};

Sink& sink() {
    static Sink& only = *new Sink;
    return only;
}

// The parent's stream, and a lock that one of its other threads may have held.
void forget_stream() {
    new (&sink().stream_mutex) std::mutex;
    sink().stream = nullptr;
    sink().has_stream = false;
}

[[maybe_unused]] const bool forgets_in_child = (after_fork(forget_stream), true);

constexpr std::string_view level_names[] = {"error", "warning", "info", "debug"};

std::string line(LogLevel level, std::string_view text) {
    std::string whole = "s3verbs: ";
    if (level != LogLevel::info) {
        whole.append(level_names[static_cast<int>(level)]).append(": ");
    }
    whole.append(text);
    std::replace(whole.begin(), whole.end(), '\n', ' ');
    return whole += '\n';
}

// One call, so that lines of several threads and processes do not mix. What cannot be written is lost.
void write_whole(int descriptor, const std::string& whole) {
    [[maybe_unused]] const auto written = ::write(descriptor, whole.data(), whole.size());
}

// Whether this text was not logged for that long. When too many are remembered, new ones are not logged any more.
bool is_due(std::string_view text, Clock::duration pause) noexcept {
    try {
        const auto now = Clock::now();
        const std::lock_guard lock(fork_mutex());
        auto& remembered = sink().remembered;
        const auto found = remembered.find(text);
        if (found == remembered.end()) {
            return remembered.size() < max_remembered && remembered.emplace(text, now).second;
        }
        if (now - found->second < pause) {
            return false;
        }
        found->second = now;
        return true;
    } catch (...) {
        return false;
    }
}

void write_to_stream(LogLevel level, const std::string& whole) {
    Sink& to = sink();
    if (!to.has_stream || !(to.stream_levels & 1U << static_cast<unsigned>(level))) {
        return;
    }
    const std::lock_guard lock(to.stream_mutex);
    if (to.stream != nullptr) {
        to.stream->write(whole.data(), static_cast<std::streamsize>(whole.size()));
        to.stream->flush();
    }
}

}  // namespace

std::optional<LogLevel> log_level(std::string_view name) {
    std::string lower(name);
    std::transform(lower.begin(), lower.end(), lower.begin(), [](unsigned char c) { return std::tolower(c); });
    const auto* found = std::find(std::begin(level_names), std::end(level_names), lower);
    if (found != std::end(level_names)) {
        return static_cast<LogLevel>(found - std::begin(level_names));
    }
    if (lower == "fatal") {
        return LogLevel::error;
    }
    if (lower == "warn") {
        return LogLevel::warning;
    }
    if (lower == "notice") {
        return LogLevel::info;
    }
    if (lower == "trace") {
        return LogLevel::debug;
    }
    return std::nullopt;
}

void set_log(LogLevel most, const std::string& directory) {
    Sink& to = sink();
    to.most = most;
    int descriptor = STDERR_FILENO;
    std::string problem;
    if (!directory.empty()) {
        const std::string path = directory + "/s3verbs-" + std::to_string(getpid()) + ".log";
        descriptor = open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | O_NOCTTY, 0644);
        if (descriptor < 0) {
            problem = path + " cannot be opened for the log: " + std::strerror(errno);
            descriptor = STDERR_FILENO;
        }
    }
    const int former = to.descriptor.exchange(descriptor);
    if (former != STDERR_FILENO) {
        // Another thread may be writing: the number must stay one of a log.
        dup3(descriptor, former, O_CLOEXEC);
        to.descriptor = former;
        if (descriptor != STDERR_FILENO) {
            close(descriptor);
        }
    }
    if (!problem.empty()) {
        log_once(LogLevel::warning, problem);
    }
}

void set_log_stream(std::ostream* stream) {
    Sink& to = sink();
    const std::lock_guard lock(to.stream_mutex);
    to.stream = stream;
    to.has_stream = stream != nullptr;
}

void set_log_stream_levels(unsigned levels) {
    sink().stream_levels = levels;
}

void log(LogLevel level, std::string_view text) noexcept {
    Sink& to = sink();
    if (level > to.most && !to.has_stream) {
        return;
    }
    try {
        const std::string whole = line(level, text);
        if (level <= to.most) {
            write_whole(to.descriptor, whole);
        }
        write_to_stream(level, whole);
    } catch (...) {
        // A log line is never worth a failed transfer.
    }
}

void log_once(LogLevel level, std::string_view text) noexcept {
    if (is_due(text, Clock::duration::max())) {
        log(level, text);
    }
}

void log_sparsely(LogLevel level, std::string_view text) noexcept {
    if (is_due(text, std::chrono::minutes(1))) {
        log(level, text);
    }
}

}  // namespace s3verbs
