"""A model in int8: as good as before and faster it is used, published and named; else it is not."""

from __future__ import annotations

import dataclasses
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from finetune.cli.use import export
from finetune.environment import devices
from finetune.errors import ModelError
from finetune.evaluation import quantization, saved_predictions
from finetune.hub import model_card, onnx
from finetune.inference import files, quantized
from finetune.inference.file_request import PredictionRequest
from finetune.inference.predictor import Predictor
from finetune.inference.quantized import QuantizationReport
from finetune.inference.scorer import Scorer
from finetune.runs.run import Run
from finetune.runs.store import RunStore
from tests.support import toys
from tests.support.families import lively

REPORT = QuantizationReport(
    "dynamic",
    400,
    "fp32",
    {"accuracy": (0.87, 0.868), "f1": (0.9, 0.899)},
    0.5,
    (100.0, 180.0),
    "a processor",
)


@pytest.fixture(scope="module")
def source(toy_checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A model of larger weights, and its ONNX file."""
    folder = tmp_path_factory.mktemp("int8")
    toys.copy_model(toy_checkpoint, folder / "toy")
    onnx.export_onnx(lively(folder / "toy"), folder / "model.onnx")
    return folder / "toy", folder / "model.onnx"


@pytest.fixture
def run(store: RunStore, source: tuple[Path, Path]) -> Run:
    run = toys.finished_run(store, source[0])
    columns = zip(*toys.rows(80, seed=3), strict=True)
    names = ("sentence1", "sentence2", "label")
    table = pa.table(dict(zip(names, map(list, columns), strict=True)))
    saved_predictions.save_examples(run, "validation", table)
    return run


@pytest.mark.parametrize(
    ("change", "good"),
    [
        ({}, True),
        ({"scores": {"accuracy": (0.87, 0.864)}}, False),
        ({"scores": {"accuracy": (0.87, 0.865)}}, True),  # the bound itself
        ({"scores": {"f1": (0.9, 0.906)}}, False),  # better by chance, not as good
        ({"p": 0.04}, False),
        ({"p": None}, True),  # no answer is right or wrong
        ({"bound": 0.001}, False),
    ],
)
def test_as_good_is_within_the_bound_and_nothing_but_chance(
    change: dict[str, Any], good: bool
) -> None:
    assert dataclasses.replace(REPORT, **change).as_good == good
    assert REPORT.speedup == pytest.approx(1.8)


def test_both_kinds_answer_nearly_as_the_model(source: tuple[Path, Path], tmp_path: Path) -> None:
    plain = Scorer(source[0], 32, "fp32", threads=2)
    first, second, _ = map(list, zip(*toys.rows(40), strict=True))
    expected = plain.scores(first, second)
    rows = list(zip(first, second, strict=True))
    for kind in ("dynamic", "static"):
        file = tmp_path / f"{kind}.onnx"
        quantized.quantize(source[1], file, kind, plain.inputs(rows))  # type: ignore[arg-type]
        assert file.stat().st_size < source[1].stat().st_size
        small = Scorer(source[0], 32, "int8", "cuda", threads=2, quantized=file)
        assert small.device.type == "cpu"  # where ONNX Runtime computes
        logits = small.scores(first, second)
        assert 0 < np.abs(logits - expected).max() < 0.5 * np.abs(expected).max()
        sure = np.abs(expected[:, 0] - expected[:, 1]) > np.abs(expected).max() / 2
        assert sure.sum() > 5
        assert (logits.argmax(1) == expected.argmax(1))[sure].all()


@pytest.mark.parametrize("kept", [True, False])
def test_it_is_used_published_and_named_where_it_pays(
    run: Run, source: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path, kept: bool,
) -> None:  # fmt: skip
    monkeypatch.setattr(QuantizationReport, "as_good", True)
    monkeypatch.setattr(quantization, "is_faster", lambda rounds: kept)
    report = quantization.quantize_model(run, source[1], run.best_step())
    assert (report.kept, report.pairs) == (kept, 80)
    assert quantized.read_report(run.best) == report
    assert quantized.is_enabled(run.best) == (run.best / quantized.MODEL).is_file() == kept
    precisions = {"int8"} if kept else {"fp32", "bf16"}
    assert Predictor.from_run(run)("the cat", "a dog").precision in precisions
    file = tmp_path / "pairs.csv"
    file.write_text("sentence1,sentence2\nthe cat,a dog\n")
    request = PredictionRequest(run.id, file.name, "sentence1", "sentence2")
    judged, _ = files.predict_file(run, request, file, tmp_path / "out.csv")
    assert judged["precision"] in precisions
    if kept:
        assert quantized.serves(run.best, "cpu")
        assert not quantized.serves(run.best, "cuda")
        monkeypatch.setattr(devices, "processor_name", lambda: "another processor")
        assert not quantized.serves(run.best, "cpu")
        assert Predictor.from_run(run)("the cat", "a dog").precision != "int8"
        assert quantized.is_enabled(run.best)
        monkeypatch.setattr(devices, "processor_name", lambda: report.processor)
        (run.best / quantized.MODEL).write_bytes(b"damaged")
        with pytest.raises(ModelError, match="int8 file of this model cannot be loaded"):
            Predictor.from_run(run)
    card = model_card.card_text(run, run.state(), "me/model")
    assert ("onnx/model_quantized.onnx" in card) == kept
    shutil.rmtree(run.best)
    toys.copy_model(source[0], run.best)  # a better one was saved: int8 was of the former
    assert not quantized.is_enabled(run.best)


@pytest.mark.parametrize(
    ("rounds", "faster"),
    [
        ([], None),
        ([(2.0, 1.0)] * 7, None),  # too few to tell
        ([(2.0, 1.0)] * 8, True),
        ([(1.0, 2.0)] * 8, False),
        ([(1.01, 1.0)] * 11 + [(1.0, 90.0)], True),  # disturbed once
        ([(1.01, 1.0)] * 7 + [(1.0, 1.01)] * 5, None),
        ([(1.0, 1.0)] * 40, None),
    ],
)
def test_what_is_faster_is_told_by_many_rounds(
    rounds: list[tuple[float, float]], faster: bool | None
) -> None:
    assert quantization.is_faster(rounds) is faster


@pytest.mark.parametrize("kept", [True, False])
@pytest.mark.parametrize("name", ["a.onnx", "model_quantized.onnx", "a"])
def test_an_export_writes_files_of_its_own_name_alone(
    run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch, kept: bool, name: str,
) -> None:  # fmt: skip
    """In fp32 under the name asked for, in int8 beside it; what else is there stays."""

    def quantize(run: Run, file: Path, step: int | None) -> QuantizationReport:
        (run.best / "onnx").mkdir()
        (run.best / quantized.MODEL).write_text("in int8")
        return dataclasses.replace(REPORT, kept=kept)

    monkeypatch.setattr(quantization, "quantize_model", quantize)
    monkeypatch.setattr(onnx, "export_onnx", lambda folder, to: to.write_text("in fp32") * 0.0)
    others = {"model_quantized.onnx", "b.onnx", "model.onnx", "a.onnx.data"} - {name}
    for other in others:
        (tmp_path / other).write_text("a person's")
    assert export(["--run", str(run.folder), "--to", str(tmp_path / name)]) == 0
    assert "int8 (dynamic) on 400 validation rows: accuracy" in capsys.readouterr().out
    small = Path(name).stem + ".int8" + Path(name).suffix
    expected = {name: "in fp32"} | dict.fromkeys(others, "a person's")
    expected |= {small: "in int8"} if kept else {}
    assert {path.name: path.read_text() for path in tmp_path.glob("*.*")} | {
        name: (tmp_path / name).read_text()
    } == expected
    model = str(run.best / "model.safetensors")
    for words in (["--run", str(run.folder)], ["--model", str(run.best)]):
        with pytest.raises(ModelError, match="is in the folder of the model"):
            export([*words, "--to", model])
