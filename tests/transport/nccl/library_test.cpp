// SPDX-License-Identifier: Apache-2.0
#ifdef SPARSECAST_HAVE_NCCL

#include "transport/nccl/nccl_library.hpp"

#include <dlfcn.h>
#include <gmock/gmock.h>

#include <cstddef>
#include <cstdlib>
#include <fstream>
#include <type_traits>

#include "sparsecast/device.hpp"
#include "tests/support/expect_error.hpp"

namespace sparsecast::test {
namespace {

using testing::Contains;

const std::string kModules = SPARSECAST_TEST_MODULES;

#if NCCL_VERSION_CODE >= NCCL_VERSION(2, 31, 2)
// The loader's own declarations are NCCL's.
static_assert(offsetof(NcclCollConfig, version) == offsetof(ncclCollConfig_t, version));
static_assert(offsetof(NcclCollConfig, max_ctas) == offsetof(ncclCollConfig_t, maxCTAs));
static_assert(offsetof(NcclCollConfig, algorithms) == offsetof(ncclCollConfig_t, algSelection));
static_assert(offsetof(NcclCollConfig, cta_policy) == offsetof(ncclCollConfig_t, CTAPolicy));
static_assert(offsetof(NcclCollConfig, user_profiler_tag) == offsetof(ncclCollConfig_t, userProfilerTag));
static_assert(NcclCollConfig{}.magic == NCCL_API_MAGIC && kSuspendMemory == NCCL_SUSPEND_MEM);
static_assert(std::is_same_v<decltype(&ncclCommSuspend), decltype(NcclFunctions::comm_suspend)>);
static_assert(std::is_same_v<decltype(&ncclCommResume), decltype(NcclFunctions::comm_resume)>);
#endif

TEST(NcclLibrary, AFileThatIsNoLibraryIsRefused) {
  const std::string path = testing::TempDir() + "sparsecast_not_a_library.so";
  std::ofstream(path) << "hello";
  expect_error(ErrorCode::kUnsupported, [&] { load_nccl(path); }, {path, "cannot be loaded"});
  expect_error(ErrorCode::kUnsupported, [] { load_nccl("/no/such/libnccl.so.2"); }, {"/no/such/libnccl.so.2"});
}

TEST(NcclLibrary, AnotherLibraryIsRefused) {
  expect_error(ErrorCode::kUnsupported, [] { load_nccl("libm.so.6"); }, {"libm.so.6", "no ncclGetVersion"});
}

TEST(NcclLibrary, MissingEntryPointsAreNamed) {
  expect_error(ErrorCode::kUnsupported, [] { load_nccl(kModules + "/libfake_nccl_22203.so"); },
               {"libfake_nccl_22203.so", "NCCL 2.22.3", "lacks ncclGetUniqueId", "ncclBroadcast"});
}

TEST(NcclLibrary, AnOldVersionIsRefused) {
  expect_error(ErrorCode::kUnsupported, [] { load_nccl(kModules + "/libfake_nccl_21805.so"); },
               {"NCCL 2.18.5", "at least 2.20.0"});
}

TEST(NcclLibrary, VersionsAreWrittenAsPeopleWriteThem) {
  EXPECT_EQ(nccl_version_text(22809), "2.28.9");
  EXPECT_EQ(nccl_version_text(23003), "2.30.3");
}

class NcclEnvironment : public testing::Test {
 protected:
  ~NcclEnvironment() override {
    unsetenv("SPARSECAST_NCCL_BROADCAST_CTAS");
    unsetenv("SPARSECAST_NCCL_SUSPEND");
  }
};

TEST_F(NcclEnvironment, AddsWhatTheProgramHasNotSet) {
  EXPECT_EQ(with_environment({}).broadcast_ctas, 0);
  setenv("SPARSECAST_NCCL_BROADCAST_CTAS", "4", 1);
  setenv("SPARSECAST_NCCL_SUSPEND", "1", 1);
  NcclOptions options;
  EXPECT_EQ(with_environment(options).broadcast_ctas, 4);
  EXPECT_TRUE(with_environment(options).suspend_between_rounds);
  options.broadcast_ctas = 2;
  EXPECT_EQ(with_environment(options).broadcast_ctas, 2);
  setenv("SPARSECAST_NCCL_SUSPEND", "0", 1);
  EXPECT_FALSE(with_environment(options).suspend_between_rounds);
}

TEST_F(NcclEnvironment, OtherWordsAreRefused) {
  for (const char* text : {"", "0", "-1", "4 ", "four", "1025", "99999999999999999999"}) {
    setenv("SPARSECAST_NCCL_BROADCAST_CTAS", text, 1);
    expect_error(ErrorCode::kUsage, [] { with_environment({}); }, {"SPARSECAST_NCCL_BROADCAST_CTAS", "from 1 to 1024"});
  }
  unsetenv("SPARSECAST_NCCL_BROADCAST_CTAS");
  setenv("SPARSECAST_NCCL_SUSPEND", "true", 1);
  expect_error(ErrorCode::kUsage, [] { with_environment({}); }, {"SPARSECAST_NCCL_SUSPEND", "from 0 to 1"});
}

#ifdef SPARSECAST_TEST_NCCL_LIBRARY

TEST(NcclLibrary, TheRealOneIsLoadedAndSaysItsVersionWithoutADevice) {
  const NcclLibrary library = load_nccl(SPARSECAST_TEST_NCCL_LIBRARY);
  EXPECT_GE(library.info.version, kOldestNccl);
  EXPECT_EQ(library.info.path, SPARSECAST_TEST_NCCL_LIBRARY);  // libnccl.so of a development package, or libnccl.so.2.
  EXPECT_EQ(library.info.chosen_because, "SPARSECAST_NCCL_LIBRARY");
  EXPECT_THAT(library.info.optional, Contains("ncclMemAlloc"));
  ncclUniqueId id;
  EXPECT_EQ(library.functions.get_unique_id(&id), ncclSuccess);
  EXPECT_STREQ(library.functions.get_error_string(ncclRemoteError),
               "remote process exited or there was a network error");
  EXPECT_EQ(library.functions.has_suspend(), library.info.version >= 22907);
  EXPECT_EQ(library.functions.broadcast_config != nullptr, library.info.version >= 23102);
  for (const std::string& name : library.info.absent) std::cout << "this library has no " << name << '\n';
}

TEST(NcclLibrary, TheCopyThatTheProcessHoldsAlreadyIsPreferred) {
  void* const held = dlopen(SPARSECAST_TEST_NCCL_LIBRARY, RTLD_NOW | RTLD_LOCAL);
  ASSERT_NE(held, nullptr);
  const NcclLibrary library = load_nccl("");
  EXPECT_EQ(library.info.chosen_because, "already loaded by this process");
  EXPECT_EQ(reinterpret_cast<void*>(library.functions.broadcast), dlsym(held, "ncclBroadcast"));
}

TEST(NcclLibrary, TheEnvironmentNamesTheFile) {
  setenv(kNcclLibraryVariable, SPARSECAST_TEST_NCCL_LIBRARY, 1);
  EXPECT_EQ(nccl_library().chosen_because, kNcclLibraryVariable);
}

#endif

TEST(Devices, TheSurveySaysWhyThereAreNone) {
  const DeviceSurvey survey = survey_devices();
  EXPECT_EQ(survey.devices.empty(), !survey.why_none.empty()) << survey.why_none;
  EXPECT_GT(survey.runtime_version, 0);
}

}  // namespace
}  // namespace sparsecast::test

#endif
