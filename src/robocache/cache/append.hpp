// Appends to a finished cache in place. The manifest alone decides whether readers see the old cache or the new one.
#pragma once

#include <map>
#include <string>

#include "robocache/cache/block_writer.hpp"
#include "robocache/cache/manifest.hpp"

namespace robocache::cache {

// Returns the manifest of the cache `path`. Throws FileError if the cache cannot grow.
Manifest appendable_manifest(const std::string& path);

// Renames kNewManifestFile to kManifestFile. If it throws FileError, nothing has changed.
void replace_manifest(const std::string& path);

// Removes cache files that this manifest does not name: those of another generation or of an interrupted append.
// Ignores errors, because no reader opens such a file.
void remove_leftovers(const std::string& path, const std::map<std::string, FileRecord>& named);

}  // namespace robocache::cache
