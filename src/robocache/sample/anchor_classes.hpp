// Divides the anchors of a source into classes that are drawn by weight. Within a class all anchors are drawn equally
// often.
//
//   const AnchorClasses classes = classes_by_weight(weights);
//   const std::vector<Anchors> parts = anchors.split(classes.class_of, std::ssize(classes.weights));
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace robocache {

// With more distinct weights than this, weights close to each other share a class.
inline constexpr int64_t kMostWeightClasses = 512;

struct AnchorClasses {
  std::vector<int32_t> class_of;  // the class of each anchor; -1: it is not drawn
  std::vector<double> weights;    // the sum of the weights of each class
};

// Anchors with equal weights form a class. With more than kMostWeightClasses distinct weights, those with the same
// leading bits form a class; as many bits are compared as give at most that many classes. A class keeps the exact sum
// of its weights. Weights are finite and not negative; an anchor of weight 0 is not drawn.
AnchorClasses classes_by_weight(std::span<const double> weights);

// Anchors with equal numbers form a class. All classes have the same weight.
AnchorClasses classes_by_number(std::span<const double> numbers);

}  // namespace robocache
