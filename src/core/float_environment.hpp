// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cfenv>

namespace sparsecast {

/// Computes in the default floating-point environment of this thread while it lives: rounds to nearest, keeps
/// denormals, masks exceptions. The caller's environment comes back afterwards. Callers flush denormals
/// (`torch.set_flush_denormal`, libraries built with -ffast-math) or round otherwise, and results must not differ by
/// that. Threads that are started meanwhile may or may not inherit it: each task that computes with floats makes its
/// own.
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
