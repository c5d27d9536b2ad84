"""A policy for metaworld's tasks, from demonstrations whose sensors have their own clocks."""
