// What is in memory because somebody uses it: made once, shared by all of this process, gone with its last user.
#pragma once

#include <memory>
#include <mutex>
#include <vector>

namespace robocache {

// Any number of threads may use one.
template <class Resident>
class Living {
 public:
  // The first that `is` the one looked for, or what `make` gives.
  template <class Is, class Make>
  std::shared_ptr<const Resident> get(const Is& is, const Make& make) {
    const std::lock_guard<std::mutex> lock(mutex_);
    std::shared_ptr<const Resident> resident = find(is);
    if (resident == nullptr) {
      resident = make();
      all_.push_back(resident);
    }
    return resident;
  }

  template <class Is>
  bool contains(const Is& is) {
    const std::lock_guard<std::mutex> lock(mutex_);
    return find(is) != nullptr;
  }

 private:
  template <class Is>
  std::shared_ptr<const Resident> find(const Is& is) {
    std::erase_if(all_, [](const auto& entry) { return entry.expired(); });
    for (const auto& entry : all_) {
      if (auto resident = entry.lock(); resident && is(*resident)) return resident;
    }
    return nullptr;
  }

  std::mutex mutex_;
  std::vector<std::weak_ptr<const Resident>> all_;
};

}  // namespace robocache
