"""SGLang servers as an engine: started or attached to, spoken to over HTTP, never imported."""
