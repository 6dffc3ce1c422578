// Splits a range over threads; each runs its share between the kernels' enter and leave.
#pragma once

#include <thread>
#include <vector>

#include "kernels.h"

namespace meshwright::lane {

class Entered {
 public:
  explicit Entered(const Kernels& kernels) : kernels_(kernels), state_(kernels.enter()) {}
  ~Entered() { kernels_.leave(state_); }
  Entered(const Entered&) = delete;
  Entered& operator=(const Entered&) = delete;

 private:
  const Kernels& kernels_;
  unsigned state_;
};

// Calls work(worker, begin, end) with [0, count) cut into at most `threads` shares, each a multiple of `grain` but
// the last.
template <class Work>
void parallel(std::size_t count, std::size_t grain, int threads, const Kernels& kernels, Work work) {
  const std::size_t grains = (count + grain - 1) / grain;
  const std::size_t workers = grains < std::size_t(threads) ? (grains ? grains : 1) : std::size_t(threads);
  auto share = [&](std::size_t worker) {
    const std::size_t begin = grains * worker / workers * grain, end = grains * (worker + 1) / workers * grain;
    const Entered entered(kernels);
    work(worker, begin, end < count ? end : count);
  };
  std::vector<std::thread> others;
  for (std::size_t worker = 1; worker < workers; ++worker) others.emplace_back(share, worker);
  share(0);
  for (auto& other : others) other.join();
}

// 64-byte aligned and zeroed: kernels read whole vectors, also past the elements in use.
class Scratch {
 public:
  explicit Scratch(std::size_t elements)
      : storage_(elements + kPad), base_(storage_.data()) {
    while (reinterpret_cast<std::uintptr_t>(base_) % 64) ++base_;
  }
  Bits* data() { return base_; }

 private:
  std::vector<Bits> storage_;
  Bits* base_;
};

}  // namespace meshwright::lane
