"""The store's speed, size and limits on this machine: ``python -m benchmarks.store``.

- Nothing of a user's store is touched: a private server in a temporary folder, or a database of its own at ``--url``.
- Rivals are measured in one run, in rounds that take turns; wall time is the best round, client CPU the median one.
- Every line says what it is compared with, the ratio, the target and whether it is met.
"""
