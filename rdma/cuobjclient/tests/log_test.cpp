#include "log.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <fstream>

#include "support.h"

namespace s3verbs {
namespace {

std::string contents(const std::string& path) {
    std::ifstream file(path);
    return {std::istreambuf_iterator<char>(file), {}};
}

TEST(Log, GoesToAFileOfTheDirectoryUpToTheLevel) {
    const testing::TemporaryDirectory directory;
    const std::string path = directory.path() + "/s3verbs-" + std::to_string(getpid()) + ".log";
    set_log(LogLevel::warning, directory.path());
    log(LogLevel::error, "first\nline");
    log(LogLevel::warning, "second");
    log(LogLevel::info, "third");
    EXPECT_EQ(contents(path), "s3verbs: error: first line\ns3verbs: warning: second\n");
    set_log(LogLevel::debug, directory.path());
    log(LogLevel::info, "fourth");
    EXPECT_NE(contents(path).find("\ns3verbs: fourth\n"), std::string::npos);
    set_log(LogLevel::info, "");
}

TEST(Log, SaysOnceWhenItsFileCannotBeHad) {
    const testing::CapturedLog captured;
    ::testing::internal::CaptureStderr();
    set_log(LogLevel::info, "/no/such/directory");
    set_log(LogLevel::info, "/no/such/directory");
    log(LogLevel::info, "to stderr then");
    const auto text = ::testing::internal::GetCapturedStderr();
    EXPECT_NE(text.find("/no/such/directory"), std::string::npos);
    EXPECT_NE(text.find("s3verbs: to stderr then\n"), std::string::npos);
    EXPECT_EQ(captured.count("/no/such/directory"), 1U);
    set_log(LogLevel::info, "");
}

TEST(Log, OnceIsOnce) {
    const testing::CapturedLog captured;
    for (int round = 0; round < 10; ++round) {
        log_once(LogLevel::debug, "said once");
        log_sparsely(LogLevel::debug, "said sparsely");
        log(LogLevel::debug, "said always");
    }
    EXPECT_EQ(captured.count("said once"), 1U);
    EXPECT_EQ(captured.count("said sparsely"), 1U);
    EXPECT_EQ(captured.count("said always"), 10U);
}

TEST(Log, LevelsHaveCufilesNamesToo) {
    EXPECT_EQ(log_level("ERROR"), LogLevel::error);
    EXPECT_EQ(log_level("Warn"), LogLevel::warning);
    EXPECT_EQ(log_level("trace"), LogLevel::debug);
    EXPECT_FALSE(log_level(""));
    EXPECT_FALSE(log_level("verbose"));
}

}  // namespace
}  // namespace s3verbs
