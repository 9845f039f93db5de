// What src/verbs and src/gpu give to the engine. A build without them has stand-ins that say so.
#pragma once

#include <cstddef>
#include <memory>

#include "config.h"
#include "transport.h"

namespace s3verbs {

// DC targets or RC listeners on this machine's RoCE devices, as config.transport chooses: `automatic` takes DC where a
// device can create a DC target and RC otherwise. Throws TransportError when there is no device to use, with the reason
// for each one that was passed over.
std::unique_ptr<Transport> make_verbs_transport(const Config& config);

// The memory's type by the CUDA driver; system where there is no driver, or when it does not know the address. Loads
// the driver at most once; creates no CUDA context. Never throws.
MemoryType memory_type_of(const void* address) noexcept;

// Type, GPU and dma-buf of the memory. Throws TransportError.
Memory describe_memory(void* address, std::size_t size);

}  // namespace s3verbs
