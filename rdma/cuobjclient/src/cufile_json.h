// cuFile's JSON configuration, as far as it concerns an RDMA client. Source: "RDMA Multipathing", "RDMA Peer Memory
// Configuration" and "Logging" in the published specification of cuObjClient. Other members are left alone.
#pragma once

#include <string>
#include <string_view>

#include "config.h"

namespace s3verbs {

// Takes the settings of `text` into `config`. The text may hold // and /* */ comments. Throws ConfigError, which says
// where the text is no JSON, or which member has a value that cannot be used.
void apply_cufile_json(std::string_view text, Config& config);

// The same for a file. Throws ConfigError also when it cannot be read.
void apply_cufile_json_file(const std::string& path, Config& config);

}  // namespace s3verbs
