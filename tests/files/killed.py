"""Saves that are killed at every point where they touch the disk: `python -m tests.files.killed onnx|mox|source FOLDER`.

Each point is a process of its own, forked from this one, that ends there without any cleaning up. After each the pair in
the folder is read: it is the old one or the new one. Prints how many points there were, and what was found at them.
"""

from __future__ import annotations

import os
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

POINTS = ("replace", "unlink", "fsync", "chmod", "rmdir", "mkdir")
"""The functions of `os` before and after which a save is killed."""

SIZE = 5000


def onnx_file(folder: Path) -> tuple[Callable[[float], None], Callable[[], float]]:
    import onnx
    import onnx.parser
    import onnx_ir as ir

    from jaxport import saving

    text = '<ir_version: 8, opset_import: ["": 17]> g (float[n] a, float[m] b) => (float[n] y, float[m] z) { y = Identity(a) z = Identity(b) }'

    def save(number: float) -> None:
        model = ir.from_proto(onnx.parser.parse_model(text))
        for name in ("a", "b"):
            tensor = ir.Tensor(np.full(SIZE, number, np.float32), name=name)
            value = ir.Value(name=name, shape=tensor.shape, type=ir.TensorType(tensor.dtype), const_value=tensor)
            model.graph.register_initializer(value)
        model.graph.doc_string = str(number)
        saving.save(model, folder / "m.onnx", external_data=True)

    def load() -> float:
        model = onnx.load(folder / "m.onnx")
        arrays = [onnx.numpy_helper.to_array(tensor) for tensor in model.graph.initializer]
        return the_number(float(model.graph.doc_string), arrays)

    return save, load


def mox_file(folder: Path) -> tuple[Callable[[float], None], Callable[[], float]]:
    from flax import nnx

    import jaxport

    made = jaxport.make_mox(nnx.Linear(4, SIZE // 4, use_bias=False, rngs=nnx.Rngs(0)))(np.ones(4, np.float32))
    moxes = {
        number: made.with_params({"kernel": np.full((4, SIZE // 4), number, np.float32)}).replaced(
            made.with_params({"kernel": np.full((4, SIZE // 4), number, np.float32)}).traced, name=str(number)
        )
        for number in (1.0, 2.0)
    }

    def load() -> float:
        loaded = jaxport.mox.load(folder / "m.json")
        return the_number(float(loaded.name), [np.asarray(loaded.params["kernel"])])

    return lambda number: jaxport.mox.save(moxes[number], folder / "m.json"), load


def source_file(folder: Path) -> tuple[Callable[[float], None], Callable[[], float]]:
    from jaxport.codegen.source import _LOAD_PARAMS, _LOADING, Source

    head = "from pathlib import Path\nfrom safetensors.numpy import load_file\nArray = object\nNUMBER = "

    def save(number: float) -> None:
        tensors = {"params/a": np.full(SIZE, number, np.float32)}
        Source(f"{head}{number}\n{_LOADING}{_LOAD_PARAMS}", tensors).save(folder, "m")

    def load() -> float:
        space: dict[str, Any] = {"__file__": str(folder / "m.py")}
        exec((folder / "m.py").read_text(), space)
        return the_number(space["NUMBER"], list(space["load_params"]().values()))

    return save, load


def the_number(named: float, arrays: list[np.ndarray]) -> float:
    """The number that the model is of, which all arrays have."""
    assert arrays
    assert all((array == named).all() for array in arrays), "a mix of the old and the new"
    return named


KINDS = {"onnx": onnx_file, "mox": mox_file, "source": source_file}


def killed_at(point: int, save: Callable[[], None]) -> bool:
    """Runs a save in a process that ends at a point; whether it came that far."""
    child = os.fork()
    if not child:
        passed = 0

        def killing(function: Callable[..., Any]) -> Callable[..., Any]:
            def here() -> None:
                nonlocal passed
                passed += 1
                if passed > point:
                    os._exit(9)

            def call(*args: Any, **kwargs: Any) -> Any:
                here()
                result = function(*args, **kwargs)
                here()
                return result

            return call

        try:
            for name in POINTS:
                setattr(os, name, killing(getattr(os, name)))
            save()
        except BaseException:  # noqa: BLE001  this process is to end here
            os._exit(1)
        os._exit(0)
    _, status = os.waitpid(child, 0)
    code = os.waitstatus_to_exitcode(status)
    assert code in (0, 9), f"the save failed: {code}"
    return code == 9


def main(kind: str, name: str) -> None:
    folder = Path(name)
    save, load = KINDS[kind](folder)
    found: Counter[float] = Counter()
    point = 0
    save(1.0)
    while killed_at(point, lambda: save(2.0)):
        found[load()] += 1
        save(1.0)  # which also cleans up
        assert load() == 1.0
        assert len(list(folder.iterdir())) == 2, sorted(path.name for path in folder.iterdir())
        point += 1
    assert load() == 2.0
    print(f"{kind}: {point} points, the old pair at {found[1.0]}, the new one at {found[2.0]}")


if __name__ == "__main__":
    main(*sys.argv[1:])
