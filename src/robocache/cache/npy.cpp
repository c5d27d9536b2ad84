#include "robocache/cache/npy.hpp"

#include <algorithm>
#include <array>
#include <cctype>
#include <limits>
#include <optional>

#include "robocache/cache/file.hpp"
#include "robocache/core/error.hpp"

namespace robocache::cache {
namespace {

constexpr std::string_view kMagic("\x93NUMPY", 6);
constexpr size_t kVersion1Prefix = kMagic.size() + 2 + 2;  // magic, version, length of the dictionary
constexpr size_t kLongestInt64 = 20;

// Returns a shape as Python writes a tuple: "(12, 3)", "(12,)".
std::string tuple_text(std::span<const int64_t> shape) {
  std::string text = "(";
  for (size_t d = 0; d < shape.size(); ++d) text += (d == 0 ? "" : ", ") + std::to_string(shape[d]);
  return text + (shape.size() == 1 ? ",)" : ")");
}

std::string quoted(std::string_view bytes) {
  std::string text = "'";
  for (const char c : bytes.substr(0, 40)) text += std::isprint(static_cast<unsigned char>(c)) != 0 ? c : '?';
  return text + "'";
}

// Reads the dictionary literal of a header, which has exactly three keys in any order.
class HeaderParser {
 public:
  HeaderParser(const std::string& path, std::string_view file, size_t begin, size_t end)
      : path_(path), text_(file.substr(0, end)), at_(begin) {}

  void parse() {
    expect('{');
    while (!take('}')) {
      const size_t key_at = at_;
      const std::string_view key = string();
      expect(':');
      if (key == "descr" && !descr_) {
        descr_at = skip_space();
        descr_ = string();
      } else if (key == "fortran_order" && !fortran_) {
        fortran_at = skip_space();
        fortran_ = boolean();
      } else if (key == "shape" && !shape_) {
        shape_at = skip_space();
        shape_ = tuple();
      } else {
        refuse(key_at, "one each of 'descr', 'fortran_order' and 'shape'", quoted(key));
      }
      if (!take(',')) {
        expect('}');
        break;
      }
    }
    skip_space();
    if (at_ != text_.size()) refuse(at_, "spaces and a line end after the dictionary", quoted(text_.substr(at_)));
    if (!descr_ || !fortran_ || !shape_) refuse(at_, "'descr', 'fortran_order' and 'shape'", "fewer keys");
  }

  std::string_view descr() const { return *descr_; }
  bool fortran_order() const { return *fortran_; }
  const std::vector<int64_t>& shape() const { return *shape_; }

  size_t descr_at = 0;
  size_t fortran_at = 0;
  size_t shape_at = 0;

 private:
  [[noreturn]] void refuse(size_t at, std::string_view expected, std::string_view got) const {
    refuse_bytes(path_, static_cast<int64_t>(at), expected, got);
  }

  size_t skip_space() {
    while (at_ < text_.size() && (text_[at_] == ' ' || text_[at_] == '\n')) ++at_;
    return at_;
  }

  bool take(char c) {
    skip_space();
    if (at_ >= text_.size() || text_[at_] != c) return false;
    ++at_;
    return true;
  }

  void expect(char c) {
    if (!take(c))
      refuse(at_, quoted(std::string_view(&c, 1)), at_ < text_.size() ? quoted(text_.substr(at_, 1)) : "the end");
  }

  std::string_view string() {
    expect('\'');
    const size_t end = text_.find('\'', at_);
    if (end == std::string_view::npos) refuse(at_, "a closing '", "none");
    const std::string_view value = text_.substr(at_, end - at_);
    at_ = end + 1;
    return value;
  }

  bool boolean() {
    for (const std::string_view word : {"True", "False"}) {
      if (text_.substr(at_, word.size()) == word) {
        at_ += word.size();
        return word == "True";
      }
    }
    refuse(at_, "True or False", quoted(text_.substr(at_, 5)));
  }

  std::vector<int64_t> tuple() {
    std::vector<int64_t> extents;
    expect('(');
    while (!take(')')) {
      extents.push_back(integer());
      if (!take(',')) {
        expect(')');
        break;
      }
    }
    return extents;
  }

  int64_t integer() {
    const size_t begin = skip_space();
    int64_t value = 0;
    for (; at_ < text_.size() && text_[at_] >= '0' && text_[at_] <= '9'; ++at_) {
      const int64_t digit = text_[at_] - '0';
      if (value > (std::numeric_limits<int64_t>::max() - digit) / 10) refuse(begin, "a length within int64", "more");
      value = value * 10 + digit;
    }
    if (at_ == begin) refuse(begin, "a length", quoted(text_.substr(begin, 1)));
    return value;
  }

