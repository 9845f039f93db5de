// The engine's port to what exposes memory: a same-host session, or RDMA devices with their listeners.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <stdexcept>
#include <string>
#include <string_view>

namespace s3verbs {

enum class TransportKind { dc, rc, samehost };

enum class MemoryType { system, managed, device };

// An open dma-buf: the caller closes `descriptor`; `offset` is where the memory begins in it.
struct DmaBuf {
    int descriptor;
    std::uint64_t offset;
};

// A caller's buffer: `size` bytes at the virtual address `address`. It stays the caller's, who keeps it mapped until
// the registration is gone.
struct Memory {
    void* address = nullptr;
    std::size_t size = 0;
    MemoryType type = MemoryType::system;
    // Ordinal of the GPU that has the memory; -1 for host memory.
    int gpu = -1;
    // Opens a dma-buf over the whole buffer; empty for host memory. Throws TransportError when the driver has none.
    std::function<DmaBuf()> dmabuf;
};

// This transport cannot be used here, or not for this memory; the text says why and what would change it.
class TransportError : public std::runtime_error {
    using std::runtime_error::runtime_error;
};

// Memory that a server can reach. Any thread.
class Registration {
public:
    // Takes the memory back as `revoke` does; what could not be taken back is logged.
    virtual ~Registration() = default;

    // A token for [offset, offset + size) of the memory, good until `revoke`. Throws TransportError, std::out_of_range.
    virtual std::string token(std::size_t offset, std::size_t size) = 0;

    // True: no server can touch the memory any more. False: the transport could not make sure of that within some
    // seconds; it can be called again. Never throws.
    virtual bool revoke() noexcept = 0;

    // Device or socket that serves it, for the log.
    virtual std::string device() const = 0;
};

// One way of exposing memory. Any thread. It outlives its registrations.
class Transport {
public:
    virtual ~Transport() = default;

    virtual TransportKind kind() const noexcept = 0;

    // Throws TransportError.
    virtual std::unique_ptr<Registration> register_memory(const Memory& memory) = 0;

    // One line for the log: devices or socket.
    virtual std::string describe() const = 0;
};

std::string_view name(TransportKind kind) noexcept;

}  // namespace s3verbs
