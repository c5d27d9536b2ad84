#include "robocache/cache/manifest.hpp"

#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <string>
#include <tuple>
#include <vector>

#include "robocache/cache/crc32.hpp"
#include "robocache/core/error.hpp"
#include "tests/cpp/cache/files.hpp"
#include "tests/cpp/trials.hpp"

namespace robocache::cache {
namespace {

using test::contains;
using test::message_of;

Manifest example() {
  Manifest manifest;
  manifest.episodes = 2;
  manifest.episode_columns = automatic_columns();
  manifest.episode_columns.push_back({"task \"x\"", "list<string>"});
  Stream stream;
  stream.name = "arm/joint \xc3\xa4";
  stream.dtype = DType::kBFloat16;
  stream.shape = {2, 3};
  stream.rows = 7;
  stream.clock = Clock::kNominal;
  stream.names = {"a", "b", "c", "d", "e", "f"};
  stream.findings.period_ns = 33333333.5;
  stream.findings.constant_features = {0, 5};
  manifest.streams.push_back(stream);
  Stream camera;
  camera.name = "cam";
  camera.dtype = DType::kUInt16;
  camera.shape = {480, 640, 1};
  camera.rows = 9;
  camera.frames = FrameFormat{.codec = Codec::kPng,
                              .color_space = ColorSpace::kDepth,
                              .unit_m = 0.001,
                              .intrinsics = {600, 0, 320, 0, 600.5, 240, 0, 0, 1},
                              .resized_json = R"({"size": [480, 640], "fit": "pad"})"};
  manifest.streams.push_back(camera);
  for (const auto& [name, ragged] : {std::pair{"cloud", Ragged::kArray}, {"text", Ragged::kText}}) {
    Stream ragged_stream;
    ragged_stream.name = name;
    ragged_stream.dtype = ragged == Ragged::kText ? DType::kUInt8 : DType::kInt16;
    ragged_stream.shape = ragged == Ragged::kText ? std::vector<int64_t>{} : std::vector<int64_t>{4};
    ragged_stream.rows = 5;
    ragged_stream.ragged = ragged;
    ragged_stream.attributes_json = R"({"frame_id": "base", "bounds": [-1.5, {"z": null}]})";
    manifest.streams.push_back(ragged_stream);
    for (const char* file : {"time_ns", "values", "row_offsets", "blob_offsets"}) {
      manifest.files["streams/" + ragged_stream.name + "/" + file + ".npy"] = {8, {0x56}};
    }
  }
  manifest.files["episodes.jsonl"] = {10, {0x12}};
  for (const char* file : {"time_ns", "values", "row_offsets", "stats"}) {
    manifest.files["streams/arm%2Fjoint%20%C3%A4/" + std::string(file) + ".npy"] = {kBlockBytes + 1, {1, 0xffffffff}};
  }
  for (const char* file : {"time_ns", "values", "row_offsets", "blob_offsets"}) {
    manifest.files["streams/cam/" + std::string(file) + ".npy"] = {7, {0x34}};
  }
  manifest.provenance_json = R"({"source": {"nested": [1, 2.5, null, "ü"]}})";
  return manifest;
}

// Calls parse_manifest on a copy of exactly these bytes, so that AddressSanitizer sees a read past the end.
Manifest parse(const std::string& text) {
  const auto copy = std::make_unique_for_overwrite<char[]>(text.size());
  std::memcpy(copy.get(), text.data(), text.size());
  return parse_manifest("m.json", {copy.get(), text.size()});
}

std::string refusal(const std::string& text) {
  return message_of<FileError>([&] { parse(text); });
}

// Returns the manifest with a part replaced and a new checksum, so that only the other checks can find the damage.
std::string altered(const std::string& from, const std::string& to) {
  std::string text = manifest_text(example());
  const size_t begin = text.find(from);
  EXPECT_NE(begin, std::string::npos) << from;
  text.replace(begin, from.size(), to);
  text.resize(text.rfind("  \"crc32\""));
  return text + "  \"crc32\": \"" + crc32_text(crc32(text.data(), text.size())) + "\"\n}\n";
}

TEST(Manifest, ALaterGenerationHasItsOwnSmallFiles) {
  EXPECT_EQ(file_in_generation("row_offsets.npy", 0), "row_offsets.npy");
  EXPECT_EQ(file_in_generation("row_offsets.npy", 12), "row_offsets.12.npy");
  Manifest manifest = example();
  manifest.generation = 3;
  EXPECT_TRUE(contains(refusal(manifest_text(manifest)), "'files.episodes.3.jsonl': expected a value, got none"));
  const auto rename = [&](const std::string& from, const std::string& to) {
    auto node = manifest.files.extract(from);
    node.key() = to;
    manifest.files.insert(std::move(node));
  };
  rename("episodes.jsonl", "episodes.3.jsonl");
  rename("streams/arm%2Fjoint%20%C3%A4/row_offsets.npy", "streams/arm%2Fjoint%20%C3%A4/row_offsets.3.npy");
  rename("streams/arm%2Fjoint%20%C3%A4/stats.npy", "streams/arm%2Fjoint%20%C3%A4/stats.3.npy");
  for (const std::string stream : {"cam", "cloud", "text"}) {
    rename("streams/" + stream + "/row_offsets.npy", "streams/" + stream + "/row_offsets.3.npy");
  }
  EXPECT_EQ(parse(manifest_text(manifest)).generation, 3);
}

TEST(Manifest, EveryTruncationAndEveryFlippedByteIsRefused) {
  const std::string text = manifest_text(example());
  for (size_t length = 0; length < text.size(); length += test::kDamageStep) {
    EXPECT_TRUE(contains(refusal(text.substr(0, length)), "m.json: at byte ")) << length;
  }
  for (size_t i = 0; i < text.size(); i += test::kDamageStep) {
    std::string damaged = text;
    damaged[i] = static_cast<char>(damaged[i] ^ 0x10);
    EXPECT_TRUE(contains(refusal(damaged), "m.json: at byte ")) << i;
  }
  EXPECT_TRUE(contains(refusal(text + "\n"), "damaged"));
}

TEST(Manifest, ImpossibleValuesAreRefusedByTheirField) {
  const std::tuple<const char*, const char*, const char*> cases[] = {
      {R"("rows": 7)", R"("rows": -7)", "'streams[0].rows'"},
      {R"("rows": 7)", R"("rows": 7.0)", "'streams[0].rows'"},
      {R"("rows": 7)", R"("rows": 18446744073709551615)", "'streams[0].rows'"},
      {R"("rows": 7)", R"("row": 7)", "'streams[0].rows'"},
      {"[2, 3]", "[2, 4]", "'streams[0].names'"},
      {"[2, 3]", "[4611686018427387904, 3]", "a size within int64"},
      {"[2, 3]", "[1, 1, 1, 1, 1, 1, 2, 3]", "at most 7 lengths"},
      {"bfloat16", "float13", "dtype: "},
      {"nominal", "sundial", "clock: "},
      {R"("episodes": 2)", R"("episodes": null)", "'episodes'"},
      {R"("episodes": 2)", R"("episodes": ?)", "m.json: at byte "},
      {R"("00000012")", "", "checksums"},
      {R"("00000012")", R"("0000001")", "hexadecimal"},
      {R"("00000012")", R"("0000001G")", "hexadecimal"},
      {R"(stats.npy")", R"(statistics.npy")", "stats.npy'"},
      {R"("block_bytes": 1048576)", R"("block_bytes": 0)", "'block_bytes'"},
      {"list<string>", "list<bool>", "'episode_columns[3].type'"},
      {R"(task \"x\")", "end_ns", "'end_ns'"},
      {"start_ns", "start", "'episode_columns'"},
      {R"("provenance": {)", R"("provenance": 3, "x": {)", "expected an object"},
      // Frames.
      {R"("png")", R"("gif")", "'cam': codec: "},
      {R"("png")", R"("jpeg")", "'cam': "},
      {"uint16", "float32", "'cam': "},
      {R"("depth")", R"("cmyk")", "color_space: "},
      {R"("depth")", R"("gray")", "unit_m"},
      {R"("depth")", R"("rgb")", "'cam': "},
      {"[480, 640, 1]", "[480, 640]", "'cam': "},
      {"[480, 640, 1]", "[480, 640, 1, 1]", "'cam': "},
      {"[480, 640, 1]", "[0, 640, 1]", "'cam': "},
      {"[480, 640, 1]", "[480, 640, 4]", "'cam': "},
      {"[480, 640, 1]", "[]", "'cam': "},
      {"[480, 640, 1]", "[4611686018427387904, 1, 1]", "a size of frames within int64"},
      {"0.001", "0", "unit_m"},
      {"0.001", R"("mm")", "'streams[1].frames.unit_m'"},
      {"600.5", "1e999", "m.json: "},
      {", 600.5", "", "intrinsics"},
      {R"({"size": [480, 640], "fit": "pad"})", "3", "frames.resized'"},
      {R"("frames": null)", R"("frame": null)", "'streams[0].frames'"},
      {"blob_offsets.npy", "blobs.npy", "blob_offsets.npy'"},
      // Ragged rows.
      {R"("array")", R"("list")", "'cloud': ragged: "},
      {R"("array")", R"("text")", "'cloud': "},
      {"[4]", "[4, 0]", "'cloud': "},
      {"[4]", "[4611686018427387904, 4]", "a size within int64"},
      {R"("ragged": null)", R"("ragged": 1)", "'streams[0].ragged'"},
      {R"("ragged": null)", R"("rugged": null)", "'streams[0].ragged'"},
      {R"("attributes": {})", R"("attributes": [1])", "'streams[0].attributes'"},
      {R"("attributes")", R"("attribute")", "'streams[0].attributes'"},
      {"\"frames\": null,\n      \"ragged\": null", "\"frames\": null,\n      \"ragged\": \"array\"",
       "blob_offsets.npy'"},
      {"\"fit\": \"pad\"}\n      },\n      \"ragged\": null", "\"fit\": \"pad\"}\n      },\n      \"ragged\": \"text\"",
       "'cam': "},
  };
  for (const auto& [from, to, field] : cases) {
    const std::string message = refusal(altered(from, to));
    EXPECT_TRUE(contains(message, "m.json: ") && contains(message, field)) << to << ": " << message;
  }
  EXPECT_TRUE(contains(refusal(altered("[1, 2.5", std::string(3000, '[') + "[1, 2.5")), "m.json: "));
}

TEST(Manifest, StreamDirectoriesHoldAnyName) {
  EXPECT_EQ(stream_directory("joint.position-1_A"), "streams/joint.position-1_A");
  EXPECT_EQ(stream_directory("arm/left"), "streams/arm%2Fleft");
  EXPECT_EQ(stream_directory(".."), "streams/%2E.");
  EXPECT_EQ(stream_directory("%2E"), "streams/%252E");
  EXPECT_EQ(stream_directory("\xc3\xa4 \n"), "streams/%C3%A4%20%0A");
}

TEST(EpisodeMetadata, LinesBeginWithTheColumnsOfEveryEpisode) {
  EXPECT_EQ(episode_line(3, std::pair<int64_t, int64_t>{-5, 7}, R"({"a": 1})"),
            "{\"episode_index\": 3, \"start_ns\": -5, \"end_ns\": 7, \"a\": 1}\n");
  EXPECT_EQ(episode_line(0, std::nullopt, "{}"), "{\"episode_index\": 0, \"start_ns\": null, \"end_ns\": null}\n");
  EXPECT_EQ(check_metadata("{\"a\":\n\"b\\nc\"}", {}).json, R"({"a": "b\nc"})");
}

}  // namespace
}  // namespace robocache::cache
