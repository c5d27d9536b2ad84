// Gives a finished cache its name. At every moment the name means nothing, the old cache or the new one, never a part.
#pragma once

#include <string>

namespace robocache::cache {

// Returns an absolute path with all links resolved, which stays right when the working directory changes. Throws
// ArgumentError if `path` is empty, FileError.
std::string absolute_path(const std::string& path);

// Whether `path` is a cache, complete or damaged.
bool is_cache(const std::string& path);

// Throws FileError if this absolute path lies inside a cache.
void check_outside_caches(const std::string& path);

// Throws FileError if a new cache cannot have this name: the path lies inside another cache, or something is there that
// is not to be overwritten or is no cache.
void check_target(const std::string& path, bool overwrite);

// Gives the finished cache `home` the name `path` and removes the cache that had it. Throws FileError; `path` then
// names what it did before.
void publish(const std::string& home, const std::string& path);

}  // namespace robocache::cache
