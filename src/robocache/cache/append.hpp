// Going on with a finished cache in place: it is the old one or the new one at every moment, by its manifest alone.
#pragma once

#include <map>
#include <string>

#include "robocache/cache/block_writer.hpp"
#include "robocache/cache/manifest.hpp"

namespace robocache::cache {

// The manifest of the cache `path`. Throws FileError where it cannot grow.
Manifest growing_manifest(const std::string& path);

// Gives kNewManifestFile the name of the manifest. Throws FileError, and then nothing has changed.
void replace_manifest(const std::string& path);

// Removes files that the manifest does not name but a cache's could be: of another generation, or of an append that did
// not end. Best effort: nobody looks at what stays.
void remove_leftovers(const std::string& path, const std::map<std::string, FileRecord>& named);

}  // namespace robocache::cache
