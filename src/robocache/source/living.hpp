// Objects that the users in this process share: each is made once, and destroyed with its last user.
//
//   static Living<Resident> all;
//   const auto resident =
//       all.get([&](const Resident& resident) { return resident.matches(key); }, [&] { return make(key); });
#pragma once

#include <memory>
#include <mutex>
#include <vector>

namespace robocache {

// Any number of threads may use one Living.
template <class Resident>
class Living {
 public:
  // Returns the first object for which `matches` is true, else the result of `make`.
  template <class Matches, class Make>
  std::shared_ptr<const Resident> get(const Matches& matches, const Make& make) {
    const std::lock_guard<std::mutex> lock(mutex_);
    std::shared_ptr<const Resident> resident = find(matches);
    if (resident == nullptr) {
      resident = make();
      all_.push_back(resident);
    }
    return resident;
  }

  template <class Matches>
  bool contains(const Matches& matches) {
    const std::lock_guard<std::mutex> lock(mutex_);
    return find(matches) != nullptr;
  }

 private:
  template <class Matches>
  std::shared_ptr<const Resident> find(const Matches& matches) {
    std::erase_if(all_, [](const auto& entry) { return entry.expired(); });
    for (const auto& entry : all_) {
      if (auto resident = entry.lock(); resident && matches(*resident)) return resident;
    }
    return nullptr;
  }

  std::mutex mutex_;
  std::vector<std::weak_ptr<const Resident>> all_;
};

}  // namespace robocache
