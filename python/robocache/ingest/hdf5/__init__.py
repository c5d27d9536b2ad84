"""HDF5: `datasets` is what all layouts have in common, `robomimic`, `aloha` and `droid` are one each; `droid_videos` are the cameras of
the last."""
