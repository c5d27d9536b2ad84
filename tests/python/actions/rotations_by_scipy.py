"""Rotations and poses in every representation, by scipy."""

import math

import numpy as np
from scipy.spatial.transform import Rotation


def by_scipy(rotation, name):
    """Returns N rotations as the numbers [N, n] of a representation."""
    m = rotation.as_matrix()
    if name == "matrix":
        return m.reshape(-1, 9)
    if name == "rot6d_rows":
        return np.concatenate([m[:, 0, :], m[:, 1, :]], -1)
    if name == "rot6d_columns":
        return np.concatenate([m[:, :, 0], m[:, :, 1]], -1)
    if name == "rot6d_interleaved":
        return np.stack([m[:, 0, 0], m[:, 0, 1], m[:, 1, 0], m[:, 1, 1], m[:, 2, 0], m[:, 2, 1]], -1)
    if name == "rotvec":
        return rotation.as_rotvec()
    if name.startswith("euler_"):
        return rotation.as_euler(name.removeprefix("euler_"))
    q = rotation.as_quat(canonical=True)
    return q if name == "quat_xyzw" else q[:, [3, 0, 1, 2]]


def as_rotation(x, name):
    """Returns the rotations of the numbers [N, n] of a representation; 6D is read by Gram-Schmidt."""
    if name == "matrix":
        return Rotation.from_matrix(x.reshape(-1, 3, 3))
    if name.startswith("rot6d"):
        a, b = (x[:, 0::2], x[:, 1::2]) if name == "rot6d_interleaved" else (x[:, :3], x[:, 3:])
        a = a / np.linalg.norm(a, axis=-1, keepdims=True)
        b = b - (a * b).sum(-1, keepdims=True) * a
        b = b / np.linalg.norm(b, axis=-1, keepdims=True)
        return Rotation.from_matrix(np.stack([a, b, np.cross(a, b)], -2 if name == "rot6d_rows" else -1))
    if name == "rotvec":
        return Rotation.from_rotvec(x)
    if name.startswith("euler_"):
        return Rotation.from_euler(name.removeprefix("euler_"), x)
    return Rotation.from_quat(x if name == "quat_xyzw" else x[:, [1, 2, 3, 0]])


def matrices(pose, rotation):
    """Returns matrices [..., 4, 4] from poses [..., 3 + n]."""
    pose = np.asarray(pose, np.float64)
    result = np.zeros((*pose.shape[:-1], 4, 4))
    rotations = as_rotation(pose[..., 3:].reshape(-1, pose.shape[-1] - 3), rotation).as_matrix()
    result[..., :3, :3] = rotations.reshape(*pose.shape[:-1], 3, 3)
    result[..., :3, 3], result[..., 3, 3] = pose[..., :3], 1
    return result


def poses(matrix, rotation):
    """Returns poses [..., 3 + n] from matrices [..., 4, 4]."""
    rotations = by_scipy(Rotation.from_matrix(matrix[..., :3, :3].reshape(-1, 3, 3)), rotation)
    return np.concatenate([matrix[..., :3, 3], rotations.reshape(*matrix.shape[:-2], -1)], -1)


def random_poses(rng, shape, rotation):
    rotations = by_scipy(Rotation.random(math.prod(shape), rng=rng), rotation)
    return np.concatenate([rng.standard_normal((*shape, 3)), rotations.reshape(*shape, -1)], -1)
