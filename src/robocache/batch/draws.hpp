// Draws the samples of a loader. It holds the anchors of the sources, the mixture that draws them, and the ticks that
// are the moments of goals.
//
//   const Draws draws(options, streams);
//   const Mixture mixture = draws.mixture_at(position, Device{});
//   const Draw draw = mixture.at(position.samples);  // anchor draw.anchor of draws.parts()[draw.source]
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "robocache/align/moments.hpp"
#include "robocache/batch/fingerprint.hpp"
#include "robocache/batch/loader_streams.hpp"
#include "robocache/batch/options.hpp"
#include "robocache/core/device_tables.hpp"
#include "robocache/sample/anchors.hpp"
#include "robocache/sample/mixture.hpp"
#include "robocache/source/resident.hpp"

namespace robocache {

struct WeightChange;

// The position of a batch. A training run that saves it can continue with any batch size and any number of ranks.
struct BatchPosition {
  uint64_t seed = 0;
  int64_t epoch = 0;
  int64_t samples = 0;                    // that all ranks together drew before, in this epoch
  const WeightChange* weights = nullptr;  // the last change of weights, for this seed; null: none

  bool operator==(const BatchPosition&) const = default;
};

// New weights of the sources, from a position to the next change.
struct WeightChange {
  BatchPosition from;  // its `weights` is the previous change
  MixtureTables mixed;
  const MixtureSource* on_device = nullptr;  // the table of `mixed` on a CUDA device
};

// The tables that plans read, on the host or on the loader's device.
struct DrawTables {
  Mixture mixture{};                               // of the parts
  std::vector<AnchorIndex> parts;                  // the anchors of each part
  Mixture moment_mixture{};                        // over the ticks of all sources; only with goals
  std::vector<MomentSource> moments;               // the ticks of each source; only with goals
  const MomentSource* moments_of_parts = nullptr;  // for each part the ticks of its source; only with goals
};

// Immutable, except that weights can change. Any number of threads may use one.
class Draws {
 public:
  // Anchors that the mixture draws as one source: all anchors of a source, or a class of them with its own weight.
  struct Part {
    size_t source;
    Anchors anchors;
  };

  // The options, which are complete, and the streams must outlive this. Throws ArgumentError for a source without anchors, for
  // invalid weights, and with drop_last for a batch_size above the number of samples.
  Draws(const LoaderOptions& options, const LoaderStreams& streams);
  Draws(const Draws&) = delete;
  Draws& operator=(const Draws&) = delete;

  const DrawTables& on_host() const { return on_host_; }
  const DrawTables& on_device() const { return options_.device.is_cuda() ? on_device_ : on_host_; }

  // Returns the mixture of the position's epoch, with the weights at the position. `device` is the host or the loader's device.
  // Throws ArgumentError if the weights changed for another seed.
  Mixture mixture_at(const BatchPosition& position, Device device) const;

  // See Loader::change_weights().
  const WeightChange* change_weights(const BatchPosition& from,
                                     const std::vector<std::pair<std::string, double>>& weights) const;

  // The parts, in the order of the sources.
  const std::vector<Part>& parts() const { return parts_; }
  bool has_weighted_parts() const;

  const Anchors& anchors_of(size_t source) const { return sources_[source].anchors; }
  int64_t anchors() const { return on_host_.mixture.anchors; }  // in all sources
  int64_t anchors_before_filter() const;
  bool is_weighted() const { return on_host_.mixture.weighted; }
  int64_t samples() const;  // drawn by all ranks together in an epoch

  // Returns the ticks around which a request has its windows: the source's anchors, or every tick for a goal.
  AnchorIndex around(size_t source, const StreamRequest& request) const;

  std::string fingerprint() const { return fingerprint_.text(); }

 private:
  struct Source {
    std::shared_ptr<const ResidentClock> ticks;  // null with anchor_hz
    Anchors anchors;
    int64_t before_filter = 0;           // the number of anchors before `filter`
    std::optional<MomentTicks> moments;  // only with goals
    std::vector<double> part_weights;    // empty: the source is one part
  };

  void add_parts(size_t source);
  std::vector<int64_t> anchors_of_parts() const;
  std::map<std::string, size_t> sources_by_name() const;
  AnchorEdges edges_of(size_t source) const;
  Anchors ticks_of(size_t source, const std::vector<int64_t>& episodes, const AnchorEdges& edges) const;
  Anchors filtered(size_t source, const Anchors& all_ticks) const;
  MomentTicks moment_ticks_of(size_t source) const;
  int64_t fewest_anchors();
  void mix();
  void add_order(const MixtureTables& mixed, const MixtureOptions& mixing);
  void add_moments(DrawTables& draw_tables, DeviceTables& tables, bool on_device) const;
  [[noreturn]] void refuse_without_anchors(size_t source, int64_t rank) const;

  const LoaderOptions& options_;
  const LoaderStreams& streams_;
  DeviceTables host_tables_{Device{}};
  DeviceTables device_tables_;
  std::vector<Source> sources_;
  std::vector<Part> parts_;
  DrawTables on_host_;
  DrawTables on_device_;  // only for a CUDA device
  OrderFingerprint fingerprint_;
  mutable std::mutex changes_mutex_;  // guards the two members below
  mutable DeviceTables change_tables_;
  mutable std::vector<std::unique_ptr<const WeightChange>> changes_;
};

}  // namespace robocache
