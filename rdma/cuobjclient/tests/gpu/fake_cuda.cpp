// A libcuda.so.1 without a GPU: the functions that the client engine calls, with the types of cuda.h's ABI.
#include "fake_cuda.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cstring>

using s3verbs::FakeCuda;

namespace {

constexpr int invalid_value = 1;
constexpr int invalid_context = 201;

thread_local std::vector<int> contexts;

FakeCuda state;

// A context is the number of its device, and one.
void* context_of(int device) {
    return reinterpret_cast<void*>(static_cast<std::uintptr_t>(device) + 1);
}

int fails(const char* call) {
    const auto found = state.failing.find(call);
    return found == state.failing.end() ? 0 : found->second;
}

}  // namespace

extern "C" {

FakeCuda* fake_cuda() {
    return &state;
}

int cuGetErrorName(int code, const char** name) {
    switch (code) {
        case 1:
            *name = "CUDA_ERROR_INVALID_VALUE";
            return 0;
        case 201:
            *name = "CUDA_ERROR_INVALID_CONTEXT";
            return 0;
        case 801:
            *name = "CUDA_ERROR_NOT_SUPPORTED";
            return 0;
        default:
            return invalid_value;
    }
}

int cuPointerGetAttributes(unsigned count, int* attributes, void** values, std::uint64_t address) {
    const std::lock_guard lock(state.mutex);
    if (const int code = fails("cuPointerGetAttributes"); code != 0) {
        return code;
    }
    if (state.pointers_need_context && contexts.empty()) {
        return invalid_context;
    }
    // An address that is not the driver's is no error: every attribute is zero, and there is no device.
    s3verbs::FakeAllocation found{0, 0, 0, false, -2};
    for (const auto& each : state.allocations) {
        if (address >= each.first && address - each.first < each.size) {
            found = each;
        }
    }
    for (unsigned i = 0; i < count; ++i) {
        switch (attributes[i]) {
            case 2:
                std::memcpy(values[i], &found.type, sizeof found.type);
                break;
            case 8:
                std::memcpy(values[i], &found.managed, sizeof found.managed);
                break;
            case 9:
                std::memcpy(values[i], &found.device, sizeof found.device);
                break;
            case 11:
                std::memcpy(values[i], &found.first, sizeof found.first);
                break;
            case 12:
                std::memcpy(values[i], &found.size, sizeof found.size);
                break;
            default:
                return invalid_value;
        }
    }
    return 0;
}

int cuPointerSetAttribute(const void* value, int attribute, std::uint64_t address) {
    const std::lock_guard lock(state.mutex);
    if (const int code = fails("cuPointerSetAttribute"); code != 0) {
        return code;
    }
    unsigned on = 0;
    std::memcpy(&on, value, sizeof on);
    if (attribute != 6 || on != 1 || contexts.empty()) {
        return invalid_value;
    }
    state.synchronized.push_back(address);
    return 0;
}

int cuDeviceGetCount(int* count) {
    const std::lock_guard lock(state.mutex);
    *count = state.devices;
    return 0;
}

int cuDeviceGet(int* device, int ordinal) {
    const std::lock_guard lock(state.mutex);
    *device = 100 + ordinal;
    return ordinal < state.devices ? fails("cuDeviceGet") : 101;
}

int cuDevicePrimaryCtxGetState(int device, unsigned* flags, int* active) {
    const std::lock_guard lock(state.mutex);
    *flags = 0;
    *active = state.active[device - 100] ? 1 : 0;
    return 0;
}

int cuDevicePrimaryCtxRetain(void** context, int device) {
    const std::lock_guard lock(state.mutex);
    if (const int code = fails("cuDevicePrimaryCtxRetain"); code != 0) {
        return code;
    }
    ++state.retained[device - 100];
    *context = context_of(device - 100);
    return 0;
}

int cuCtxPushCurrent_v2(void* context) {
    const std::lock_guard lock(state.mutex);
    if (const int code = fails("cuCtxPushCurrent_v2"); code != 0) {
        return code;
    }
    contexts.push_back(static_cast<int>(reinterpret_cast<std::uintptr_t>(context)) - 1);
    ++state.pushed;
    return 0;
}

int cuCtxPopCurrent_v2(void** context) {
    const std::lock_guard lock(state.mutex);
    if (contexts.empty()) {
        return invalid_context;
    }
    *context = context_of(contexts.back());
    contexts.pop_back();
    --state.pushed;
    return 0;
}

#ifndef FAKE_CUDA_OLD
int cuMemGetHandleForAddressRange(void* handle, std::uint64_t first, std::size_t size, int type,
                                  unsigned long long flags) {
    const std::lock_guard lock(state.mutex);
    if (const int code = fails("cuMemGetHandleForAddressRange"); code != 0) {
        return code;
    }
    const auto page = static_cast<std::uint64_t>(sysconf(_SC_PAGESIZE));
    if (contexts.empty() || type != 1 || flags != 0 || first % page != 0 || size % page != 0) {
        return invalid_value;
    }
    state.exported.push_back({contexts.back(), first, size});
    const int descriptor = memfd_create("dma-buf", MFD_CLOEXEC);
    std::memcpy(handle, &descriptor, sizeof descriptor);
    return 0;
}
#endif
}
