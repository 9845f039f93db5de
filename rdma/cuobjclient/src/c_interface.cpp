// The C interface: the same engine as the C++ one's, with its errors kept for the thread that made them.
#include <cerrno>
#include <cstring>
#include <exception>
#include <string>

#include "log.h"
#include "process_engine.h"
#include "s3verbs.h"

namespace {

using s3verbs::Engine;

// Stands for all callers of this interface.
const char owner = 0;

thread_local std::string last_error;

int fail(const char* why) noexcept {
    try {
        last_error = why;
    } catch (const std::bad_alloc&) {
        last_error.clear();
    }
    return -1;
}

template <typename Act>
int with_engine(Act act) noexcept {
    try {
        const auto engine = s3verbs::process_engine();
        return engine ? act(*engine) : fail("s3verbs_init was not called");
    } catch (const std::exception& error) {
        return fail(error.what());
    } catch (...) {
        return fail("an exception of unknown type");
    }
}

}  // namespace

int s3verbs_init(void) {
    try {
        s3verbs::join_engine();
    } catch (const std::exception& error) {
        return fail(error.what());
    }
    return with_engine([](Engine& engine) {
        const std::string obstacle = engine.obstacle();
        return obstacle.empty() ? 0 : fail(("no transport: " + obstacle).c_str());
    });
}

void s3verbs_shutdown(void) {
    s3verbs::leave_engine();
}

int s3verbs_register(void* address, size_t size) {
    return with_engine([&](Engine& engine) {
        engine.add(&owner, address, size);
        return 0;
    });
}

int s3verbs_release(void* address) {
    return with_engine([&](Engine& engine) {
        return engine.release(&owner, address) ? 0 : fail("a server may still touch the memory: release it again");
    });
}

int s3verbs_token(const void* address, size_t size, char* token, size_t capacity) {
    return with_engine([&](Engine& engine) {
        if (token == nullptr) {
            return fail("there is no room for a token");
        }
        const std::string made = engine.token(address, size);
        if (made.size() >= capacity) {
            return fail("there is no room for a token: S3VERBS_TOKEN_SIZE characters are enough");
        }
        std::memcpy(token, made.c_str(), made.size() + 1);
        return 0;
    });
}

void s3verbs_get_counters(struct s3verbs_counters* counters) {
    if (counters == nullptr) {
        return;
    }
    *counters = {};
    with_engine([&](Engine& engine) {
        *counters = engine.snapshot();
        return 0;
    });
}

const char* s3verbs_error(void) {
    return last_error.c_str();
}
