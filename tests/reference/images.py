"""Transforms a frame by the definitions alone: exact fractions for geometry, float64 for colour."""

import colorsys
from fractions import Fraction

import numpy as np


def tent_weights(count, to):
    """Fractions [to, count]: the weight of each of `count` pixels in each of `to` pixels. The weights are a tent around the
    new pixel's centre; its half width is one old or one new pixel, whichever is larger."""
    scale = Fraction(count, to)
    width = max(scale, 1)
    rows = []
    for r in range(to):
        centre = (r + Fraction(1, 2)) * scale
        weights = [max(Fraction(0), 1 - abs(j + Fraction(1, 2) - centre) / width) for j in range(count)]
        rows.append([w / sum(weights) for w in weights])
    return np.array(rows, dtype=object).reshape(to, count)


def resized(frame, height, width):
    """[H, W, C] uint8 to [height, width, C]: the exact mean, rounded to nearest, ties to even."""
    rows, columns = tent_weights(frame.shape[0], height), tent_weights(frame.shape[1], width)
    exact = np.einsum("rh,hwc,sw->rsc", rows, frame.astype(object), columns, optimize="greedy")
    return np.array([round(x) for x in exact.ravel()], np.uint8).reshape(exact.shape)


def resized_nearest(frame, height, width):
    """[H, W, ...] to [height, width, ...]: the pixel that contains the new pixel's centre."""
    rows, columns = (
        [int((r + Fraction(1, 2)) * Fraction(count, to)) for r in range(to)]
        for count, to in zip(frame.shape, (height, width), strict=False)
    )
    return frame[rows][:, columns]


def letterboxed(frame, height, width):
    """openpi's resize_with_pad in exact fractions: (the box's first row, first column, height, width)."""
    ratio = max(Fraction(frame.shape[1], width), Fraction(frame.shape[0], height))
    is_inside = max(1, int(frame.shape[0] / ratio)), max(1, int(frame.shape[1] / ratio))
    return (height - is_inside[0]) // 2, (width - is_inside[1]) // 2, *is_inside


def luma(frame):
    """[..., 3] to [...], by ITU-R BT.601."""
    return frame.astype(np.float64) @ [0.299, 0.587, 0.114]


def brightened(frame, factor):
    return np.clip(frame * float(factor), 0, 255)


def contrasted(frame, factor):
    grey = frame.astype(np.float64) if frame.shape[-1] == 1 else luma(frame)
    return np.clip(factor * frame + (1 - factor) * grey.mean(), 0, 255)


def saturated(frame, factor):
    return np.clip(factor * frame + (1 - factor) * luma(frame)[..., None], 0, 255)


def hue_turned(frame, turns):
    def pixel(rgb):
        h, s, v = colorsys.rgb_to_hsv(*(rgb / 255.0))
        return np.array(colorsys.hsv_to_rgb((h + turns) % 1, s, v)) * 255

    return np.apply_along_axis(pixel, -1, frame.astype(np.float64))
