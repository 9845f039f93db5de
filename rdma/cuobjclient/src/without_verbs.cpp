// Stand-in for src/verbs in a build without it (S3VERBS_VERBS=OFF).
#include "backends.h"

namespace s3verbs {

std::unique_ptr<Transport> make_verbs_transport(const Config&) {
    throw TransportError("this library was built without verbs: build it where libibverbs-dev and librdmacm-dev are");
}

}  // namespace s3verbs
