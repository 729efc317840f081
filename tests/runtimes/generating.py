"""Continues a prompt greedily in the onnxruntime-genai of this environment; needs no package of ours.

python generating.py FOLDER LENGTH TOKEN,… [FEATURES.npy]
"""

from __future__ import annotations

import sys


def continued(folder: str, length: int, prompt: list[int], features: str | None = None) -> list[int]:
    """The prompt and what follows, `length` tokens in all; `features` is the file of those of a sound."""
    import numpy as np
    import onnxruntime_genai

    model = onnxruntime_genai.Model(folder)
    parameters = onnxruntime_genai.GeneratorParams(model)
    parameters.set_search_options(max_length=length, do_sample=False)
    generator = onnxruntime_genai.Generator(model, parameters)
    sound = None if features is None else np.load(features)  # kept: the generator reads its memory until the end
    if sound is not None:
        generator.set_model_input("audio_features", sound)
    generator.append_tokens(prompt)
    while not generator.is_done():
        generator.generate_next_token()
    return [int(token) for token in generator.get_sequence(0)]


if __name__ == "__main__":
    tokens = continued(sys.argv[1], int(sys.argv[2]), [int(word) for word in sys.argv[3].split(",")], *sys.argv[4:])
    sys.stdout.write(" ".join(map(str, tokens)))
