// Runs code in a forked child.
#pragma once

#include <sys/wait.h>
#include <unistd.h>

namespace robocache::test {

// Returns the result of `body` in the child; -1 if the child does not end by itself. ThreadSanitizer does not follow
// threads that start after a fork, so its builds leave such tests out.
template <class Body>
int in_a_child(const Body& body) {
  const pid_t child = fork();
  if (child == 0) {
    alarm(60);  // a child that hangs must not hang the test
    _exit(body());
  }
  int status = -1;
  waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

}  // namespace robocache::test
