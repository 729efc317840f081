"""Call boundaries in jaxprs: mark while tracing, then group."""
