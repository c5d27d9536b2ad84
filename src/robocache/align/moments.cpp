#include "robocache/align/moments.hpp"

#include <algorithm>
#include <bit>
#include <map>
#include <utility>

#include "robocache/core/backend.hpp"
#include "robocache/core/thread_pool.hpp"

namespace robocache {

MomentTicks::MomentTicks(Anchors ticks, std::span<const int64_t> tasks)
    : ticks_(std::move(ticks)), entry_of_(tasks.size(), -1) {
  std::map<int64_t, std::vector<int32_t>> by_task;
  const auto entries = std::ssize(ticks_.table());
  // The key of an episode without a task, which has no peers: a negative number that no other episode has.
  int64_t no_task = -1;
  for (int64_t entry = 0; entry < entries; ++entry) {
    const auto episode = static_cast<size_t>(ticks_.table()[static_cast<size_t>(entry)].episode);
    entry_of_[episode] = static_cast<int32_t>(entry);
    by_task[tasks[episode] < 0 ? no_task-- : tasks[episode]].push_back(static_cast<int32_t>(entry));
  }
  peers_.resize(static_cast<size_t>(entries));
  for (const auto& [task, members] : by_task) {
    const auto begin = static_cast<int32_t>(members_.size());
    const auto count = static_cast<int32_t>(members.size());
    for (int32_t position = 0; position < count; ++position) {
      peers_[static_cast<size_t>(members[static_cast<size_t>(position)])] = {begin, count, position};
    }
    members_.insert(members_.end(), members.begin(), members.end());
  }
  ticks_.add_none();
}

MomentSource MomentTicks::on_host() const {
  return {.ticks = index(),
          .first_tick = 0,
          .entry_of = entry_of_.data(),
          .peers = peers_.data(),
          .members = members_.data()};
}

MomentSource MomentTicks::copied(DeviceTables& tables, const int64_t* tick_ns) const {
  MomentSource source = on_host();
  source.ticks.table = tables.put(ticks_.table());
  source.ticks.first_of = tables.put(ticks_.first_of());
  source.ticks.tick_ns = tick_ns;
  source.entry_of = tables.put(entry_of_);
  source.peers = tables.put(peers_);
  source.members = tables.put(members_);
  return source;
}

MomentBatch moment_batch(const MomentRule& rule) {
  MomentBatch batch{};
  batch.kind = rule.kind;
  batch.low_ns = rule.low_ns;
  batch.high_ns = rule.high_ns;
  batch.powers[0] = rule.discount;
  for (int i = 1; i < kMomentPowers; ++i) batch.powers[i] = batch.powers[i - 1] * batch.powers[i - 1];
  for (const uint64_t part : {static_cast<uint64_t>(rule.kind) + 1, static_cast<uint64_t>(rule.low_ns),
                              static_cast<uint64_t>(rule.high_ns), std::bit_cast<uint64_t>(rule.discount)}) {
    batch.key = mix_bits((batch.key ^ part) + 0x9e3779b97f4a7c15u);
  }
  return batch;
}

void draw_moments(const MomentBatch& batch, Device device, CudaStream stream) {
  if (batch.batch.count == 0) return;
  if (device.is_cuda()) {
    using Launch = int(const MomentBatch*, int32_t device, void* stream);
    static Launch* const launch = reinterpret_cast<Launch*>(cuda_symbol("robocache_cuda_draw_moments"));
    check_cuda(launch(&batch, device.index, stream.handle), "draw_moments");
    return;
  }
  parallel_for(batch.batch.count, 256, [&](int64_t begin, int64_t end) {
    for (int64_t sample = begin; sample < end; ++sample) draw_moment(batch, sample);
  });
}

}  // namespace robocache
