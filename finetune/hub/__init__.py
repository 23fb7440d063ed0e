"""Everything that leaves the machine: pushes, model cards, Spaces, scripts, ONNX files."""

__all__ = ["client", "deploy", "downloads", "model_card", "onnx", "publish"]
