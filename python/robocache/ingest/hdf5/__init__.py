"""HDF5: `datasets` (what lies in a file) and `columns` (its datasets as streams) are what all layouts have in common, `robomimic`,
`aloha` and `droid` are one each; `droid_videos` are the cameras of the last."""
