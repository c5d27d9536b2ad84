#include "robocache/cache/npy.hpp"

#include <algorithm>
#include <array>
#include <cctype>

#include "robocache/cache/file.hpp"
#include "robocache/core/error.hpp"

namespace robocache::cache {
namespace {

constexpr std::string_view kMagic("\x93NUMPY", 6);
constexpr size_t kVersion1Prefix = kMagic.size() + 2 + 2;  // magic, version, length of the dictionary
constexpr size_t kMostDigits = 20;                         // of an int64, with its sign

// Returns a shape as Python writes a tuple: "(12, 3)", "(12,)".
std::string tuple_text(std::span<const int64_t> shape) {
  std::string text = "(";
  for (size_t d = 0; d < shape.size(); ++d) text += (d == 0 ? "" : ", ") + std::to_string(shape[d]);
  return text + (shape.size() == 1 ? ",)" : ")");
}

std::string printable(std::string_view bytes) {
  std::string text(bytes.substr(0, 40));
  std::ranges::replace_if(text, [](unsigned char c) { return std::isprint(c) == 0; }, '?');
  return text;
}

std::string quoted(std::string_view bytes) { return "'" + printable(bytes) + "'"; }

// A value of a header's dictionary as it is written, and its offset in the file.
struct Value {
  std::string_view text;
  int64_t offset = 0;
};

// Reads the dictionary literal of a header, which has exactly three keys in any order.
class HeaderParser {
 public:
  HeaderParser(const std::string& path, std::string_view file, size_t begin, size_t end)
      : path_(path), text_(file.substr(0, end)), offset_(begin) {
    expect('{');
    while (!take('}')) {
      const Value key = value();
      Value* const entry = key.text == "'descr'"           ? &descr
                           : key.text == "'fortran_order'" ? &fortran_order
                           : key.text == "'shape'"         ? &shape
                                                           : nullptr;
      if (entry == nullptr || !entry->text.empty()) {
        refuse_bytes(path_, key.offset, "one each of 'descr', 'fortran_order' and 'shape'", quoted(key.text));
      }
      expect(':');
      *entry = value();
      if (!take(',')) {
        expect('}');
        break;
      }
    }
    skip_space();
    if (offset_ != text_.size()) refuse("spaces and a line end after the dictionary", quoted(text_.substr(offset_)));
    if (descr.text.empty() || fortran_order.text.empty() || shape.text.empty()) {
      refuse("'descr', 'fortran_order' and 'shape'", "fewer keys");
    }
  }

  Value descr, fortran_order, shape;

 private:
  [[noreturn]] void refuse(std::string_view expected, std::string_view got) const {
    refuse_bytes(path_, static_cast<int64_t>(offset_), expected, got);
  }

  void skip_space() {
    while (offset_ < text_.size() && (text_[offset_] == ' ' || text_[offset_] == '\n')) ++offset_;
  }

  bool take(char c) {
    skip_space();
    if (offset_ >= text_.size() || text_[offset_] != c) return false;
    ++offset_;
    return true;
  }

  void expect(char c) {
    if (take(c)) return;
    refuse(quoted(std::string_view(&c, 1)), offset_ < text_.size() ? quoted(text_.substr(offset_, 1)) : "the end");
  }

  // Reads 'text', (a tuple) or a word.
  Value value() {
    skip_space();
    const std::string_view rest = text_.substr(offset_);
    const std::string_view terminators = rest.starts_with('\'') ? "'" : rest.starts_with('(') ? ")" : ",:} \n";
    const bool is_word = terminators.size() > 1;
    const size_t end = rest.find_first_of(terminators, is_word ? 0 : 1);
    if (end == std::string_view::npos || (is_word && end == 0))
      refuse("a value and its end", quoted(rest.substr(0, 1)));
    const Value result{rest.substr(0, is_word ? end : end + 1), static_cast<int64_t>(offset_)};
    offset_ += result.text.size();
    return result;
  }

  const std::string& path_;
  std::string_view text_;
  size_t offset_;
};

// Whether a tuple is written as tuple_text() writes it, but for spaces and a comma at its end. If the file `grows`, the first
// number may be any other.
bool is_tuple(std::string_view written, std::span<const int64_t> shape, bool grows) {
  const auto compact = [&](std::string text) {
    std::erase(text, ' ');
    if (text.ends_with(",)")) text.erase(text.size() - 2, 1);
    const size_t end = text.find_first_not_of("0123456789", 1);
    return grows && end > 1 ? text.replace(1, end - 1, "any") : text;
  };
  return compact(std::string(written)) == compact(tuple_text(shape));
}

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
      kVersion1Prefix + dictionary.size() - std::to_string(rows).size() + kMostDigits + 1;  // and the line end
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

  const HeaderParser header(path, text, prefix, begin);
  const std::string descr = "'" + std::string(npy_descr(dtype)) + "'";
  if (header.descr.text != descr) refuse_bytes(path, header.descr.offset, descr, printable(header.descr.text));
  if (header.fortran_order.text != "False") {
    refuse_bytes(path, header.fortran_order.offset, "fortran_order False", printable(header.fortran_order.text));
  }
  if (!is_tuple(header.shape.text, shape, grows)) {
    refuse_bytes(path, header.shape.offset, "shape " + tuple_text(shape), printable(header.shape.text));
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
  bool is_empty = false;
  for (const int64_t factor : factors) {
    if (factor < 0) throw FileError(path, ": expected lengths of at least 0, got ", factor);
    if (factor == 0) {
      is_empty = true;
    } else if (__builtin_mul_overflow(product, factor, &product)) {
      if (!std::ranges::count(factors, 0)) throw FileError(path, ": expected a size within int64, got more");
      product = 1;
    }
  }
  return is_empty ? 0 : product;
}

}  // namespace robocache::cache
