"""Tools on graphs of `onnx_ir`: match computations, edit, and fuse."""
