// The numbers of a test's trials. Builds without a sanitizer are fast and run them all.
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

// Trials that look for wrong values: a tenth under a sanitizer, which looks for other faults.
template <class Count>
constexpr Count trials(Count count) {
  return kSanitized ? count / 10 : count;
}

// Trials with damaged data, which would corrupt memory if anything does: a tenth in builds that look only for races.
template <class Count>
constexpr Count damaged_trials(Count count) {
  return kFindsRaces ? count / 10 : count;
}

// The step from one damaged byte of a file to the next; no multiple of a byte's bits.
inline constexpr int kDamageStep = kFindsRaces ? 7 : 1;

}  // namespace robocache::test
