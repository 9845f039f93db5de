#include "transport.h"

namespace s3verbs {

std::string_view name(TransportKind kind) noexcept {
    switch (kind) {
        case TransportKind::dc:
            return "dc";
        case TransportKind::rc:
            return "rc";
        case TransportKind::samehost:
            return "samehost";
    }
    return "unknown";
}

}  // namespace s3verbs
