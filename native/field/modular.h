// Integers modulo the Mersenne prime 2^61 - 1. A residue is below the prime everywhere but inside an expression.
#pragma once

#include <cstddef>
#include <cstdint>

namespace meshwright::field {

using Word = std::uint64_t;

constexpr Word kPrime = (Word(1) << 61) - 1;

// Of any 64-bit word: its upper bits count again, since 2^61 is 1.
constexpr Word reduce(Word x) {
  x = (x & kPrime) + (x >> 61);
  return x >= kPrime ? x - kPrime : x;
}

constexpr Word add(Word a, Word b) { return reduce(a + b); }
constexpr Word sub(Word a, Word b) { return reduce(a + (kPrime - b)); }
constexpr Word negate(Word a) { return a ? kPrime - a : 0; }

#if defined(__SIZEOF_INT128__)
__extension__ typedef unsigned __int128 Wide;
constexpr Word mul(Word a, Word b) {
  const Wide product = Wide(a) * b;
  return reduce((Word(product) & kPrime) + Word(product >> 61));
}
#else
// Halves of 31 and 30 bits; every sum below stays under 2^64.
constexpr Word mul(Word a, Word b) {
  constexpr Word kLow = (Word(1) << 31) - 1, kMiddle = (Word(1) << 30) - 1;
  const Word a0 = a & kLow, a1 = a >> 31, b0 = b & kLow, b1 = b >> 31;
  const Word middle = a1 * b0 + a0 * b1;
  return reduce(2 * (a1 * b1) + (middle >> 30) + ((middle & kMiddle) << 31) + a0 * b0);
}
#endif

constexpr Word square_times(Word x, int times) {
  for (int i = 0; i < times; ++i) x = mul(x, x);
  return x;
}

// x^(p - 2), where p - 2 = 2^61 - 3 is 59 ones, a zero and a one in binary; 0 for 0. `ones` holds x^(2^k - 1).
constexpr Word inverse(Word x) {
  const Word ones2 = mul(square_times(x, 1), x);
  const Word ones3 = mul(square_times(ones2, 1), x);
  const Word ones6 = mul(square_times(ones3, 3), ones3);
  const Word ones7 = mul(square_times(ones6, 1), x);
  const Word ones14 = mul(square_times(ones7, 7), ones7);
  const Word ones28 = mul(square_times(ones14, 14), ones14);
  const Word ones29 = mul(square_times(ones28, 1), x);
  const Word ones58 = mul(square_times(ones29, 29), ones29);
  const Word ones59 = mul(square_times(ones58, 1), x);
  return mul(square_times(ones59, 2), x);
}

// A keyed mix of 64 bits: two rounds of multiply and xor-shift, a key before each. The multipliers are the fractional
// parts of the golden ratio and of the square roots of 2 and 3, made odd.
constexpr Word mix(Word x, Word key0, Word key1) {
  x ^= key0;
  x = (x ^ (x >> 32)) * 0x9E3779B97F4A7C15u;
  x = (x ^ (x >> 29)) * 0x6A09E667F3BCC909u;
  x ^= key1;
  x = (x ^ (x >> 32)) * 0xBB67AE8584CAA73Bu;
  return x ^ (x >> 29);
}

}  // namespace meshwright::field
