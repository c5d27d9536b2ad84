// Reads the header of an .npy file. The first byte chooses the expected dtype and shape.
#include <span>
#include <string>
#include <vector>

#include "robocache/cache/npy.hpp"
#include "tests/fuzz/fuzz.hpp"

namespace {

struct Expected {
  robocache::DType dtype;
  std::vector<int64_t> shape;
};

const std::vector<Expected>& expected_headers() {
  using robocache::DType;
  static const std::vector<Expected> headers = {{DType::kInt64, {3}},
                                                {DType::kFloat32, {2, 7}},
                                                {DType::kBFloat16, {1, 2, 3}},
                                                {DType::kUInt8, {0}},
                                                {DType::kFloat64, {int64_t{1} << 62, int64_t{1} << 62, 0}}};
  return headers;
}

}  // namespace

std::vector<std::string> seeds() {
  std::vector<std::string> inputs;
  for (const Expected& expected : expected_headers()) {
    const std::vector<int64_t> rest(expected.shape.begin() + 1, expected.shape.end());
    int64_t bytes = robocache::dtype_size(expected.dtype);
    for (const int64_t extent : expected.shape) bytes = extent > 100 ? 0 : bytes * extent;
    inputs.push_back(std::string(1, static_cast<char>(inputs.size())) +
                     robocache::cache::npy_header(expected.dtype, expected.shape[0], rest) +
                     std::string(static_cast<size_t>(bytes), '\0'));
  }
  return inputs;
}

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  const Expected& expected = expected_headers()[data[0] % expected_headers().size()];
  const std::span<const std::byte> file = std::as_bytes(std::span(data + 1, size - 1));
  for (const bool grows : {false, true}) {
    robocache::fuzz::refusal([&] {
      const int64_t begin = robocache::cache::check_npy("f", file, expected.dtype, expected.shape, grows);
      robocache::fuzz::expect(begin % robocache::cache::kNpyAlignment == 0 && begin <= std::ssize(file),
                              "elements that begin at " + std::to_string(begin));
    });
  }
  return 0;
}
