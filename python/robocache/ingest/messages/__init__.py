"""Reads recorded messages. `mcap`, `rosbag1` and `rosbag2` read files as parts of a bag (`bags`); `passes` reads each bag in two passes.
`ros`, `json` and `protobuf` decode many messages at once (`batches`). `streams` turns a topic into streams, with the help of `known`
(the facts about topics), `clocks`, `cameras` (images) and `points` (clouds). `subjects` divides topics before that."""
