// Type, GPU and dma-buf of a caller's memory (backends.h).
#include <unistd.h>

#include "backends.h"
#include "gpu/cuda_driver.h"
#include "log.h"

namespace s3verbs {

namespace {

Pointer pointer_at(const void* address) {
    CudaDriver* driver = CudaDriver::find();
    return driver == nullptr ? Pointer{} : driver->describe(reinterpret_cast<std::uint64_t>(address));
}

MemoryType type_of(const Pointer& pointer) {
    if (!pointer.known) {
        return MemoryType::system;
    }
    if (pointer.managed) {
        return MemoryType::managed;
    }
    return pointer.on_device ? MemoryType::device : MemoryType::system;
}

DmaBuf open_dmabuf(const Pointer& allocation, std::uint64_t address, std::size_t size) {
    // The driver takes whole pages of the host.
    const auto page = static_cast<std::uint64_t>(sysconf(_SC_PAGESIZE));
    const std::uint64_t first = address - address % page;
    const std::uint64_t end = (address + size + page - 1) / page * page;
    try {
        return {CudaDriver::find()->open_dmabuf(allocation.device, first, end - first), address - first};
    } catch (const CudaError& error) {
        const bool inside = address >= allocation.first && size <= allocation.size - (address - allocation.first);
        throw TransportError(error.what() + (inside ? std::string()
                                                    : ": the memory goes beyond its allocation, " +
                                                          std::to_string(allocation.size) + " bytes"));
    }
}

}  // namespace

MemoryType memory_type_of(const void* address) noexcept {
    try {
        return type_of(pointer_at(address));
    } catch (const std::exception& error) {
        log_once(LogLevel::warning, std::string("GPU: memory is taken for the host's: ") + error.what());
        return MemoryType::system;
    }
}

Memory describe_memory(void* address, std::size_t size) {
    Memory memory;
    memory.address = address;
    memory.size = size;
    const auto first = reinterpret_cast<std::uint64_t>(address);
    Pointer pointer;
    try {
        pointer = pointer_at(address);
    } catch (const CudaError& error) {
        throw TransportError(std::string("what memory this is cannot be told: ") + error.what());
    }
    memory.type = type_of(pointer);
    if (memory.type == MemoryType::system) {
        return memory;
    }
    memory.gpu = pointer.device;
    if (memory.type == MemoryType::managed) {
        return memory;
    }
    try {
        CudaDriver::find()->synchronize(memory.gpu, first);
    } catch (const CudaError& error) {
        // Memory of cuMemCreate has no such attribute.
        log_once(LogLevel::info, std::string("GPU: wait for your own copies before a transfer: ") + error.what());
    }
    memory.dmabuf = [pointer, first, size] { return open_dmabuf(pointer, first, size); };
    return memory;
}

}  // namespace s3verbs
