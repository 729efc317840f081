"""The layout of the output of the command and the demo."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, TextIO

from jaxport.columns import counted
from jaxport.printable import printable

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.table import Table
    from rich.tree import Tree

    from jaxport.cli.summary import ModuleRow, Summary, TensorRow


def file_size(count: int) -> str:
    """Return a number of bytes in readable form.

    >>> file_size(102_400_000), file_size(12)
    ('102.4 MB', '12 B')
    """
    size = float(count)
    for unit in ("B", "kB", "MB"):
        if size < 1000:
            return f"{size:.0f} B" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1000
    return f"{size:.2f} GB"


def key_values(rows: Mapping[str, object]) -> Table:
    """Return a table of two columns without a header; values are shown as they are, but `printable`."""
    from rich.table import Table
    from rich.text import Text

    made = Table(show_header=False, box=None)
    made.add_column(style="cyan")
    made.add_column(overflow="fold")
    for key, value in rows.items():
        made.add_row(Text(key), value if isinstance(value, (Text, Table)) else Text(printable(str(value))))
    return made


def nodes_of(summary: Summary) -> str:
    """Return how many nodes a model has, and of how many types of operators."""
    types = counted(len(summary.operators), "operator type")
    return f"{counted(sum(summary.operators.values()), 'node')}, {types}"


def operator_table(operators: Mapping[str, int]) -> Table:
    """Return the operators of a model and how often it calls each."""
    return table(f"operators: {counted(sum(operators.values()), 'call')}", ["operator", "calls"], operators.items())


def summary_view(summary: Summary, *, everything: bool = False) -> RenderableType:
    """Return all tables of `jaxport inspect`.

    Args:
      summary: the contents of the file.
      everything: whether to list every initializer, not only the largest.
    """
    from rich.console import Group
    from rich.text import Text

    tensors = [*summary.initializers, *summary.in_nodes]
    shown = tensors if everything else sorted(tensors, key=lambda tensor: -tensor.bytes)[:10]
    title = f"initializers: {len(summary.initializers)}"
    if summary.in_nodes:
        title += f", and {counted(len(summary.in_nodes), 'tensor')} in `Constant` nodes"
    if len(shown) < len(tensors):
        title += f", the {len(shown)} largest (`--all` lists every one)"
    required_by = {"opset for": ", ".join(summary.opset_for)} if summary.opset_for else {}
    parts: list[RenderableType] = [
        key_values(
            {
                "file": f"{summary.file} ({file_size(summary.file_bytes)})",
                "operator sets": ", ".join(f"{domain} {version}" for domain, version in summary.opsets.items()),
                **required_by,
                "IR version": summary.ir_version,
                "producer": summary.producer or "unknown",
                "weights": f"{counted(summary.element_count, 'element')}, {file_size(summary.weight_bytes)}",
                "parameters": summary.parameters,
            }
        ),
        _tensors(f"inputs: {len(summary.inputs)}", summary.inputs),
        _tensors(f"outputs: {len(summary.outputs)}", summary.outputs),
        operator_table(summary.operators),
    ]
    if summary.functions:
        parts.append(table(f"functions: {len(summary.functions)}", ["function", "calls"], summary.functions.items()))
    if shown:
        parts.append(_tensors(title, shown, summary.roles))
    if summary.modules:
        parts.append(_module_tree(summary.modules))
    return Group(*(item for part in parts for item in (part, Text())))


def console(stream: TextIO | None = None) -> Console:
    """Return a console as wide as the terminal; if the output goes elsewhere, wide enough that names stay whole.

    Args:
      stream: where it writes; by default the standard output.
    """
    from rich.console import Console

    plain = Console(highlight=False, file=stream)
    wide = plain.is_terminal or "COLUMNS" in os.environ
    return plain if wide else Console(highlight=False, width=160, file=stream)


def table(title: str, columns: Sequence[str], rows: Iterable[Sequence[object]], right: Collection[str] = ()) -> Table:
    """Return a table with a title and a header; title and cells are shown as they are, but `printable`.

    Args:
      title: above the table; none if it is empty.
      columns: the header.
      rows: the cells.
      right: the columns that are aligned to the right, besides those of numbers that all tables have.
    """
    from rich.table import Table
    from rich.text import Text

    made = Table(title=Text(printable(title)) if title else None, title_justify="left", title_style="bold")
    for column in columns:
        numeric = column in ("calls", "size", "before", "after", *right)
        made.add_column(column, justify="right" if numeric else "left", overflow="fold")
    for row in rows:
        made.add_row(*(Text(f"{cell:,}" if isinstance(cell, int) else printable(str(cell))) for cell in row))
    return made


def _tensors(title: str, tensors: Sequence[TensorRow], roles: Mapping[str, str] | None = None) -> Table:
    """Return a table of inputs or outputs, or of tensors that have sizes and roles."""
    columns = ["name", "dtype", "shape", *(["role", "size"] if roles is not None else [])]
    rows = [
        [tensor.name, tensor.dtype, shape_text(tensor)]
        + ([roles.get(tensor.name, "unknown"), file_size(tensor.bytes)] if roles is not None else [])
        for tensor in tensors
    ]
    return table(title, columns, rows)


def shape_text(tensor: TensorRow) -> str:
    """Return the shape of a tensor, with `?` for an unknown dim.

    >>> from jaxport.cli.summary import TensorRow
    >>> shape_text(TensorRow("x", "float32", ("B", 3, None)))
    '[B, 3, ?]'
    """
    if tensor.shape is None:
        return "unknown"
    return f"[{', '.join('?' if dim is None else str(dim) for dim in tensor.shape)}]"


def typed(tensor: TensorRow) -> str:
    """Return an input or an output with its dtype and shape.

    >>> from jaxport.cli.summary import TensorRow
    >>> typed(TensorRow("x", "float32", ("B", 3)))
    'x float32[B, 3]'
    """
    return f"{tensor.name} {tensor.dtype}{shape_text(tensor)}"


def _module_tree(modules: Sequence[ModuleRow]) -> Tree:
    from rich.text import Text
    from rich.tree import Tree

    root = Tree(Text(f"modules: {len(modules)}", style="bold"))
    branches = [root]  # from the root to the block that was added last
    for module in modules:
        nodes = counted(module.nodes, "node")
        path, kind = printable(module.path) or "(root)", printable(module.type)
        label = Text.assemble((path, "cyan"), f"  {kind}  ", (nodes, "dim"))
        if module.parameters:
            label.append(f", {counted(module.parameters, 'parameter')}", style="dim")
        del branches[module.level + 1 :]
        branches.append(branches[-1].add(label))
    return root
