"""Everything that leaves the machine: pushes, model cards, Spaces, scripts, ONNX files."""

__all__ = [
    "client",
    "curves_picture",
    "deploy",
    "downloads",
    "model_card",
    "onnx",
    "publish",
    "push_plan",
    "script_bundle",
]
