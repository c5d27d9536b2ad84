// Appends to a finished cache in place. At every moment the manifest alone makes it the old cache or the new one.
#pragma once

#include <map>
#include <string>

#include "robocache/cache/block_writer.hpp"
#include "robocache/cache/manifest.hpp"

namespace robocache::cache {

// The manifest of the cache `path`. Throws FileError where it cannot grow.
Manifest growing_manifest(const std::string& path);

// Renames kNewManifestFile to the manifest's name. Throws FileError, and then nothing has changed.
void replace_manifest(const std::string& path);

// Removes files that a cache could have but that this manifest does not name: those of another generation, or of an
// append that was interrupted. Ignores errors, because no reader looks at a file that stays.
void remove_leftovers(const std::string& path, const std::map<std::string, FileRecord>& named);

}  // namespace robocache::cache
