// Whether memory is there at all.
#pragma once

#include <cstddef>

namespace s3verbs {

// Whether every page of the range, which must not pass the last address, is mapped in this process. Nothing is read,
// and no page is made resident.
bool is_mapped(const void* address, std::size_t size) noexcept;

}  // namespace s3verbs
