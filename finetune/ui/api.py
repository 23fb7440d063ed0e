"""The page for programs: named endpoints, typed and described, shown under "Use via API", and tools
for agents that speak MCP.

A client sees what the page would show the same visitor; where several people share the app it says
who it is by the header `x-finetune-visitor` (see `visit`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypeVar

import gradio as gr
from gradio.events import api as endpoint

from finetune.config import RunConfig
from finetune.errors import FinetuneError, PublishError
from finetune.inference.file_request import COLUMNS, PredictionRequest
from finetune.jobs import prediction_jobs, run_table, service
from finetune.jobs.prediction_jobs import PredictionJob
from finetune.runs.store import RunStore
from finetune.ui import auth, feedback, upload_limits
from finetune.ui.model_chooser import Models

T = TypeVar("T")


@dataclass
class Api:
    """The endpoints.

    Args:
        store: where runs are.
        models: the loaded models, shared with the page.
    """

    store: RunStore
    models: Models

    def wire(self) -> None:
        """Add the endpoints to the current `gr.Blocks`."""
        acts: tuple[Callable[..., Any], ...] = (
            self.list_runs,
            self.run_status,
            self.start_run,
            self.stop_run,
            self.resume_run,
            self.batch_status,
            self.cancel_batch,
            self.publish,
        )
        for act in acts:
            endpoint(act, api_name=act.__name__, concurrency_limit=None)
        endpoint(self.predict, api_name="predict", queue=False)
        endpoint(self.explain, api_name="explain", concurrency_limit=2)  # as many as on the page
        self._wire_batch()

    def _wire_batch(self) -> None:
        """A file is a parameter only where a component takes it: those are drawn and not shown.
        Optional for a program is a component that has a value, whatever the handler's defaults."""
        with gr.Column(visible=False):
            run, file = gr.Textbox(label="run_id"), gr.File(label="file")
            columns = [gr.Textbox("", label=f"{name}_column") for name in COLUMNS]
            ways = [gr.Checkbox(label=name) for name in ("both_orders", "threshold", "calibrated")]
            answer, button = gr.JSON(label="batch"), gr.Button()
        button.click(
            self.predict_batch, [run, file, *columns, *ways], answer, api_name="predict_batch",
            concurrency_limit=None,
        )  # fmt: skip

    def predict(
        self,
        request: gr.Request,
        run_id: str,
        sentence1: str,
        sentence2: str = "",
        both_orders: bool = False,
        threshold: bool = False,
        calibrated: bool = False,
    ) -> dict:
        """Ask a model about two sentences, or about one where it learned from such.

        Args:
            run_id: a run of yours, or a text classifier of the Hub as owner/name.
            sentence1: the first sentence.
            sentence2: the second; empty for a model of single sentences.
            both_orders: average the probabilities of both orders.
            threshold: use the threshold saved with the model, if there is one.
            calibrated: use the temperature saved with the model, if there is one.

        Returns:
            label, probabilities by class, logits, tokens, cut (tokens the model did not read),
            seconds, and other_label, the answer for the sentences in the other order.
        """

        def act(store: RunStore) -> dict:
            from finetune.inference.decision_rule import PredictOptions

            options = PredictOptions(bool(both_orders), bool(threshold), bool(calibrated))
            with self.models.using(store, run_id) as predictor:
                return asdict(predictor(sentence1, sentence2, options))

        return self._do(request, act)

    def explain(
        self,
        request: gr.Request,
        run_id: str,
        sentence1: str,
        sentence2: str = "",
        both_orders: bool = False,
        threshold: bool = False,
        calibrated: bool = False,
    ) -> dict:
        """Why a model answers as it does: what each word brought, and what changes its mind.

        Args:
            run_id: a run of yours, or a text classifier of the Hub as owner/name.
            sentence1: the first sentence.
            sentence2: the second; empty for a model of single sentences.
            both_orders: as for predict.
            threshold: as for predict.
            calibrated: as for predict.

        Returns:
            label, the answer that predict gives; words of both sentences, each with its weight in
            nats for that answer or, below zero, against it; target and baseline_target, the
            answer's log-odds with the words and without them; flips, the small edits that change
            the answer, of the number tried.
        """

        def act(store: RunStore) -> dict:
            from finetune.inference.decision_rule import PredictOptions

            options = PredictOptions(bool(both_orders), bool(threshold), bool(calibrated))
            with self.models.using(store, run_id) as predictor:
                label, found = predictor.explain(sentence1, sentence2, options)
                flips, tried = predictor.flips(sentence1, sentence2, options)
            changed = [asdict(one) for one in flips]
            return {"label": label, **asdict(found), "flips": changed, "tried": tried}

        return self._do(request, act)

    def predict_batch(
        self,
        request: gr.Request,
        run_id: str,
        file: str,
        sentence1_column: str = "",
        sentence2_column: str = "",
        label_column: str = "",
        both_orders: bool = False,
        threshold: bool = False,
        calibrated: bool = False,
    ) -> dict:
        """Ask a model about every row of a file: CSV, TSV, JSONL, JSON or Parquet, also as .gz.

        Returns at once; batch_status says how far it is and where the result is. That has the
        file's own columns, `prediction`, a `probability_` of each class, `trained_on` (whether the
        row is one of the run's training pairs, in either order; absent where the run is older
        than this) and `error`.

        Args:
            run_id: a run of yours.
            file: the file.
            sentence1_column: guessed from the names where empty, as the two that follow.
            sentence2_column: not read by a model of single sentences.
            label_column: for scores; "(none)" where there is none.
            both_orders: average the probabilities of both orders.
            threshold: use the threshold saved with the model, if there is one.
            calibrated: use the temperature saved with the model, if there is one.
        """

        def act(store: RunStore) -> dict:
            if not isinstance(file, str) or not file:
                raise FinetuneError("There is no file.", "Send one.")
            asked = PredictionRequest(
                str(run_id), Path(file).name, sentence1_column or "", sentence2_column or "",
                label_column or "", bool(both_orders), bool(threshold), bool(calibrated),
            )  # fmt: skip
            batch = prediction_jobs.start_prediction(
                store, asked, upload_limits.path(store.visitor, file)
            )
            upload_limits.kept(file, batch.input)
            return _batch(batch)

        return self._do(request, act)

    def batch_status(self, request: gr.Request, batch_id: str) -> dict:
        """How far a batch is: status, done and total rows, its report, and where its result is.

        Args:
            batch_id: as predict_batch gives it.

        Returns:
            `result` is a path below the app's address; `report` has the scores where the file
            has labels, and in `trained_on` how many of its `rows` the model was trained on: their
            scores say nothing of new pairs. Those of the others are in `not_trained_on`, where
            there are at least 30; of these `validated_on` are the pairs the model was chosen by.
        """

        def act(store: RunStore) -> dict:
            return _batch(prediction_jobs.get_prediction(store, batch_id))

        return self._do(request, act)

    def cancel_batch(self, request: gr.Request, batch_id: str) -> dict:
        """End a batch; what is judged by then is kept.

        Args:
            batch_id: as predict_batch gives it.
        """

        def act(store: RunStore) -> dict:
            found = prediction_jobs.get_prediction(store, batch_id)
            prediction_jobs.cancel_prediction(found)
            return _batch(found)

        return self._do(request, act)

    def publish(
        self,
        request: gr.Request,
        run_id: str,
        repository: str,
        token: str = "",
        private: bool = False,
        update: bool = False,
    ) -> dict:
        """Push a run's best model with its card to the Hugging Face Hub, as one commit.

        Args:
            run_id: a run of yours.
            repository: name, or namespace/name.
            token: with write access; kept nowhere. Empty: the one stored on the app's machine,
                where the app is yours alone.
            private: whether a new repository is private; to a public one nothing is pushed then.
            update: whether a repository that holds something already gets a new commit, in which
                the files of an earlier model go.
        """  # fmt: skip

        def act(store: RunStore) -> dict:
            from finetune.hub import publish

            run = store.get(run_id)
            mine = str(token or "").strip() or None
            if mine is None and store.visitor.alone:
                mine = publish.stored_token()
            summary = service.run_summary(store, run)
            wanted = publish.PushRequest(str(repository), bool(private), update=bool(update))
            try:
                return asdict(publish.push_run(run, summary, wanted, mine))
            except publish.RepositoryExists as error:
                remedy = "Send update as True for a new commit in it, or choose another name."
                raise PublishError(error.fact, remedy) from None

        return self._do(request, act)

    def list_runs(self, request: gr.Request) -> list[dict]:
        """Every run of yours, the newest first: id, name, status, place in the queue, scores.

        Returns:
            One object a run; `created` is in seconds since the epoch, `seconds` is of training.
        """

        def act(store: RunStore) -> list[dict]:
            return [asdict(one) for one in run_table.run_rows(store)]

        return self._do(request, act)

    def run_status(self, request: gr.Request, run_id: str) -> dict:
        """How far a run is: its row, the last step, steps in total, the last training loss.

        Args:
            run_id: the run's id, as list_runs and start_run give it.
        """

        def act(store: RunStore) -> dict:
            return _status(store, run_id)

        return self._do(request, act)

    def start_run(self, request: gr.Request, config: dict) -> dict:
        """Start a run, or put it in the queue where another is training.

        Args:
            config: hyperparameters by name, as in config.json; what is missing keeps its default.
        """

        def act(store: RunStore) -> dict:
            if not isinstance(config, dict):
                raise FinetuneError("config is not an object.", "Send names and values.")
            return _status(store, service.start_run(store, RunConfig.from_dict(config)).id)

        return self._do(request, act)

    def stop_run(self, request: gr.Request, run_id: str, discard: bool = False) -> dict:
        """Stop a run and keep its best model, or take it out of the queue.

        Args:
            run_id: the run's id.
            discard: throw the model away instead.
        """

        def act(store: RunStore) -> dict:
            service.stop_run(store, store.get(run_id), discard=bool(discard))
            return _status(store, run_id)

        return self._do(request, act)

    def resume_run(self, request: gr.Request, run_id: str) -> dict:
        """Let a run that ended too early go on from its last checkpoint.

        Args:
            run_id: the run's id.
        """

        def act(store: RunStore) -> dict:
            service.resume_run(store, store.get(run_id))
            return _status(store, run_id)

        return self._do(request, act)

    def _do(self, request: gr.Request, act: Callable[[RunStore], T]) -> T:
        try:
            return act(auth.visitor_store(self.store, request))
        except FinetuneError as error:
            raise gr.Error(str(error), print_exception=False) from error
        except Exception as error:
            raise gr.Error(feedback.apology(error), print_exception=False) from error


def _batch(found: PredictionJob) -> dict:
    known = prediction_jobs.prediction_state(found)
    return {
        "id": found.id,
        "status": known.status,
        "done": known.done,
        "total": known.total,
        "report": known.report,
        "error": f"{known.error} {known.remedy}".strip(),
        "result": f"finetune/batches/{found.id}/result" if found.result else "",
    }


def _status(store: RunStore, run_id: str) -> dict:
    run = store.get(run_id)
    summary = service.run_summary(store, run)
    return {
        **asdict(run_table.run_row(store, run)),
        "step": summary.step,
        "total_steps": summary.total_steps,
        "loss": summary.train[-1].loss if len(summary.train) else None,
        "error": summary.error,
        "remedy": summary.remedy,
    }
