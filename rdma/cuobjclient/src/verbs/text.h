// Joining reasons for messages.
#pragma once

#include <string>
#include <vector>

namespace s3verbs {

inline std::string joined(const std::vector<std::string>& parts, const char* separator) {
    std::string text;
    for (const std::string& part : parts)
        text += (text.empty() ? "" : separator) + part;
    return text;
}

}  // namespace s3verbs
