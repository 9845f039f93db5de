// The few calls of the CUDA driver that exposing a GPU's memory needs. libcuda.so.1 is used where the process has
// loaded it, and never loaded or initialized here: without it, or before the application's cuInit, no address is a
// GPU's.
//
// Source: CUDA Driver API reference (cuda.h, 12.x). Not run on a GPU yet: the tests use a stand-in library.
#pragma once

#include <cstddef>
#include <cstdint>
#include <mutex>
#include <stdexcept>
#include <string>
#include <vector>

namespace s3verbs {

// A driver call failed; the text has the call and the driver's own name of the error.
class CudaError : public std::runtime_error {
    using std::runtime_error::runtime_error;
};

// What the driver knows about an address. `known` false: it is not the driver's.
struct Pointer {
    bool known = false;
    // Of a device, and not of the host, pinned or not.
    bool on_device = false;
    bool managed = false;
    int device = -1;
    // The allocation that it is in.
    std::uint64_t first = 0;
    std::size_t size = 0;
};

// Works in each device's primary context, which is the one that CUDA's runtime and torch use. Any thread.
class CudaDriver {
public:
    // Null when this process has no driver, for now.
    static CudaDriver* find();

    // `library` is dlopen's handle of a libcuda, which stays loaded.
    explicit CudaDriver(void* library) : library_(library) {}

    // Throws CudaError.
    Pointer describe(std::uint64_t address);

    // From then on copies that the application starts at this memory are done when they return, so that they do not
    // race with the NIC. Throws CudaError.
    void synchronize(int device, std::uint64_t address);

    // A new dma-buf descriptor over [first, first + size), both multiples of the page size. Throws CudaError.
    int open_dmabuf(int device, std::uint64_t first, std::size_t size);

private:
    class Current;

    template <typename... Arguments>
    int raw(const char* name, Arguments... arguments);
    template <typename... Arguments>
    void call(const char* name, Arguments... arguments);
    void* context(int device);
    bool has_context(int device);
    std::string error_text(int code);

    void* const library_;
    std::mutex mutex_;
    // By device; kept for the life of the process, as the runtime does. Under mutex_.
    std::vector<void*> contexts_;
};

}  // namespace s3verbs
