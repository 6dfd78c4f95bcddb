"""The box that grades: reward workers, which turn ended episodes into verdicts."""
