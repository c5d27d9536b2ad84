// Divides the anchors of a source into classes that are drawn by weight: all anchors of a class equally often.
//
//   const AnchorClasses classes = classes_by_weight(weights);
//   const std::vector<Anchors> parts = anchors.split(classes.of, std::ssize(classes.weights));
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace robocache {

// More weights than these are put together where they lie closest.
inline constexpr int64_t kMostWeightClasses = 512;

struct AnchorClasses {
  std::vector<int32_t> of;      // the class of each anchor; -1: it is not drawn
  std::vector<double> weights;  // of all anchors of a class together
};

// Anchors of one weight are a class. Above kMostWeightClasses they are put together by the leading bits of their weights, as many
// bits as that many classes hold; such a class has its exact share. Weights are finite and not negative; 0 is not drawn.
AnchorClasses classes_by_weight(std::span<const double> weights);

// Anchors of one number are a class, and all classes weigh the same.
AnchorClasses classes_by_number(std::span<const double> numbers);

}  // namespace robocache
