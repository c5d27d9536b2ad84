// Reads manifest.json, whose checksum is corrected first, and the metadata of an episode.
#include <string>
#include <string_view>
#include <vector>

#include "robocache/cache/crc32.hpp"
#include "robocache/cache/manifest.hpp"
#include "tests/fuzz/fuzz.hpp"

namespace robocache::cache {
namespace {

constexpr std::string_view kChecksum = "  \"crc32\": \"";

Manifest example() {
  Manifest manifest;
  manifest.episodes = 2;
  manifest.episode_columns = automatic_columns();
  manifest.episode_columns.push_back({"task \"x\"", "list<string>"});
  manifest.files["episodes.jsonl"] = {10, {0x12}};
  const auto add = [&](Stream stream, std::vector<const char*> files) {
    for (const char* file : files) {
      manifest.files[stream_directory(stream.name) + "/" + file] = {kBlockBytes + 1, {1, 0xffffffff}};
    }
    manifest.streams.push_back(std::move(stream));
  };
  Stream arm;
  arm.name = "arm/joint \xc3\xa4";
  arm.shape = {2};
  arm.rows = 7;
  arm.names = {"a", "b"};
  arm.findings.period_ns = 33333333.5;
  arm.findings.constant_features = {0};
  add(arm, {kTimeFile, kValuesFile, kRowOffsetsFile, kStatsFile});
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
  add(camera, {kTimeFile, kValuesFile, kRowOffsetsFile, kBlobOffsetsFile});
  Stream text;
  text.name = "text";
  text.dtype = DType::kUInt8;
  text.rows = 5;
  text.ragged = Ragged::kText;
  text.attributes_json = R"({"frame_id": "base", "bounds": [-1.5, {"z": null}]})";
  add(text, {kTimeFile, kValuesFile, kRowOffsetsFile, kBlobOffsetsFile});
  manifest.provenance_json = R"({"source": {"nested": [1, 2.5, null]}})";
  return manifest;
}

void check(std::string text) {
  const size_t begin = text.rfind(kChecksum);
  if (begin != std::string::npos) {
    text.resize(begin);
    text += std::string(kChecksum) + crc32_text(crc32(text.data(), text.size())) + "\"\n}\n";
  }
  std::string written;
  const std::string refused = fuzz::refusal([&] { written = manifest_text(parse_manifest("m", text)); });
  if (refused.empty()) {
    const std::string written_again = manifest_text(parse_manifest("m", written));
    fuzz::expect(written_again == written,
                 "a manifest that is read and written twice changes:\n" + written + written_again);
  } else {
    fuzz::expect(refused.starts_with("m: "), "a refusal that does not name the file: " + refused);
  }
}

void check_episode(std::string_view text) {
  fuzz::refusal([&] {
    const EpisodeMetadata first = check_metadata(text, automatic_columns());
    const std::string read_again = check_metadata(first.json, first.columns).json;
    fuzz::expect(read_again == first.json, "metadata that is read twice changes: " + first.json + read_again);
    fuzz::expect(episode_line(0, std::nullopt, first.json).ends_with("\n"), "a line without its end");
  });
}

}  // namespace
}  // namespace robocache::cache

std::vector<std::string> seeds() {
  return {robocache::cache::manifest_text(robocache::cache::example()),
          R"({"task": "pick", "success": true, "n": 3, "x": 0.5, "labels": ["a", "b"], "none": null})"};
}

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string text(reinterpret_cast<const char*>(data), size);
  robocache::cache::check(text);
  robocache::cache::check_episode(text);
  return 0;
}
