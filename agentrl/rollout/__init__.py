"""Episodes, the worker that runs many, evaluation."""
