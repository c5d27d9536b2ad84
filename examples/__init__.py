"""Has programs that record, train and evaluate policies. In the checkout, `python -m examples.NAME --help` describes one."""
