"""Recorded messages. `mcap`, `rosbag1` and `rosbag2` read files into the parts of a bag (`bags`), and `passes` reads each bag twice.
`ros`, `json` and `protobuf` decode many messages at once (`batches`). `streams` makes streams of a topic, with the facts that are
`known` of it, its `clocks`, its images (`cameras`) and its clouds (`points`)."""
