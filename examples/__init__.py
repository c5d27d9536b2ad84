"""Programs that record, train and evaluate policies; `python -m examples.NAME --help` from the checkout."""
