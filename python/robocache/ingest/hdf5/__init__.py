"""HDF5. All layouts share `datasets` (the objects in a file) and `columns` (datasets as streams). `robomimic`, `aloha`, `droid` and
others are one layout each; `droid_videos` reads DROID's cameras."""
