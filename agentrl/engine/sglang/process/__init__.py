"""What runs inside the process of an SGLang server, in its interpreter. Not for import."""
