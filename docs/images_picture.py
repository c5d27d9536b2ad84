"""Draws docs/images-batch.png: frames of a real robot, and the images that a loader makes from the frames.

python docs/images_picture.py      # needs matplotlib, av, and the videos of ROBOCACHE_TEST_DATA
"""

import os
import tempfile
from pathlib import Path

import av
import matplotlib.pyplot as plt
import numpy as np
from PIL import Image

import robocache

VIDEO = "lerobot_v2/unitree_g1_real/videos/chunk-000/observation.images.cam_high/episode_000029.mp4"
STRIDE, FRAMES = 40, 5
BATCHES = {
    'size=(224, 224), fit="pad"': robocache.ImageOptions(size=(224, 224), fit="pad"),
    "size=(240, 240), crop=(160, 160)": robocache.ImageOptions(size=(240, 240), crop=(160, 160)),
    "crop_scale=(0.3, 0.8), size=(224, 224), brightness=0.3, saturation=0.5, hue=0.1": robocache.ImageOptions(
        crop_scale=(0.3, 0.8), size=(224, 224), brightness=0.3, saturation=0.5, hue=0.1
    ),
    "size=(224, 224), flip_horizontal=0.5, rotation=15, blur=(0.1, 4), blur_kernel=23, erase=0.5": robocache.ImageOptions(
        size=(224, 224), flip_horizontal=0.5, rotation=15, blur=(0.1, 4), blur_kernel=23, erase=0.5
    ),
}


def decode_frames() -> np.ndarray:
    """Returns uint8 [FRAMES, H, W, 3]."""
    frames = []
    with av.open(str(Path(os.environ["ROBOCACHE_TEST_DATA"]) / VIDEO)) as container:
        for number, frame in enumerate(container.decode(video=0)):
            if number % STRIDE == 0:
                frames.append(frame.to_ndarray(format="rgb24"))
            if len(frames) == FRAMES:
                break
    return np.stack(frames)


def main() -> None:
    frames = decode_frames()
    rows = {"as they were recorded, 480 x 640": frames}
    with tempfile.TemporaryDirectory() as folder:
        with robocache.Writer(Path(folder) / "cache") as writer, writer.episode() as episode:
            episode.append("camera", np.arange(FRAMES) * 10**9, frames, codec="jpeg", quality=95)
        dataset = robocache.open(Path(folder) / "cache")
        for name, images in BATCHES.items():
            loader = robocache.Loader(
                dataset,
                batch_size=FRAMES,
                delta_timestamps={"camera": robocache.Window(images=images)},
                shuffle=False,
                device="cpu",
                framework="numpy",
            )
            rows[name] = next(loader)["camera"].transpose(0, 2, 3, 1)
    figure, axes = plt.subplots(len(rows), FRAMES, figsize=(10, 10.5))
    figure.subplots_adjust(left=0.01, right=0.99, top=0.96, bottom=0.01, wspace=0.04, hspace=0.16)
    for row_axes, (name, pictures) in zip(axes, rows.items(), strict=True):
        for axis, picture in zip(row_axes, pictures, strict=True):
            axis.imshow(picture)
            axis.set(xticks=[], yticks=[])
        row_axes[0].set_title(name, loc="left", fontsize=9, family="monospace" if "=" in name else None)
    file = Path(__file__).parent / "images-batch.png"
    figure.savefig(file, dpi=72)
    plt.close(figure)
    with Image.open(file) as picture:
        small = picture.convert("RGB").quantize(128)
    small.save(file, optimize=True)


if __name__ == "__main__":
    main()
