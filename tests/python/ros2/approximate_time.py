"""Pairs messages by the rule of ApproximateTimeSynchronizer, which rclpy's programs take from message_filters.

Its source is src/message_filters/__init__.py of https://github.com/ros2/message_filters; there is no wheel of it. Here stamps are
numbers, which costs less than rclpy's Time and Duration.
"""


class ApproximateTime:
    """Calls `deliver(first, second)` for a pair of messages of two topics.

    A topic keeps its `queue_size` messages with the latest stamps. A message that arrives and is kept is paired at once with the
    other topic's message of the closest stamp, if that is less than `slop_ns` away; of two as close with the one that came
    first. Both then leave. A message without a partner waits to be the partner of one that comes.
    """

    def __init__(self, queue_size, slop_ns, deliver):
        self.queue_size, self.slop_ns, self.deliver = queue_size, slop_ns, deliver
        self.queues = {}, {}  # messages by stamp

    def add(self, topic, stamp, message):
        """Takes a message of topic 0 or 1."""
        own, other = self.queues[topic], self.queues[1 - topic]
        own[stamp] = message
        if len(own) > self.queue_size:
            del own[min(own)]
        closest = min(other, key=lambda candidate: abs(candidate - stamp), default=None)
        if stamp not in own or closest is None or abs(closest - stamp) >= self.slop_ns:
            return
        pair = own.pop(stamp), other.pop(closest)
        self.deliver(*(pair if topic == 0 else reversed(pair)))
