// What a cache's name names: nothing, the old cache or the new one, whole at every moment.
#pragma once

#include <string>

namespace robocache::cache {

// As it stays when the working directory changes, links followed. Throws ArgumentError where it is empty, FileError.
std::string absolute_path(const std::string& path);

// Whether a cache is there, whole or damaged.
bool is_cache(const std::string& path);

// Throws FileError where this absolute path lies in a cache, whose files are its own.
void check_place(const std::string& path);

// Throws FileError where a new cache cannot have this name: it lies in another; something is there, and with `overwrite` it
// is no cache.
void check_target(const std::string& path, bool overwrite);

// Gives the finished cache `home` the name `path`; the cache that had it goes. Throws FileError, and then what `path` named
// is there.
void publish(const std::string& home, const std::string& path);

}  // namespace robocache::cache
