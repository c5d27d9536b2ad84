"""Plans the expert's episodes: draws waypoints, and computes the arms' joints at each tick between them.

A gripper's yaw follows the waist, so no wrist joint has to turn sideways. Then a pose has one solution in closed form, no wrist comes
near a singularity, and equal episodes have equal commands.
"""

import numpy as np

# The arms' dimensions, in metres.
BASE_X, BASE_Y = 0.469, 0.5  # the right arm's base; that of the left arm is at -BASE_X
SHOULDER_Z = 0.079 + 0.04805
UPPER, UPPER_ANGLE = np.hypot(0.05955, 0.3), np.arctan2(0.3, 0.05955)
FOREARM = 0.3
HAND = 0.069744 + 0.135  # from the wrist to the point between the fingers


def solve(side, xyz, pitch, roll):
    """Returns the joints [n, 6] with which an arm's fingertips are at `xyz` [n, 3] and point down by `pitch`.

    side: -1 for the left arm, 1 for the right.
    """
    x, y, z = np.asarray(xyz).T
    x, y = (x + BASE_X, y - BASE_Y) if side < 0 else (BASE_X - x, BASE_Y - y)
    waist = np.arctan2(y, x)
    reach = np.hypot(x, y) - HAND * np.cos(pitch)
    height = z - SHOULDER_Z + HAND * np.sin(pitch)
    distance = np.hypot(reach, height)
    bend = np.arccos(np.clip((UPPER**2 + distance**2 - FOREARM**2) / (2 * UPPER * distance), -1, 1))
    upper = np.arctan2(height, reach) + bend
    forearm = np.arctan2(height - UPPER * np.sin(upper), reach - UPPER * np.cos(upper))
    shoulder = UPPER_ANGLE - upper
    elbow = -forearm - shoulder
    return np.stack([waist, shoulder, elbow, 0 * waist, pitch - shoulder - elbow, roll + 0 * waist], axis=1)


def forward(side, joints):
    """Returns the position and the pitch of the fingertips with these joints [6]; the roll of the forearm is ignored."""
    waist, shoulder, elbow, _, wrist, _ = joints
    pitch = shoulder + elbow + wrist
    upper = UPPER_ANGLE - shoulder
    reach = UPPER * np.cos(upper) + FOREARM * np.cos(shoulder + elbow) + HAND * np.cos(pitch)
    z = SHOULDER_Z + UPPER * np.sin(upper) - FOREARM * np.sin(shoulder + elbow) - HAND * np.sin(pitch)
    x, y = reach * np.cos(waist), reach * np.sin(waist)
    return np.array([x - BASE_X, y + BASE_Y, z] if side < 0 else [BASE_X - x, BASE_Y - y, z]), pitch


TICKS = 400  # the length of an episode
DOWN = 1.05  # the right gripper's pitch
ROLL = np.pi / 2  # the left gripper's roll, with which its fingers are above and below the cube
LEFT_GRASP = np.array([0.0, 0.0, -0.01])  # where the left fingers grasp the cube, relative to the right fingers


def plan(start, cube, rng):
    """Returns commands [TICKS, 14] that hand the cube over. `rng` draws where and when the arms meet.

    The expert first moves down beside the cube, and corrects its position in the last 8 cm, as people do. So the demonstrations show
    how to correct an error.
    """
    aim_error = rng.normal(0, 0.01, 2).clip(-0.02, 0.02)
    position_error = rng.normal(0, 0.003, 2)
    meet = np.array([0.0, 0.5, 0.25]) + rng.uniform(-0.03, 0.03, 3)
    above = cube + np.array([*aim_error, rng.uniform(0.07, 0.11)])
    cube = cube + np.array([*position_error, 0.0])
    before = meet + np.array([-rng.uniform(0.09, 0.13), 0.0, rng.uniform(-0.02, 0.02)])
    beside = meet + np.array([0.12, 0.0, 0.03])
    grasp = meet + LEFT_GRASP
    away = grasp - np.array([0.1, 0.0, 0.0])
    pace = rng.uniform(0.92, 1.08)
    # Each waypoint is a tick, the fingertips' position, pitch, roll, and the gripper.
    right = [
        (60, above, DOWN, 0, 1),
        (100, cube, DOWN, 0, 1),
        (125, cube, DOWN, 0, 0),
        (185, meet, DOWN, 0, 0),
        (275, meet, DOWN, 0, 0),
        (290, meet, DOWN, 0, 1),
        (325, beside, DOWN, 0, 1),
    ]
    left = [
        (120, before, 0, ROLL, 1),
        (195, before, 0, ROLL, 1),
        (235, grasp, 0, ROLL, 1),
        (265, grasp, 0, ROLL, 0),
        (325, grasp, 0, ROLL, 0),
        (350, away, 0, ROLL, 0),
    ]
    return np.concatenate([_follow(-1, start[:7], left, pace), _follow(1, start[7:], right, pace)], axis=1)


def _follow(side, start, waypoints, pace):
    """Returns the commands [TICKS, 7] of an arm that moves from its start [7] through waypoints, and slows down at each."""
    xyz, pitch = forward(side, start[:6])
    points = np.array(
        [
            (0, *xyz, pitch, start[5], start[6]),
            *((tick * pace, *position, *rest) for tick, position, *rest in waypoints),
        ],
        float,
    )
    ticks = np.arange(1, TICKS + 1)
    leg = np.clip(np.searchsorted(points[:, 0], ticks) - 1, 0, len(points) - 2)
    begin, end = points[leg, 0], points[leg + 1, 0]
    share = np.clip((ticks - begin) / (end - begin), 0, 1)[:, None]
    share = share**2 * (3 - 2 * share)
    pose = points[leg, 1:] + share * (points[leg + 1, 1:] - points[leg, 1:])
    joints = solve(side, pose[:, :3], pose[:, 3], pose[:, 4])
    # At the start the forearm is rolled a little, but solve() never rolls it. The difference disappears gradually on the first leg.
    joints += (start[:6] - solve(side, xyz[None], pitch, start[5])) * np.where(leg == 0, 1 - share[:, 0], 0)[:, None]
    return np.concatenate([joints, pose[:, 5:]], axis=1)
