"""Tests the rule beside which bench/ros2_sets.py measures: cases worked out by hand, and a search over all pairs."""

import numpy as np
import pytest
from approximate_time import ApproximateTime


def pairs_of(arrivals, queue_size, slop_ns):
    """Returns the pairs of stamps, in the order of delivery. Messages are their stamps."""
    pairs = []
    synchronizer = ApproximateTime(queue_size, slop_ns, lambda first, second: pairs.append((first, second)))
    for topic, stamp in arrivals:
        synchronizer.add(topic, stamp, stamp)
    return pairs


JOINTS = [(0, stamp) for stamp in range(0, 100, 2)]


@pytest.mark.parametrize(
    ("arrivals", "queue_size", "pairs"),
    [
        ([(0, 10), (1, 12)], 10, [(10, 12)]),
        ([(1, 12), (0, 10)], 10, [(10, 12)]),
        ([(0, 10), (1, 15)], 10, []),  # a slop away
        ([(0, 10), (0, 12), (1, 11)], 10, [(10, 11)]),  # as close: the first
        ([(0, 12), (0, 10), (1, 11)], 10, [(12, 11)]),
        ([(0, 10), (0, 13), (1, 12)], 10, [(13, 12)]),
        ([(0, 10), (1, 12), (0, 12)], 10, [(10, 12)]),  # at once, although a closer one comes
        ([(0, 10), (1, 12), (1, 11)], 10, [(10, 12)]),  # a message is in one pair
        ([(0, 10), (0, 5), (1, 5)], 1, []),  # the later stamp is kept, not the later message
        ([*JOINTS, (1, 90)], 10, [(90, 90)]),
        ([*JOINTS, (1, 70)], 10, []),  # ten joints reach 18 back
        ([*JOINTS, (1, 70)], 100, [(70, 70)]),
    ],
)
def test_pairs(arrivals, queue_size, pairs):
    assert pairs_of(arrivals, queue_size, 5) == pairs


def searched_pairs(arrivals, queue_size, slop_ns):
    """Returns the same pairs, but builds the queues anew from all earlier messages at each arrival."""
    pairs, left = [], {}  # the arrival at which a message left in a pair

    def queue(topic, now):
        kept = []
        for arrival, (its_topic, stamp) in enumerate(arrivals[: now + 1]):
            if its_topic == topic:
                kept = sorted([*kept, (stamp, arrival)])[-queue_size:]
            kept = [message for message in kept if left.get(message[1], now + 1) > arrival]
        return kept

    for now, (topic, stamp) in enumerate(arrivals):
        others = [(abs(other - stamp), arrival, other) for other, arrival in queue(1 - topic, now)]
        near = [other for other in others if other[0] < slop_ns]
        if near and (stamp, now) in queue(topic, now):
            _, arrival, other = min(near)
            pairs.append((stamp, other) if topic == 0 else (other, stamp))
            left[arrival] = left[now] = now
    return pairs


@pytest.mark.parametrize("seed", range(200))
def test_pairs_equal_a_search(seed):
    rng = np.random.default_rng(seed)
    count, queue_size, slop_ns = rng.integers(1, [40, 6, 8])
    stamps = {topic: iter(rng.permutation(60).tolist()) for topic in (0, 1)}  # a stamp comes once a topic
    arrivals = [(topic, next(stamps[topic])) for topic in rng.integers(0, 2, count).tolist()]
    assert pairs_of(arrivals, queue_size, slop_ns) == searched_pairs(arrivals, queue_size, slop_ns)
