# librobocache.so and librobocache_cuda.so must agree on the signatures of the launchers, and on every header that both
# include: these define the structs that pass between them.

# robocache_backend_abi(ROOT HASH FILES SOURCE...) sets HASH to the hash of this interface, and FILES to the files that
# it was read from. SOURCE... are the plugin's sources. It follows their includes below ROOT: *.cuh files belong to the
# plugin alone, all other headers are shared.
function(robocache_backend_abi root hash_variable files_variable)
  set(files ${ARGN})
  set(shared "")
  set(boundary "")
  set(next 0)
  list(LENGTH files count)
  while(next LESS count)  # the loop appends to files
    list(GET files ${next} path)
    math(EXPR next "${next} + 1")
    file(READ ${path} text)
    string(REGEX MATCHALL "extern \"C\"[^{;]*" launchers "${text}")
    list(APPEND boundary ${launchers})
    if(path MATCHES "\\.hpp$")
      list(APPEND shared ${path})
    endif()
    string(REGEX MATCHALL "#[ \t]*include[ \t]*[<\"]robocache/[^>\"]+" includes "${text}")
    list(TRANSFORM includes REPLACE ".*[<\"]" "${root}/")
    list(APPEND files ${includes})
    list(REMOVE_DUPLICATES files)
    list(LENGTH files count)
  endwhile()
  foreach(path IN LISTS shared)
    file(SHA256 ${path} hash)
    file(RELATIVE_PATH name ${root} ${path})
    list(APPEND boundary "${name} ${hash}")
  endforeach()
  list(SORT boundary)
  string(SHA256 hash "${boundary}")
  string(SUBSTRING ${hash} 0 16 hash)
  set(${hash_variable} ${hash} PARENT_SCOPE)
  set(${files_variable} ${files} PARENT_SCOPE)
endfunction()
