"""What it costs to start: `import jaxport`, help, completion, and a first tiny export in a fresh process, against `import jax`."""

from __future__ import annotations

from benchmarks.measure import PEERS, have_peers, median, table

_COMMAND = "\nimport jaxport.cli\ntry:\n    jaxport.cli.main({})\nexcept SystemExit:\n    pass\n"
_TAB = "import os\nos.environ.update(COMP_WORDS='jaxport\\nexport\\n--st', COMP_CWORD='2', _JAXPORT_COMPLETE='complete_bash')"
PROGRAMS = {
    "import jax": "import jax",
    "import jax, jaxport": "import jax, jaxport",
    "import jax, onnx_ir": "import jax, onnx_ir",
    "jaxport --help": _COMMAND.format("['--help']"),
    "jaxport export --st and the tab key": _TAB + _COMMAND.format("[]"),
    "jaxport --version": _COMMAND.format("['--version']"),
    "import jaxport and a first export": """
        import jax.numpy as jnp, jaxport
        jaxport.to_onnx(jnp.tanh, [("B", 3)])
    """,
}
PEER = """
    import jax.numpy as jnp
    from jax2onnx import to_onnx
    to_onnx(lambda x: jnp.tanh(x), [("B", 3)])
"""


def main() -> None:
    times = {name: median(program) for name, program in PROGRAMS.items()}
    base = times["import jax"]
    rows = [(name, seconds, seconds / base) for name, seconds in times.items()]
    if have_peers():
        peer_base, peer = median("import jax", python=PEERS), median(PEER, repeats=3, python=PEERS)
        rows.append(("jax2onnx: import and a first export", peer, peer / peer_base))
    table("Starting", ["program", "CPU seconds", "ratio to `import jax`"], rows)


if __name__ == "__main__":
    main()
