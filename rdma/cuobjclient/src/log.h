// Log lines for the operator: one line each, to stderr or a file, prefix "s3verbs: ".
#pragma once

#include <iosfwd>
#include <optional>
#include <string>
#include <string_view>

namespace s3verbs {

enum class LogLevel { error, warning, info, debug };

// "error", "warning", "info", "debug" in any case, and cuFile's further names. Empty for anything else.
std::optional<LogLevel> log_level(std::string_view name);

// Lines above `most` are dropped. With a directory they go to s3verbs-<pid>.log in it, else to stderr. Any thread.
void set_log(LogLevel most, const std::string& directory);

// Also write lines to `stream`, those whose level is in `levels` (bit n is level n); null ends that. The stream must
// stay until then.
void set_log_stream(std::ostream* stream);
void set_log_stream_levels(unsigned levels);

// Any thread, after a fork too; never throws. A line feed in `text` becomes a blank.
void log(LogLevel level, std::string_view text) noexcept;

// The same, unless this text was logged before in this process.
void log_once(LogLevel level, std::string_view text) noexcept;

// The same, unless this text was logged within the last minute: for what fails again and again.
void log_sparsely(LogLevel level, std::string_view text) noexcept;

}  // namespace s3verbs
