// Expects that a call is refused with given words.
#pragma once

#include <gtest/gtest.h>

#include <exception>
#include <string>

namespace robocache::test {

// Expects a Refusal whose text begins with `start` and contains `also`.
template <class Refusal, class Call>
void expect_refused(const Call& call, const std::string& start, const std::string& also = "") {
  try {
    call();
    ADD_FAILURE() << "accepted, expected: " << start;
  } catch (const Refusal& refusal) {
    const std::string text = refusal.what();
    EXPECT_TRUE(text.starts_with(start)) << text;
    EXPECT_NE(text.find(also), std::string::npos) << text;
  } catch (const std::exception& other) {
    ADD_FAILURE() << "another type: " << other.what();
  }
}

}  // namespace robocache::test
