#include "counters.h"

namespace s3verbs {

s3verbs_counters Counters::snapshot() const noexcept {
    s3verbs_counters now{};
    now.registrations = registrations;
    now.registration_failures = registration_failures;
    now.release_failures = release_failures;
    now.tokens = tokens;
    now.token_failures = token_failures;
    now.gets = gets;
    now.puts = puts;
    now.get_bytes = get_bytes;
    now.put_bytes = put_bytes;
    now.callback_failures = callback_failures;
    return now;
}

}  // namespace s3verbs
