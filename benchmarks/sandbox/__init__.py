"""The sandboxes' speed and what they leave behind, on this machine: ``python -m benchmarks.sandbox``.

- Rivals take turns in one run, on the same daemon: compare the ratios, not the numbers.
- Every line says what it is compared with, the ratio, the target and whether it is met; what can't be measured here says why.
"""
