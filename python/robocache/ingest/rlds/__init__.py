"""RLDS: `tfrecord` are the files and their Examples, `features` what features.json makes of these, `dataset` reads it all."""
