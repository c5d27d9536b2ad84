#include "robocache/cache/follower.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <exception>
#include <utility>

#include "robocache/cache/file.hpp"

namespace robocache::cache {
namespace {

constexpr int64_t kStepBytes = int64_t{4} << 20;

// Of what all followers may hold.
std::atomic<int64_t> memory_left{int64_t{64} << 20};

}  // namespace

Follower::Follower(std::string path, int64_t begin, DType dtype, int64_t features)
    : path_(std::move(path)),
      begin_(begin),
      dtype_(dtype),
      features_(features),
      row_bytes_(features * dtype_size(dtype)),
      step_rows_(row_bytes_ == 0 ? 0 : std::clamp(kStepBytes / row_bytes_, int64_t{1}, FirstPass::kRows)),
      is_over_(features == 0) {}

bool Follower::follow(int64_t end) noexcept {
  const int64_t step_bytes = step_rows_ * row_bytes_;
  if (is_over_ || end - end_of_seen() < step_bytes) return false;
  try {
    step();
  } catch (const std::exception&) {
    forget();
  }
  return !is_over_ && end - end_of_seen() >= step_bytes;
}

void Follower::step() {
  if (pass_ == nullptr) {
    const int64_t wanted = FirstPass::most_bytes(dtype_, features_) + step_rows_ * row_bytes_;
    memory_ = wanted;
    if (memory_left.fetch_sub(wanted) < wanted) return forget();
    pass_ = FirstPass::begin(dtype_, features_);
    rows_.resize(static_cast<size_t>(step_rows_ * row_bytes_));
  }
  const FileDescriptor file(::open(path_.c_str(), O_RDONLY | O_CLOEXEC));
  size_t filled = 0;
  while (filled < rows_.size()) {
    const ssize_t got =
        ::pread(file.get(), rows_.data() + filled, rows_.size() - filled, end_of_seen() + static_cast<int64_t>(filled));
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return forget();
    filled += static_cast<size_t>(got);
  }
  pass_->add(rows_.data(), step_rows_);
}

void Follower::cut(int64_t end) {
  if (end < end_of_seen()) forget();
}

std::unique_ptr<FirstPass> Follower::finish() {
  std::unique_ptr<FirstPass> pass = std::move(pass_);
  forget();
  return pass;
}

void Follower::forget() {
  is_over_ = true;
  pass_ = nullptr;
  rows_ = {};
  memory_left += std::exchange(memory_, 0);
}

}  // namespace robocache::cache
