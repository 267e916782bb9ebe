// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cfenv>

namespace sparsecast {

/// Sets the default floating-point environment of this thread while the object exists: rounds to nearest, keeps
/// denormals, masks exceptions. The destructor restores the caller's environment. Callers may flush denormals
/// (`torch.set_flush_denormal`, libraries built with -ffast-math) or use another rounding, and results must not depend
/// on that. Threads started meanwhile may or may not inherit the environment, so each task that computes with floats
/// makes an object of its own.
class DefaultFloatEnvironment {
 public:
  DefaultFloatEnvironment() noexcept {
    std::fegetenv(&callers_);
    std::fesetenv(FE_DFL_ENV);
  }
  ~DefaultFloatEnvironment() { std::fesetenv(&callers_); }
  DefaultFloatEnvironment(const DefaultFloatEnvironment&) = delete;
  DefaultFloatEnvironment& operator=(const DefaultFloatEnvironment&) = delete;

 private:
  std::fenv_t callers_{};
};

}  // namespace sparsecast
