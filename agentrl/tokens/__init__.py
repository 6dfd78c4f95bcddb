"""Chat templates, tool-call formats and the append-only transcript (token truth)."""