  const std::string& path_;
  std::string_view text_;
  size_t at_;
  std::optional<std::string_view> descr_;
  std::optional<bool> fortran_;
  std::optional<std::vector<int64_t>> shape_;
};

}  // namespace

std::string_view npy_descr(DType dtype) {
  constexpr std::array<std::string_view, 13> kDescr{"|b1", "|i1", "|u1", "<i2", "<u2", "<i4", "<u4",
                                                    "<i8", "<u8", "<f2", "<V2", "<f4", "<f8"};
  return kDescr[static_cast<size_t>(dtype)];
}

std::string npy_header(DType dtype, int64_t rows, std::span<const int64_t> shape) {
  std::vector<int64_t> extents{rows};
  extents.insert(extents.end(), shape.begin(), shape.end());
  std::string dictionary = "{'descr': '" + std::string(npy_descr(dtype)) +
                           "', 'fortran_order': False, 'shape': " + tuple_text(extents) + ", }";
  const size_t longest =
      kVersion1Prefix + dictionary.size() - std::to_string(rows).size() + kLongestInt64 + 1;  // 1: the line end
  const size_t total = (longest + kNpyAlignment - 1) / kNpyAlignment * kNpyAlignment;
  const size_t length = total - kVersion1Prefix;
  dictionary.resize(length - 1, ' ');
  std::string header(kMagic);
  header += {'\x01', '\x00', static_cast<char>(length & 0xff), static_cast<char>(length >> 8)};
  return header + dictionary + '\n';
}

int64_t check_npy(const std::string& path, std::span<const std::byte> file, DType dtype, std::span<const int64_t> shape,
                  bool grows) {
  const std::string_view text(reinterpret_cast<const char*>(file.data()), file.size());
  if (text.substr(0, kMagic.size()) != kMagic) {
    refuse_bytes(path, 0, "the bytes \\x93NUMPY", quoted(text.substr(0, kMagic.size())));
  }
  if (text.size() < kVersion1Prefix + 2) refuse_bytes(path, static_cast<int64_t>(text.size()), "a header", "the end");
  const auto byte = [&](size_t i) { return static_cast<size_t>(static_cast<unsigned char>(text[i])); };
  const size_t major = byte(6);
  if (major < 1 || major > 3 || byte(7) != 0) {
    refuse_bytes(path, 6, ".npy format version 1.0, 2.0 or 3.0", std::to_string(major) + "." + std::to_string(byte(7)));
  }
  const size_t prefix = major == 1 ? kVersion1Prefix : kVersion1Prefix + 2;
  const size_t length = byte(8) | byte(9) << 8 | (major == 1 ? size_t{0} : byte(10) << 16 | byte(11) << 24);
  if (length > text.size() - prefix) {
    refuse_bytes(path, 8, "a header of at most " + std::to_string(text.size() - prefix) + " bytes",
                 std::to_string(length));
  }
  const size_t begin = prefix + length;
  if (begin % kNpyAlignment != 0) {
    refuse_bytes(path, 8, "elements at a multiple of 64 bytes", "byte " + std::to_string(begin));
  }

  HeaderParser header(path, text, prefix, begin);
  header.parse();
  if (header.descr() != npy_descr(dtype)) {
    refuse_bytes(path, static_cast<int64_t>(header.descr_at), "'" + std::string(npy_descr(dtype)) + "'",
                 quoted(header.descr()));
  }
  if (header.fortran_order()) {
    refuse_bytes(path, static_cast<int64_t>(header.fortran_at), "fortran_order False", "True");
  }
  std::vector<int64_t> found = header.shape();
  if (grows && !found.empty()) found[0] = shape[0];
  if (!std::ranges::equal(found, shape)) {
    refuse_bytes(path, static_cast<int64_t>(header.shape_at), "shape " + tuple_text(shape), tuple_text(header.shape()));
  }

  std::vector<int64_t> factors(shape.begin(), shape.end());
  factors.push_back(dtype_size(dtype));
  const int64_t data_bytes = checked_product(path, factors);
  if (data_bytes != static_cast<int64_t>(text.size() - begin)) {
    refuse_bytes(path, static_cast<int64_t>(text.size()), std::to_string(data_bytes) + " bytes of elements",
                 std::to_string(text.size() - begin));
  }
  return static_cast<int64_t>(begin);
}

int64_t checked_product(const std::string& path, std::span<const int64_t> factors) {
  // Zeros are checked last, because [2^62, 2^62, 0] is a valid, empty shape.
  int64_t product = 1;
  bool empty = false;
  for (const int64_t factor : factors) {
    if (factor < 0) throw FileError(path + ": expected lengths of at least 0, got " + std::to_string(factor));
    if (factor == 0) {
      empty = true;
    } else if (__builtin_mul_overflow(product, factor, &product)) {
      if (!std::ranges::count(factors, 0)) throw FileError(path + ": expected a size within int64, got more");
      product = 1;
    }
  }
  return empty ? 0 : product;
}

}  // namespace robocache::cache
