// How often a test tries: all of it in the builds without a sanitizer, in which nothing is slow.
#pragma once

#if defined(__has_feature)
#define ROBOCACHE_HAS(feature) __has_feature(feature)
#else
#define ROBOCACHE_HAS(feature) 0
#endif

namespace robocache::test {

#if defined(__SANITIZE_THREAD__) || ROBOCACHE_HAS(thread_sanitizer)
inline constexpr bool kFindsRaces = true;
#else
inline constexpr bool kFindsRaces = false;
#endif

#if defined(__SANITIZE_ADDRESS__) || ROBOCACHE_HAS(address_sanitizer)
inline constexpr bool kSanitized = true;
#else
inline constexpr bool kSanitized = kFindsRaces;
#endif

#undef ROBOCACHE_HAS

// Trials that look for wrong values: a tenth under a sanitizer, which looks for other things.
template <class Count>
constexpr Count trials(Count count) {
  return kSanitized ? count / 10 : count;
}

// Trials of damage, which make memory wrong if anything does: a tenth where only races are looked for.
template <class Count>
constexpr Count damages(Count count) {
  return kFindsRaces ? count / 10 : count;
}

// The step through all places of a file that are damaged one after the other; no multiple of a byte's bits.
inline constexpr int kDamageStep = kFindsRaces ? 7 : 1;

}  // namespace robocache::test
