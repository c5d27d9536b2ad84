#include "robocache/cache/manifest.hpp"

#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <string>
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
    Stream rows;
    rows.name = name;
    rows.dtype = ragged == Ragged::kText ? DType::kUInt8 : DType::kInt16;
    rows.shape = ragged == Ragged::kText ? std::vector<int64_t>{} : std::vector<int64_t>{4};
    rows.rows = 5;
    rows.ragged = ragged;
    rows.attributes_json = R"({"frame_id": "base", "bounds": [-1.5, {"z": null}]})";
    manifest.streams.push_back(rows);
    for (const char* file : {"time_ns", "values", "row_offsets", "blob_offsets"}) {
      manifest.files["streams/" + rows.name + "/" + file + ".npy"] = {8, {0x56}};
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

// parse_manifest on a copy of exactly these bytes, so that AddressSanitizer sees a look past their end.
Manifest parse(const std::string& text) {
  const auto copy = std::make_unique_for_overwrite<char[]>(text.size());
  std::memcpy(copy.get(), text.data(), text.size());
  return parse_manifest("m.json", {copy.get(), text.size()});
}

std::string refusal(const std::string& text) {
  return message_of<FileError>([&] { parse(text); });
}

// The manifest with something replaced and the checksum made anew: damage that only the other checks can find.
std::string altered(const std::string& from, const std::string& to) {
  std::string text = manifest_text(example());
  const size_t at = text.find(from);
  EXPECT_NE(at, std::string::npos) << from;
  text.replace(at, from.size(), to);
  text.resize(text.rfind("  \"crc32\""));
  return text + "  \"crc32\": \"" + crc32_text(crc32(text.data(), text.size())) + "\"\n}\n";
}

TEST(Manifest, RaggedRowsThatCannotBeAreRefused) {
  EXPECT_TRUE(
      contains(refusal(altered("\"array\"", "\"list\"")), "'cloud': ragged: expected 'array' or 'text', got 'list'"));
  EXPECT_TRUE(
      contains(refusal(altered("\"array\"", "\"text\"")), "'cloud': expected text as bytes, uint8 [], got int16 [4]"));
  EXPECT_TRUE(
      contains(refusal(altered("[4]", "[4, 0]")), "'cloud': expected elements of ragged rows that have features"));
  EXPECT_TRUE(contains(refusal(altered("[4]", "[4611686018427387904, 4]")), "a size within int64"));
  EXPECT_TRUE(
      contains(refusal(altered("\"ragged\": null", "\"ragged\": 1")), "'streams[0].ragged': expected a string"));
  EXPECT_TRUE(
      contains(refusal(altered("\"ragged\": null", "\"rugged\": null")), "'streams[0].ragged': expected a value"));
  EXPECT_TRUE(contains(refusal(altered("\"attributes\": {}", "\"attributes\": [1]")),
                       "'streams[0].attributes': expected an object"));
  EXPECT_TRUE(
      contains(refusal(altered("\"attributes\"", "\"attribute\"")), "'streams[0].attributes': expected a value"));
  EXPECT_TRUE(contains(
      refusal(altered("\"frames\": null,\n      \"ragged\": null", "\"frames\": null,\n      \"ragged\": \"array\"")),
      "blob_offsets.npy': expected a value, got none"));
  std::string text = manifest_text(example());
  const size_t camera = text.find("\"ragged\": null", text.find("\"png\""));
  text.replace(camera, 14, "\"ragged\": \"text\"");
  text.resize(text.rfind("  \"crc32\""));
  text += "  \"crc32\": \"" + crc32_text(crc32(text.data(), text.size())) + "\"\n}\n";
  EXPECT_TRUE(contains(refusal(text), "'cam': expected frames or ragged rows, got both"));
}

TEST(Manifest, FramesThatCannotBeAreRefused) {
  EXPECT_TRUE(
      contains(refusal(altered("\"png\"", "\"gif\"")), "'cam': codec: expected 'raw', 'jpeg' or 'png', got 'gif'"));
  EXPECT_TRUE(contains(refusal(altered("\"png\"", "\"jpeg\"")), "'cam': expected jpeg frames of uint8, got uint16"));
  EXPECT_TRUE(contains(refusal(altered("uint16", "float32")), "expected png frames of uint8 or uint16, got float32"));
  EXPECT_TRUE(contains(refusal(altered("\"depth\"", "\"cmyk\"")), "color_space: expected 'rgb', 'gray' or 'depth'"));
  EXPECT_TRUE(
      contains(refusal(altered("\"depth\"", "\"gray\"")), "expected unit_m of depth alone, got it of gray frames"));
  EXPECT_TRUE(
      contains(refusal(altered("\"depth\"", "\"rgb\"")), "rgb frames of shape [height, width, 3], got [480, 640, 1]"));
  for (const char* shape : {"[480, 640]", "[480, 640, 1, 1]", "[0, 640, 1]", "[480, 640, 4]", "[]"}) {
    EXPECT_TRUE(contains(refusal(altered("[480, 640, 1]", shape)),
                         std::string("expected depth frames of shape [height, width, 1], got ") + shape));
  }
  EXPECT_TRUE(
      contains(refusal(altered("[480, 640, 1]", "[4611686018427387904, 1, 1]")), "a size of frames within int64"));
  EXPECT_TRUE(contains(refusal(altered("0.001", "0")), "expected a unit_m above 0, got 0.0"));
  EXPECT_TRUE(
      contains(refusal(altered("0.001", "\"mm\"")), "'streams[1].frames.unit_m': expected a number, got string"));
  EXPECT_TRUE(contains(refusal(altered("600.5", "1e999")), "m.json: "));
  EXPECT_TRUE(
      contains(refusal(altered(", 600.5", "")), "expected 9 finite numbers of intrinsics, row by row, or none"));
  EXPECT_TRUE(contains(refusal(altered("{\"size\": [480, 640], \"fit\": \"pad\"}", "3")),
                       "frames.resized': expected an object"));
  EXPECT_TRUE(
      contains(refusal(altered("\"frames\": null", "\"frame\": null")), "'streams[0].frames': expected a value"));
  EXPECT_TRUE(
      contains(refusal(altered("blob_offsets.npy", "blobs.npy")), "blob_offsets.npy': expected a value, got none"));
}

TEST(Manifest, ALaterGenerationHasSmallFilesOfItsOwn) {
  EXPECT_EQ(of_generation("row_offsets.npy", 0), "row_offsets.npy");
  EXPECT_EQ(of_generation("row_offsets.npy", 12), "row_offsets.12.npy");
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

TEST(Manifest, ValuesThatCannotBeAreRefusedWithTheirPlace) {
  EXPECT_TRUE(contains(refusal(altered("\"rows\": 7", "\"rows\": -7")),
                       "m.json: in 'streams[0].rows': expected an integer of at least 0, got -7"));
  EXPECT_TRUE(contains(refusal(altered("\"rows\": 7", "\"rows\": 7.0")), "'streams[0].rows'"));
  EXPECT_TRUE(contains(refusal(altered("\"rows\": 7", "\"rows\": 18446744073709551615")), "'streams[0].rows'"));
  EXPECT_TRUE(contains(refusal(altered("\"rows\": 7", "\"row\": 7")), "expected a value, got none"));
  EXPECT_TRUE(contains(refusal(altered("\"episodes\": 2", "\"episodes\": null")), "'episodes'"));
  EXPECT_TRUE(contains(refusal(altered("bfloat16", "float13")), "dtype: expected one of bool"));
  EXPECT_TRUE(contains(refusal(altered("nominal", "sundial")), "clock: expected 'recorded' or 'nominal'"));
  EXPECT_TRUE(contains(refusal(altered("[2, 3]", "[2, 4]")), "'streams[0].names': expected none or 8, got 6"));
  EXPECT_TRUE(contains(refusal(altered("[2, 3]", "[4611686018427387904, 3]")), "a size within int64"));
  EXPECT_TRUE(contains(refusal(altered("[2, 3]", "[1, 1, 1, 1, 1, 1, 2, 3]")), "expected at most 7 lengths, got 8"));
  EXPECT_TRUE(contains(refusal(altered("\"00000012\"", "")), "expected 1 checksums, got 0"));
  EXPECT_TRUE(contains(refusal(altered("\"00000012\"", "\"0000001\"")), "expected 8 hexadecimal digits"));
  EXPECT_TRUE(contains(refusal(altered("\"00000012\"", "\"0000001G\"")), "expected 8 hexadecimal digits"));
  EXPECT_TRUE(contains(refusal(altered("stats.npy\"", "statistics.npy\"")), "stats.npy': expected a value, got none"));
  EXPECT_TRUE(contains(refusal(altered("\"block_bytes\": 1048576", "\"block_bytes\": 0")), "'block_bytes'"));
  EXPECT_TRUE(contains(refusal(altered("list<string>", "list<bool>")),
                       "'episode_columns[3].type': expected the type of a column, got 'list<bool>'"));
  EXPECT_TRUE(contains(refusal(altered("task \\\"x\\\"", "end_ns")), "one column of each name, got two 'end_ns'"));
  EXPECT_TRUE(contains(refusal(altered("start_ns", "start")), "'episode_columns': expected episode_index, start_ns"));
  EXPECT_TRUE(contains(refusal(altered("\"provenance\": {", "\"provenance\": 3, \"x\": {")), "expected an object"));
  EXPECT_TRUE(contains(refusal(altered("\"episodes\": 2", "\"episodes\": ?")), "m.json: at byte "));
  EXPECT_TRUE(contains(refusal(altered("[1, 2.5", std::string(3000, '[') + "[1, 2.5")), "m.json: "));
}

TEST(Manifest, StreamDirectoriesHoldAnyName) {
  EXPECT_EQ(stream_directory("joint.position-1_A"), "streams/joint.position-1_A");
  EXPECT_EQ(stream_directory("arm/left"), "streams/arm%2Fleft");
  EXPECT_EQ(stream_directory(".."), "streams/%2E.");
  EXPECT_EQ(stream_directory("%2E"), "streams/%252E");
  EXPECT_EQ(stream_directory("\xc3\xa4 \n"), "streams/%C3%A4%20%0A");
}

TEST(EpisodeMetadata, LinesBeginWithTheColumnsEveryEpisodeHas) {
  EXPECT_EQ(episode_line(3, std::pair<int64_t, int64_t>{-5, 7}, R"({"a": 1})"),
            "{\"episode_index\": 3, \"start_ns\": -5, \"end_ns\": 7, \"a\": 1}\n");
  EXPECT_EQ(episode_line(0, std::nullopt, "{}"), "{\"episode_index\": 0, \"start_ns\": null, \"end_ns\": null}\n");
  EXPECT_EQ(check_metadata("{\"a\":\n\"b\\nc\"}", {}).json, R"({"a": "b\nc"})");
}

}  // namespace
}  // namespace robocache::cache
