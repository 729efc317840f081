"""`python -m jaxport`: the command, for environments whose scripts are not on the path."""

from __future__ import annotations

from jaxport.cli import main

if __name__ == "__main__":
    main()
