// A descriptor that a library has opened and will close.
#pragma once

#include "descriptor.h"

namespace s3verbs {

// Closes it in forked children only: with one of theirs a child that outlives its parent would keep the parent's memory
// registered. Destroyed before the library closes it.
class BorrowedDescriptor {
public:
    BorrowedDescriptor() = default;
    explicit BorrowedDescriptor(int descriptor) : descriptor_(descriptor) {}
    ~BorrowedDescriptor() { descriptor_.release(); }
    BorrowedDescriptor(BorrowedDescriptor&&) noexcept = default;
    BorrowedDescriptor& operator=(BorrowedDescriptor&&) noexcept = default;

private:
    Descriptor descriptor_;
};

}  // namespace s3verbs
