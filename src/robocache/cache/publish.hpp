// Gives a finished cache its name. At every moment, the name refers to nothing, the old cache or the new one, never to
// part of a cache.
#pragma once

#include <string>

namespace robocache::cache {

// Returns an absolute path with all links resolved, which stays correct when the working directory changes. Throws
// ArgumentError if `path` is empty, or FileError.
std::string absolute_path(const std::string& path);

// Whether `path` is a cache, even a damaged one.
bool is_cache(const std::string& path);

// Throws FileError if this absolute path lies inside a cache.
void check_outside_caches(const std::string& path);

// Throws FileError if a new cache cannot have this name: the path lies inside another cache, or something exists there
// that is not a cache or must not be overwritten.
void check_target(const std::string& path, bool overwrite);

// Gives the finished cache `home` the name `path`, and removes the cache that had this name. If it throws FileError,
// `path` names the same cache as before.
void publish(const std::string& home, const std::string& path);

}  // namespace robocache::cache
