"""Trains a policy for metaworld's tasks from demonstrations whose sensors have clocks of their own."""
