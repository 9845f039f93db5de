// Small things that several tests need.
#pragma once

#include <gtest/gtest.h>
#include <stdlib.h>

#include <chrono>
#include <filesystem>
#include <functional>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "log.h"

namespace s3verbs::testing {

class TemporaryDirectory {
public:
    TemporaryDirectory() {
        char path[] = "/tmp/cuobjclient-XXXXXX";
        path_ = mkdtemp(path);
    }
    ~TemporaryDirectory() { std::filesystem::remove_all(path_); }
    const std::string& path() const { return path_; }

private:
    std::string path_;
};

// A variable of the environment for as long as this is there.
class Variable {
public:
    Variable(const char* name, const std::string& value) : name_(name) { setenv(name, value.c_str(), 1); }
    ~Variable() { unsetenv(name_); }

private:
    const char* name_;
};

// What is logged, at every level, as long as this is there. Nothing goes to stderr.
class CapturedLog {
public:
    CapturedLog() {
        set_log_stream(&stream_);
        set_log_stream_levels(0xf);
    }
    ~CapturedLog() { set_log_stream(nullptr); }
    // Not while other threads log.
    std::string text() const { return stream_.str(); }
    std::size_t count(const std::string& part) const {
        const std::string whole = text();
        std::size_t found = 0;
        for (auto at = whole.find(part); at != whole.npos; at = whole.find(part, at + 1)) {
            ++found;
        }
        return found;
    }

private:
    std::ostringstream stream_;
};

// Whether it becomes true within five seconds.
inline bool eventually(const std::function<bool()>& condition) {
    for (int wait = 0; wait < 500; ++wait) {
        if (condition()) {
            return true;
        }
        std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
    return condition();
}

}  // namespace s3verbs::testing
