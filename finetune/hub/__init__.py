"""Everything that leaves the machine: pushes, model cards, Spaces, scripts, ONNX files."""
