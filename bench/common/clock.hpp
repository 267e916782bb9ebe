#pragma once

#include <algorithm>
#include <chrono>
#include <vector>

namespace sparsecast::bench {

/// Seconds since construction or the last restart.
class Stopwatch {
 public:
  double seconds() const { return std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count(); }
  void restart() { start_ = std::chrono::steady_clock::now(); }

 private:
  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
};

/// Seconds that `work` took.
template <class Work>
double timed(const Work& work) {
  const Stopwatch watch;
  work();
  return watch.seconds();
}

/// 0 for no samples.
inline double median(std::vector<double> samples) {
  if (samples.empty()) return 0;
  const auto middle = samples.begin() + static_cast<std::ptrdiff_t>(samples.size() / 2);
  std::nth_element(samples.begin(), middle, samples.end());
  if (samples.size() % 2 != 0) return *middle;
  return (*middle + *std::max_element(samples.begin(), middle)) / 2;
}

/// `amount` for each `unit`, 0 when there is no unit.
inline double per(double amount, double unit) { return unit > 0 ? amount / unit : 0; }

}  // namespace sparsecast::bench
