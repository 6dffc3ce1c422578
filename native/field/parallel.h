// A loop over pieces of work that threads take one by one.
#pragma once

#include <atomic>
#include <cstddef>
#include <system_error>
#include <thread>
#include <vector>

namespace meshwright::field {

// Calls work(piece) for every piece below `pieces`, on at most `threads` threads, the caller's being one of them.
template <class Work>
void parallel(std::size_t pieces, int threads, const Work& work) {
  std::atomic<std::size_t> next{0};
  const auto take = [&] {
    for (std::size_t piece = next++; piece < pieces; piece = next++) work(piece);
  };
  std::vector<std::thread> others;
  const std::size_t wanted = pieces < std::size_t(threads) ? pieces : std::size_t(threads);
  try {
    for (std::size_t i = 1; i < wanted; ++i) others.emplace_back(take);
  } catch (const std::system_error&) {
    // No more threads to be had: those there are do the work.
  }
  take();
  for (auto& other : others) other.join();
}

}  // namespace meshwright::field
