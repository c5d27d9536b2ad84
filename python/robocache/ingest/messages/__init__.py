"""Recorded messages: `mcap`, `rosbag1` and `rosbag2` read files into the parts of a bag (`bags`), `passes` goes over each twice,
`ros`, `json` and `protobuf` decode many messages at once (`batches`). `streams` says what becomes of a topic, with what is
`known` of it: its time in `clocks`, images in `cameras`, clouds in `points`."""
