// The C++ interface. Nothing but translation: no exception leaves, every pointer is looked at before it is used.
#include "cuobjclient.h"

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <new>
#include <utility>

#include "backends.h"
#include "log.h"
#include "process_engine.h"

namespace {

using s3verbs::Engine;
using s3verbs::EngineError;

struct Implementation {
    CUObjOps_t ops;
};

// Runs `act` with the engine; `failed` when there is none, or when something is thrown that is no EngineError.
template <typename Result, typename Act>
Result with_engine(const void* implementation, Result failed, Act act) noexcept {
    try {
        const auto engine = implementation == nullptr ? nullptr : s3verbs::process_engine();
        return engine ? act(*engine) : failed;
    } catch (const std::exception& error) {
        s3verbs::log_sparsely(s3verbs::LogLevel::error, error.what());
    } catch (...) {
        s3verbs::log_sparsely(s3verbs::LogLevel::error, "an exception of unknown type");
    }
    return failed;
}

// Calls the application's callback with a token.
template <typename Callback, typename Pointer>
ssize_t transfer(Engine& engine, Callback callback, void* ctx, Pointer start, size_t size, loff_t offset) {
    std::string token;
    try {
        token = engine.token(start, size);
    } catch (const EngineError& error) {
        return -error.number;
    }
    const cufileRDMAInfo_t info{1, static_cast<int>(token.size()), token.c_str()};
    const ssize_t moved = callback(ctx, start, size, offset, &info);
    if (moved < 0) {
        ++engine.counters.callback_failures;
    }
    return moved;
}

// Whether the arguments of a transfer can be meant; where it begins.
char* start_of(const void* ctx, void* ptr, size_t size, loff_t offset, loff_t buf_offset) {
    if (ctx == nullptr || ptr == nullptr || size == 0 || offset < 0 || buf_offset < 0) {
        return nullptr;
    }
    const auto address = reinterpret_cast<std::uintptr_t>(ptr);
    const auto distance = static_cast<std::uintptr_t>(buf_offset);
    return address > UINTPTR_MAX - distance ? nullptr : reinterpret_cast<char*>(address + distance);
}

}  // namespace

cuObjClient::cuObjClient(CUObjOps_t& ops, cuObjProto_t) : implementation_(nullptr) {
    try {
        auto* implementation = new Implementation{ops};
        try {
            s3verbs::join_engine();
        } catch (...) {
            delete implementation;
            throw;
        }
        implementation_ = implementation;
    } catch (...) {
        s3verbs::log_sparsely(s3verbs::LogLevel::error, "no memory for a client");
    }
}

cuObjClient::~cuObjClient() {
    if (implementation_ == nullptr) {
        return;
    }
    with_engine(implementation_, 0, [this](Engine& engine) {
        engine.release_all(implementation_);
        return 0;
    });
    s3verbs::leave_engine();
    delete static_cast<Implementation*>(implementation_);
}

bool cuObjClient::isConnected() {
    return with_engine(implementation_, false, [](Engine& engine) {
        const std::string obstacle = engine.obstacle();
        if (!obstacle.empty()) {
            s3verbs::log_sparsely(s3verbs::LogLevel::error, "no transport: " + obstacle);
        }
        return obstacle.empty();
    });
}

cuObjErr_t cuObjClient::cuMemObjGetDescriptor(void* ptr, size_t size) {
    return with_engine(implementation_, CU_OBJ_FAIL, [&](Engine& engine) {
        try {
            engine.add(implementation_, ptr, size);
            return CU_OBJ_SUCCESS;
        } catch (const EngineError&) {
            return CU_OBJ_FAIL;
        }
    });
}

cuObjErr_t cuObjClient::cuMemObjPutDescriptor(void* ptr) {
    return with_engine(implementation_, CU_OBJ_FAIL, [&](Engine& engine) {
        return ptr == nullptr || engine.release(implementation_, ptr) ? CU_OBJ_SUCCESS : CU_OBJ_FAIL;
    });
}

ssize_t cuObjClient::cuMemObjGetMaxRequestCallbackSize(void* ptr) {
    return with_engine(implementation_, ssize_t{-EIO}, [&](Engine& engine) {
        return engine.is_registered(ptr) ? static_cast<ssize_t>(Engine::max_registration) : ssize_t{-EINVAL};
    });
}

