#pragma once

namespace robocache::test {

// The plan of a message with a stamp, a frame of reference, joints with positions, an array, records with texts, and a
// number of another dtype.
inline constexpr const char* kPlan = R"({
  "fields": [
    {"path": "sec", "kind": "number", "dtype": "int32", "use": "seconds"},
    {"path": "nanosec", "kind": "number", "dtype": "uint32", "use": "nanoseconds"},
    {"path": "frame_id", "kind": "text", "use": "frame"},
    {"path": "name", "kind": "texts", "use": "joints"},
    {"path": "position", "kind": "numbers", "dtype": "float64", "to": [[0, -1]]},
    {"path": "covariance", "kind": "number", "dtype": "float32", "count": 3, "to": [[1, 0]], "absent": [[2, 1]]},
    {"path": "notes", "kind": "records",
     "fields": [{"path": "text", "kind": "texts"}, {"path": "k", "kind": "numbers", "dtype": "int16"}]},
    {"path": "mode", "kind": "number", "dtype": "uint8", "to": [[2, 0], [2, 1]]}],
  "rows": [{"names": ["a", "b"]}, {"names": []}, {"names": []}],
  "encodings": {}, "quality": 95})";

}  // namespace robocache::test
