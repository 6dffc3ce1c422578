// In what order product_avx512.cpp issues its instructions: a software pipeline, worked out at compile time.
//
// The rows of the tile follow one another, `kRowTime` apart; for each, the time of every instruction after its first
// dot is fixed. Laid over each other modulo the time of one block, that is the loop. So the dots of one row run beside
// the block value of an earlier row and the addition of one earlier still, and the processor, whose own window is
// shorter than the about 80 cycles from a dot to its accumulator, finds instructions ready as it reads them.
//
// The times are for Zen 4, where they were tuned; other processors are right with any times that pass the assertions.
#pragma once

#include <array>
#include <cstddef>

#include "kernels_avx512.h"

namespace meshwright {
namespace {

// Times are in tenths of a cycle. Zen 4 needs 12.5 cycles a row and block where nothing waits: 25 instructions on
// vectors as wide as two pipes, of four.
constexpr int kRowTime = 125;
constexpr int kBlockTime = kRows * kRowTime;
constexpr int kDotTime = 40;  // latency of a dot, the next of the row waits for it
constexpr int kSteps = 17;
constexpr int kLaps = 3;  // a step happens up to two turns of the loop after the first dot

// Latencies of the steps of product_avx512.cpp. They are stretched, because instructions that are issued just in time
// are late when anything before them was.
constexpr int kStretchPercent = 180;
constexpr int kLatency[kSteps] = {40, 30, 40, 30, 5, 20, 10, 30, 10, 30, 30, 5, 30, 10, 10, 40, 40};
constexpr int kFirstStep = kGroups * kDotTime + 30;

struct Event {
  enum Kind { load_b, dot, step } kind;
  int time;   // within the turn of the loop
  int row;
  int index;  // group of the dot or of the load, number of the step
  int lap;    // how many turns after that of the block's own load
};

constexpr bool earlier(const Event& x, const Event& y) {
  return x.time != y.time ? x.time < y.time : x.kind < y.kind;
}

constexpr int step_time(int step) {
  int time = kFirstStep;
  for (int i = 0; i < step; ++i) time += kLatency[i] * kStretchPercent / 100;
  return time;
}

constexpr auto make_schedule() {
  std::array<Event, kGroups + kRows * (kGroups + kSteps)> events{};
  std::size_t n = 0;
  for (int group = 0; group < kGroups; ++group) events[n++] = {Event::load_b, group * kDotTime, 0, group, 0};
  for (int row = 0; row < kRows; ++row) {
    for (int group = 0; group < kGroups; ++group) {
      const int time = row * kRowTime + group * kDotTime;
      events[n++] = {Event::dot, time % kBlockTime, row, group, time / kBlockTime};
    }
    for (int step = 0; step < kSteps; ++step) {
      const int time = row * kRowTime + step_time(step);
      events[n++] = {Event::step, time % kBlockTime, row, step, time / kBlockTime};
    }
  }
  for (std::size_t i = 1; i < n; ++i) {
    const Event event = events[i];
    std::size_t j = i;
    for (; j > 0 && earlier(event, events[j - 1]); --j) events[j] = events[j - 1];
    events[j] = event;
  }
  return events;
}

constexpr auto kSchedule = make_schedule();

// What a schedule needs to be right, whatever the times are.
constexpr bool within_a_block(int first_write, int last_read) {
  return step_time(last_read) - step_time(first_write) < kBlockTime;
}
static_assert(within_a_block(0, 2), "dot_sa is written by step 0 and read by step 2");
static_assert(within_a_block(1, 3), "g");
static_assert(within_a_block(2, 5), "v");
static_assert(within_a_block(4, 12), "large");
static_assert(within_a_block(5, 11), "small");
static_assert(within_a_block(6, 10), "power");
static_assert(within_a_block(9, 12), "kept");
static_assert(within_a_block(11, 14), "lost");
static_assert(within_a_block(12, 15), "s");
static_assert(within_a_block(13, 16), "e");
static_assert(within_a_block(4, 16), "the accumulator is read by steps 4 and 5 before step 16 of the block before");
static_assert(kFirstStep < kBlockTime, "a row's sum is read before the next block's dots begin");
static_assert(kRowTime * (kRows - 1) + (kGroups - 1) * kDotTime < 2 * kBlockTime, "dots happen within two turns");
static_assert(kRowTime * (kRows - 1) + step_time(kSteps - 1) < kLaps * kBlockTime, "kLaps laps suffice");
static_assert(step_time(kSteps - 1) >= kBlockTime, "the last step of a row comes after the switch of panels");

}  // namespace
}  // namespace meshwright
