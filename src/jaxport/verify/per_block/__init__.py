"""Both sides block by block: the first that differs, and what each adds."""
