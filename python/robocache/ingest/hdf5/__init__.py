"""Reads the layouts of HDF5 files. `robomimic`, `aloha`, `droid` and others read one layout each, `droid_videos` DROID's cameras. All
share `datasets`, which finds the objects in a file, and `columns`, which turns datasets into streams."""