cuObjErr_t cuObjClient::cuMemObjGetRDMAToken(void* ptr, size_t size, size_t buffer_offset, cuObjOpType_t operation,
                                             char** desc_str_out) {
    if (desc_str_out == nullptr) {
        return CU_OBJ_FAIL;
    }
    *desc_str_out = nullptr;
    return with_engine(implementation_, CU_OBJ_FAIL, [&](Engine& engine) {
        const auto address = reinterpret_cast<std::uintptr_t>(ptr);
        if (ptr == nullptr || (operation != CUOBJ_GET && operation != CUOBJ_PUT) ||
            buffer_offset > UINTPTR_MAX - address) {
            return CU_OBJ_FAIL;
        }
        try {
            const auto token = engine.token(reinterpret_cast<const void*>(address + buffer_offset), size);
            *desc_str_out = strdup(token.c_str());
            return *desc_str_out != nullptr ? CU_OBJ_SUCCESS : CU_OBJ_FAIL;
        } catch (const EngineError&) {
            return CU_OBJ_FAIL;
        }
    });
}

cuObjErr_t cuObjClient::cuMemObjPutRDMAToken(char* desc_str) {
    std::free(desc_str);
    return CU_OBJ_SUCCESS;
}

ssize_t cuObjClient::cuObjGet(void* ctx, void* ptr, size_t size, loff_t offset, loff_t buf_offset) {
    return with_engine(implementation_, ssize_t{-EIO}, [&](Engine& engine) -> ssize_t {
        const auto callback = static_cast<Implementation*>(implementation_)->ops.get;
        char* const start = start_of(ctx, ptr, size, offset, buf_offset);
        if (callback == nullptr || start == nullptr) {
            return -EINVAL;
        }
        const ssize_t moved = transfer(engine, callback, ctx, start, size, offset);
        if (moved >= 0) {
            ++engine.counters.gets;
            engine.counters.get_bytes += static_cast<std::uint64_t>(moved);
        }
        return moved;
    });
}

ssize_t cuObjClient::cuObjPut(void* ctx, void* ptr, size_t size, loff_t offset, loff_t buf_offset) {
    return with_engine(implementation_, ssize_t{-EIO}, [&](Engine& engine) -> ssize_t {
        const auto callback = static_cast<Implementation*>(implementation_)->ops.put;
        const char* const start = start_of(ctx, ptr, size, offset, buf_offset);
        if (callback == nullptr || start == nullptr) {
            return -EINVAL;
        }
        const ssize_t moved = transfer(engine, callback, ctx, start, size, offset);
        if (moved >= 0) {
            ++engine.counters.puts;
            engine.counters.put_bytes += static_cast<std::uint64_t>(moved);
        }
        return moved;
    });
}

void* cuObjClient::getCtx(const void* handle) {
    return const_cast<void*>(handle);
}

cuObjMemoryType_t cuObjClient::getMemoryType(const void* ptr) {
    if (ptr == nullptr) {
        return CUOBJ_MEMORY_INVALID;
    }
    switch (s3verbs::memory_type_of(ptr)) {
        case s3verbs::MemoryType::system:
            return CUOBJ_MEMORY_SYSTEM;
        case s3verbs::MemoryType::managed:
            return CUOBJ_MEMORY_CUDA_MANAGED;
        case s3verbs::MemoryType::device:
            return CUOBJ_MEMORY_CUDA_DEVICE;
    }
    return CUOBJ_MEMORY_UNKNOWN;
}

void cuObjClient::setupTelemetry(bool, std::ostream* os) {
    s3verbs::set_log_stream(os);
}

void cuObjClient::shutdownTelemetry() {
    s3verbs::set_log_stream(nullptr);
}

void cuObjClient::setTelemFlags(unsigned flags) {
    using s3verbs::LogLevel;
    const auto bit = [](LogLevel level) { return 1U << static_cast<unsigned>(level); };
    unsigned levels = 0;
    if (flags & CUOBJ_LOG_PATH_ERROR) {
        levels |= bit(LogLevel::error) | bit(LogLevel::warning);
    }
    if (flags & CUOBJ_LOG_PATH_INFO) {
        levels |= bit(LogLevel::info);
    }
    if (flags & CUOBJ_LOG_PATH_DEBUG) {
        levels |= bit(LogLevel::debug);
    }
    s3verbs::set_log_stream_levels(levels);
}
