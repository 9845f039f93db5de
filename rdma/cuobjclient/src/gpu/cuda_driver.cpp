#include "gpu/cuda_driver.h"

#include <dlfcn.h>
#include <link.h>

#include <atomic>
#include <cstring>

#include "process.h"

namespace s3verbs {

namespace {

// enum CUresult
constexpr int cuda_success = 0;
constexpr int cuda_not_initialized = 3;
constexpr int cuda_deinitialized = 4;
constexpr int cuda_invalid_context = 201;

// enum CUpointer_attribute
constexpr int attribute_memory_type = 2;
constexpr int attribute_sync_memops = 6;
constexpr int attribute_is_managed = 8;
constexpr int attribute_device_ordinal = 9;
constexpr int attribute_range_start = 11;
constexpr int attribute_range_size = 12;

// enum CUmemorytype
constexpr unsigned memory_type_device = 2;
constexpr unsigned memory_type_unified = 4;

// enum CUmemRangeHandleType
constexpr int handle_type_dmabuf = 1;

// Not by dlopen: it searches for what is not loaded, and a child that is forked in the middle of another thread's
// search crashes in its own. A fork waits for this look: its child would find the lock of the loader's list taken.
bool is_loaded() {
    const auto look = [](dl_phdr_info* library, std::size_t, void*) {
        return std::strstr(library->dlpi_name, "libcuda.so") != nullptr ? 1 : 0;
    };
    const std::lock_guard lock(fork_mutex());
    return dl_iterate_phdr(look, nullptr) != 0;
}

}  // namespace

// The device's primary context is this thread's current one, and the previous is again after.
class CudaDriver::Current {
public:
    Current(CudaDriver& driver, int device) : driver_(driver) {
        driver_.call("cuCtxPushCurrent_v2", driver_.context(device));
    }
    ~Current() {
        void* popped = nullptr;
        try {
            driver_.raw("cuCtxPopCurrent_v2", &popped);
        } catch (const CudaError&) {
            // A driver that has the one has the other.
        }
    }
    Current(const Current&) = delete;
    Current& operator=(const Current&) = delete;

private:
    CudaDriver& driver_;
};

CudaDriver* CudaDriver::find() {
    // Without a lock, which a forked child could find taken. Never destroyed, like the driver.
    static std::atomic<CudaDriver*> found{nullptr};
    CudaDriver* driver = found;
    if (driver == nullptr && is_loaded()) {
        if (void* library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD)) {
            auto* made = new CudaDriver(library);
            if (found.compare_exchange_strong(driver, made)) {
                return made;
            }
            delete made;
        }
    }
    return driver;
}

Pointer CudaDriver::describe(std::uint64_t address) {
    Pointer pointer;
    unsigned type = 0;
    // The driver writes one byte, or four.
    unsigned managed = 0;
    int attributes[] = {attribute_memory_type, attribute_is_managed, attribute_device_ordinal, attribute_range_start,
                        attribute_range_size};
    void* values[] = {&type, &managed, &pointer.device, &pointer.first, &pointer.size};
    const auto ask = [&] {
        return raw("cuPointerGetAttributes", unsigned{5}, static_cast<int*>(attributes), static_cast<void**>(values),
                   address);
    };
    int code = ask();
    if (code == cuda_not_initialized || code == cuda_deinitialized) {
        return {};
    }
    if (code == cuda_invalid_context) {
        // This thread has none. Any that the application has made will do.
        int count = 0;
        call("cuDeviceGetCount", &count);
        for (int device = 0; device < count && code == cuda_invalid_context; ++device) {
            if (has_context(device)) {
                const Current current(*this, device);
                code = ask();
            }
        }
        if (code == cuda_invalid_context) {
            return {};
        }
    }
    if (code != cuda_success) {
        throw CudaError("cuPointerGetAttributes: " + error_text(code));
    }
    pointer.known = type != 0;
    pointer.managed = managed != 0;
    pointer.on_device = type == memory_type_device || type == memory_type_unified;
    return pointer;
}

void CudaDriver::synchronize(int device, std::uint64_t address) {
    const Current current(*this, device);
    unsigned on = 1;
    call("cuPointerSetAttribute", static_cast<const void*>(&on), int{attribute_sync_memops}, address);
}

int CudaDriver::open_dmabuf(int device, std::uint64_t first, std::size_t size) {
    const Current current(*this, device);
    int descriptor = -1;
    constexpr unsigned long long no_flags = 0;
    call("cuMemGetHandleForAddressRange", static_cast<void*>(&descriptor), first, size, int{handle_type_dmabuf},
         no_flags);
    return descriptor;
}

// The driver's functions all return an enum CUresult. A name is looked up each time: these calls are rare, and slower.
template <typename... Arguments>
int CudaDriver::raw(const char* name, Arguments... arguments) {
    auto* function = reinterpret_cast<int (*)(Arguments...)>(dlsym(library_, name));
    if (function == nullptr) {
        throw CudaError(std::string(name) + ": this driver is too old to have it");
    }
    return function(arguments...);
}

template <typename... Arguments>
void CudaDriver::call(const char* name, Arguments... arguments) {
    if (const int code = raw(name, arguments...); code != cuda_success) {
        throw CudaError(std::string(name) + ": " + error_text(code));
    }
}

void* CudaDriver::context(int device) {
    const std::lock_guard lock(mutex_);
    const auto index = static_cast<std::size_t>(device);
    if (contexts_.size() <= index) {
        contexts_.resize(index + 1);
    }
    if (contexts_[index] == nullptr) {
        int handle = 0;
        call("cuDeviceGet", &handle, device);
        call("cuDevicePrimaryCtxRetain", &contexts_[index], handle);
    }
    return contexts_[index];
}

bool CudaDriver::has_context(int device) {
    int handle = 0;
    unsigned flags = 0;
    int active = 0;
    return raw("cuDeviceGet", &handle, device) == cuda_success &&
           raw("cuDevicePrimaryCtxGetState", handle, &flags, &active) == cuda_success && active != 0;
}

std::string CudaDriver::error_text(int code) {
    const char* text = nullptr;
    try {
        if (raw("cuGetErrorName", code, &text) == cuda_success && text != nullptr) {
            return text;
        }
    } catch (const CudaError&) {
        // The number will do.
    }
    return "error " + std::to_string(code);
}

}  // namespace s3verbs
