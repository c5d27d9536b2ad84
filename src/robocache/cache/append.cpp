#include "robocache/cache/append.hpp"

#include <unistd.h>

#include <cstdio>
#include <filesystem>
#include <limits>
#include <string_view>
#include <system_error>
#include <vector>

#include "robocache/cache/file.hpp"
#include "robocache/core/error.hpp"

namespace robocache::cache {
namespace {

namespace fs = std::filesystem;

// Whether `file` is the name that `base`, such as "stats.npy", has in some generation: "stats.npy" or "stats.2.npy".
bool is_generation_of(std::string_view base, std::string_view file) {
  const std::string_view extension = base.substr(base.rfind('.'));
  base.remove_suffix(extension.size());
  if (!file.starts_with(base) || !file.ends_with(extension) || file.size() < base.size() + extension.size())
    return false;
  const std::string_view generation = file.substr(base.size(), file.size() - base.size() - extension.size());
  return generation.empty() || (generation.size() > 1 && generation[0] == '.' &&
                                generation.find_first_not_of("0123456789", 1) == std::string_view::npos);
}

}  // namespace

Manifest appendable_manifest(const std::string& path) {
  const std::string file = path + "/" + kManifestFile;
  const MappedFile text(open_directory(path), kManifestFile, file);
  Manifest manifest = parse_manifest(file, text.text());
  if (manifest.version < kFirstAppendableVersion) {
    throw FileError(file, ": expected a cache of schema version ", kFirstAppendableVersion,
                    " or later to append to, got ", manifest.version,
                    ", which cannot grow: write it anew from its source");
  }
  if (manifest.generation == std::numeric_limits<int64_t>::max()) {
    throw FileError(file, ": in 'generation': expected one that another can follow, got ", manifest.generation);
  }
  return manifest;
}

void replace_manifest(const std::string& path) {
  const std::string name = path + "/" + kManifestFile;
  if (::rename((path + "/" + kNewManifestFile).c_str(), name.c_str()) != 0) {
    refuse_errno(name, "renaming the new manifest");
  }
}

void remove_leftovers(const std::string& path, const std::map<std::string, FileRecord>& named) {
  const auto add_names = [&](const std::string& directory, const auto& is_ours, std::vector<std::string>& names) {
    std::error_code error;
    fs::directory_iterator entries(path + "/" + directory, error);
    for (; !error && entries != fs::directory_iterator(); entries.increment(error)) {
      const std::string name = entries->path().filename().string();
      if (is_ours(name)) names.push_back(directory + name);
    }
  };
  const auto is_in_cache = [](const std::string& name) {
    return name == kNewManifestFile || is_generation_of(kEpisodesFile, name);
  };
  const auto is_in_stream = [](const std::string& name) {
    return name == kTimeFile || name == kValuesFile || name == kBlobOffsetsFile ||
           is_generation_of(kRowOffsetsFile, name) || is_generation_of(kStatsFile, name);
  };
  std::vector<std::string> files;
  std::vector<std::string> directories;  // of streams
  add_names("", is_in_cache, files);
  add_names(std::string(kStreamsDirectory) + "/", [](const std::string&) { return true; }, directories);
  for (const std::string& directory : directories) add_names(directory + "/", is_in_stream, files);
  for (const std::string& file : files) {
    if (!named.contains(file)) ::unlink((path + "/" + file).c_str());
  }
  for (const std::string& directory : directories) ::rmdir((path + "/" + directory).c_str());  // removes the empty ones
}

}  // namespace robocache::cache
