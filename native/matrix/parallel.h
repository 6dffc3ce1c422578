// A loop split over a few threads. The pieces are handed out one by one, so uneven ones balance.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <exception>
#include <mutex>
#include <thread>
#include <vector>

namespace meshwright {

// Calls body(i) for every i below `pieces`, on at most `threads` threads, the caller's being one of them. An exception
// of any piece is thrown again here once all threads are back.
template <typename Body>
void parallel_for(unsigned threads, std::size_t pieces, const Body& body) {
  const std::size_t wanted = std::min<std::size_t>(threads, pieces);
  if (wanted <= 1) {
    for (std::size_t i = 0; i < pieces; ++i) body(i);
    return;
  }
  std::atomic<std::size_t> next{0};
  std::exception_ptr failure;
  std::mutex failure_mutex;
  const auto work = [&] {
    try {
      for (std::size_t i = next.fetch_add(1); i < pieces; i = next.fetch_add(1)) body(i);
    } catch (...) {
      const std::lock_guard<std::mutex> guard(failure_mutex);
      failure = std::current_exception();
      next = pieces;
    }
  };
  std::vector<std::thread> helpers;
  helpers.reserve(wanted - 1);
  for (std::size_t i = 1; i < wanted; ++i) {
    try {
      helpers.emplace_back(work);
    } catch (...) {
      break;  // no more threads to be had: those there are do the work
    }
  }
  work();
  for (std::thread& helper : helpers) helper.join();
  if (failure) std::rethrow_exception(failure);
}

}  // namespace meshwright
