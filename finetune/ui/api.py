"""Named endpoints for programs, shown under "Use via API", and tools for agents that speak MCP.

A client sees what the page would show the same visitor (see `auth`). The docstrings and types are
what clients and agents are told.
"""

from __future__ import annotations

import functools
import inspect
import re
from collections.abc import Callable
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import gradio as gr
from gradio.events import api as endpoint

from finetune import disk
from finetune.api.verb import VERBS, Verb
from finetune.config import RunConfig
from finetune.errors import FinetuneError, PublishError
from finetune.evaluation import ranking
from finetune.inference.file_request import COLUMNS, PredictionRequest
from finetune.jobs import label, label_answers, predict, run_table, service
from finetune.jobs.predict import PredictionJob
from finetune.runs.run import Run
from finetune.runs.store import RunStore
from finetune.tasks.base import PredictOptions
from finetune.ui import auth, feedback, upload_limits
from finetune.ui.choosers import Models
from finetune.ui.panel import ask_for_request

_SENT = {str, int, float, bool}  # what a program can send
_DEFAULTS: dict[str, Any] = {}  # a run's, as in RunConfig


@dataclass
class Api:
    """The endpoints over a store of runs; `models` are the loaded ones, shared with the page."""

    store: RunStore
    models: Models

    def wire(self) -> None:
        """Add the endpoints to the current `gr.Blocks`."""
        verbs: list[Any] = [as_endpoint(verb) for verb in VERBS.values() if verb.endpoint]
        for action in (
            self.list_runs, self.run_status, self.rank_runs, *verbs,
            self.start_run, self.stop_run, self.resume_run, self.batch_status, self.cancel_batch,
            self.publish, self.label_question, self.label_answer, self.group_texts,
        ):  # fmt: skip
            endpoint(self.answering(action), concurrency_limit=None)
        endpoint(self.answering(self.predict), queue=False)
        endpoint(self.answering(self.explain), concurrency_limit=2)  # as many as on the page
        # Gradio takes a file only by a component, so these are drawn hidden. A parameter is
        # optional if its component has a value, whatever the default of `predict_batch`.
        with gr.Column(visible=False):
            inputs: list[Any] = [gr.Textbox(label="run_id"), gr.File(label="file")]
            inputs += [gr.Textbox("", label=f"{name}_column") for name in COLUMNS]
            flags = fields(PredictOptions)
            inputs += [gr.Checkbox(flag.default is True, label=flag.name) for flag in flags]
            inputs.append(gr.Textbox("", label="sheet"))
            answer, button = gr.JSON(label="batch"), gr.Button()
            texts: list[Any] = [gr.File(label="file")]
            texts += [gr.Textbox("", label=f"text_{name}") for name in ("labels", "column")]
            begin, begun = gr.Button(), gr.JSON(label="label_job")
        ask = self.answering(self.predict_batch)
        button.click(ask, inputs, answer, concurrency_limit=None)
        begin.click(self.answering(self.label), texts, begun, concurrency_limit=None)

    def answering(self, action: Callable[..., Any]) -> Callable[..., Any]:
        """Give an action the store as its visitor sees it; errors become the answer."""
        named, flags = [*inspect.signature(action).parameters][1:], action.__annotations__

        @functools.wraps(action)
        def answer(request: gr.Request, *values: Any) -> Any:
            try:
                for name, value in zip(named, values, strict=False):
                    if flags.get(name) in (bool, "bool") and not isinstance(value, bool):
                        raise FinetuneError(
                            "{name} is {value!r}.", "Send true or false.", name=name, value=value
                        )
                return action(auth.visitor_store(self.store, request), *values)
            except Exception as error:
                text = str(disk.explained(error) or feedback.apology(error))
                raise gr.Error(text, print_exception=False) from error

        ask_for_request(answer, action)
        # Gradio tells an agent the first line of what is said of an argument.
        answer.__doc__ = re.sub(r"\n {8}", " ", inspect.getdoc(action) or "")
        return answer

    def predict(
        self,
        store: RunStore,
        run_id: str,
        sentence1: str,
        sentence2: str = "",
        both_orders: bool = False,
        threshold: bool = True,
        calibrated: bool = False,
    ) -> dict:
        """Ask a model about two sentences (one for a model of single sentences).

        Returns the label, the probabilities by class, decision (the label or "unsure", if the model
        keeps a bound on its errors; else empty), logits, tokens, cut (tokens not read), seconds,
        the answer for the sentences in the other order, and the precision of the computation.

        Args:
            run_id: a run of yours.
            sentence1: the first sentence, as in the run's first column. run_status gives the names
                of the columns.
            sentence2: the second sentence; empty for a model of single sentences.
            both_orders: average the probabilities of both orders.
            threshold: use the threshold saved with the model, if any. Without one, or if false, the
                most probable class is the answer.
            calibrated: use the temperature saved with the model, if there is one.
        """
        options = PredictOptions(both_orders, threshold, calibrated)
        with self.models.using(store, run_id) as predictor:
            return asdict(predictor(sentence1, sentence2, options))

    def explain(
        self,
        store: RunStore,
        run_id: str,
        sentence1: str,
        sentence2: str = "",
        both_orders: bool = False,
        threshold: bool = True,
        calibrated: bool = False,
    ) -> dict:
        """Explain a model's answer by the weight of each word and the edits that change it.

        Returns label, each word's weight in nats for or against it, target and baseline_target (its
        log-odds with and without the words), flips (small edits that change the label) and tried
        (the number of edits tried). The arguments are those of predict.
        """
        options = PredictOptions(both_orders, threshold, calibrated)
        with self.models.using(store, run_id) as predictor:
            label, explanation = predictor.explain(sentence1, sentence2, options)
            flips, tried = predictor.flips(sentence1, sentence2, options)
            edits = [asdict(flip) for flip in flips]
            return {"label": label, **asdict(explanation), "flips": edits, "tried": tried}

    def predict_batch(
        self,
        store: RunStore,
        run_id: str,
        file: str,
        sentence1_column: str = "",
        sentence2_column: str = "",
        label_column: str = "",
        both_orders: bool = False,
        threshold: bool = True,
        calibrated: bool = False,
        sheet: str = "",
    ) -> dict:
        """Ask a model about every row of a file: CSV, Excel, ODS, TSV, JSONL, JSON or Parquet.

        Returns at once; batch_status gives the progress and the result's path. The result has the
        file's own columns, `prediction`, a `probability_` of each class, `decision` (the answer or
        "unsure", if the model keeps a bound on its errors), `trained_on` (true if the row is one of
        the run's training rows, in either order) and `error`. If the file has one of these names,
        all added columns end in `_2`, or the next free number. The report lists them in `columns`,
        and in `left_out` the nested Parquet columns, which the result lacks.

        Args:
            run_id: a run of yours.
            sentence1_column: column of the first sentence. If empty, the column named as in the
                run's training data (see run_status), or a guess; the same for the next two.
            label_column: column for scores; "(none)" if there is none.
            sheet: sheet of a workbook; if empty, the first with a table.
        """
        if not file:
            raise FinetuneError("There is no file.", "Send one.")
        prediction = PredictionRequest(
            str(run_id), Path(file).name, sentence1_column, sentence2_column, label_column,
            both_orders, threshold, calibrated, sheet=sheet,
        )  # fmt: skip
        job = predict.start_prediction(store, prediction, upload_limits.path(store.visitor, file))
        upload_limits.kept(file, job.input)
        return self.batch_status(store, job.id)

    def batch_status(self, store: RunStore, batch_id: str) -> dict:
        """Return a batch's status, rows done and in total, report and the result's path.

        The report has scores if the file has labels. `trained_on` counts those of its `rows` that
        the model was trained on; `not_trained_on` has the scores of the other rows. `unsure` counts
        the rows that it is unsure of. If the model keeps a bound on its errors, that decides; then
        the report has it as `sure`, and `review` is the path of a file with these rows.
        """
        job = PredictionJob.find(store, batch_id)
        state = job.state()
        return {
            "id": job.id,
            "status": state.status,
            "done": state.done,
            "total": state.total,
            "report": state.report,
            "error": f"{state.error} {state.remedy}".strip(),
            "result": f"finetune/batches/{job.id}/result" if job.result else "",
            "review": f"finetune/batches/{job.id}/review" if job.review else "",
        }

    def cancel_batch(self, store: RunStore, batch_id: str) -> dict:
        """Cancel a batch; predicted rows are kept."""
        PredictionJob.find(store, batch_id).cancel()
        return self.batch_status(store, batch_id)

    def publish(
        self,
        store: RunStore,
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
            token: with write access; kept nowhere. If empty, the one stored on your own machine.
            private: create a new repository as private. If true, nothing is pushed to a public one.
            update: commit to a repository that has files; those of an earlier model are removed.
        """
        from finetune.hub import client, publish

        run = store.get(run_id)
        for name, value in (("repository", repository), ("token", token)):
            if not isinstance(value or "", str):
                raise FinetuneError("{name} is no text.", "Send it as one.", name=name)
        if not token and store.visitor.policy.stored_token:
            token = client.stored_token() or ""
        push = publish.PushRequest(repository, private, update=update)
        try:
            return asdict(publish.push_run(run, push, token or None))
        except publish.RepositoryExists as error:
            raise PublishError(
                error.fact, "Send update as True for a new commit in it, or choose another name."
            ) from None

    def label(self, store: RunStore, file: str, labels: str = "", column: str = "") -> dict:
        """Begin to label the texts of a file, or pairs of its texts that may mean the same.

        Returns labelling, an id for label_question, which may be asked a few seconds later.

        Args:
            file: with a row for each text.
            labels: two or more, with commas between; pairs are asked about if empty.
            column: the column with the texts; guessed if empty.
        """
        if not file:
            raise FinetuneError("There is no file.", "Send one.")
        names = labels.split(",") if labels else []
        job = label.start_labelling(
            store, [upload_limits.path(store.visitor, file)], [Path(file).name], names, [column],
            pairs=not names,
        )  # fmt: skip
        return {"labelling": job.id}

    def label_question(self, store: RunStore, labelling: str, who: str = "agent") -> dict:
        """Return the next question: item, texts, and the labels of which label_answer takes one or
        several. Without them there is none yet, as status says, or all is answered.

        Args:
            labelling: the id that label returned.
            who: who answers.
        """
        job = label.LabelJob.find(store, labelling)
        state = job.state()
        found = job.labelling.next(who) if job.labelling.ready else None
        asked = found._asdict() | {"labels": job.labelling.names} if found else {}
        return {"status": state.status, "error": f"{state.error} {state.remedy}".strip(), **asked}

    def label_answer(
        self, store: RunStore, labelling: str, item: list, labels: list, who: str = "agent"
    ) -> dict:
        """Answer a question, and return the next one as label_question does, with how good a model
        would be (estimate; null below 30 answers).

        Args:
            item: of the question.
            labels: of the texts; empty for none where a text may have several.
        """
        found = label.LabelJob.find(store, labelling).labelling
        found.answer(item, labels or [], str(who))
        told = found.estimate()
        return self.label_question(store, labelling, who) | {"estimate": told and asdict(told)}

    def group_texts(self, store: RunStore, labelling: str, run_id: str = "") -> dict:
        """Group the texts of a file that mean the same; or label them all, if texts were labelled.
        Returns status, and once finished the report and the result's path: call it again.

        Args:
            labelling: the id that label returned.
            run_id: a run of yours that was trained on the answers; without it a small model
                learns from them at once.
        """
        job = label.LabelJob.find(store, labelling)
        answers = label_answers.AnswersJob(job.folder / "answers")
        asked = {"run": run_id, "answers": len(job.labelling.settled())}
        if answers.request != asked and not answers.state().running:
            run = store.get(run_id) if run_id else None
            answers = label_answers.start_answers(store, job, run)
        state, found = answers.state(), answers.report
        result = f"finetune/labels/{job.id}/result-1" if found else ""
        error = f"{state.error} {state.remedy}".strip()
        return {"status": state.status, "error": error, "report": found, "result": result}

    def list_runs(self, store: RunStore) -> list[dict]:
        """List your runs, newest first: id, name, status, place in the queue, scores, created
        (seconds since the epoch), seconds of training."""
        return list(map(_row, run_table.run_rows(store)))

    def run_status(self, store: RunStore, run_id: str) -> dict:
        """Return a run's row in list_runs, last step, total steps, last training loss, and the
        names of the columns it is trained on."""
        run = store.get(run_id)
        summary = run.state()
        return {
            **_row(run_table.run_row(store, run)),
            "columns": summary.columns._asdict(),
            "step": summary.step,
            "total_steps": summary.total_steps,
            "loss": summary.train[-1].loss if len(summary.train) else None,
            "error": summary.error,
            "remedy": summary.remedy,
        }

    def rank_runs(self, store: RunStore, run_id: str) -> dict:
        """Rank your finished runs that have the same validation rows as one of them.

        Returns sentence (the conclusion), metric, examples, cheapest (the id of a run, or null),
        others (runs that are not ranked), and runs, the best score first: id, name, score with its
        95% interval, may_be_best (the best is among these with a probability of 95%), megabytes,
        and milliseconds a row if measured on this machine.
        """
        own = ranking.beside(store, store.get(run_id))
        return ranking.as_values(ranking.rank_runs(own))

    def start_run(self, store: RunStore, config: dict = _DEFAULTS) -> dict:
        """Start a run, or put it in the queue if another is training.

        Args:
            config: hyperparameters by name, as in config.json; missing ones keep their default.
        """
        if not isinstance(config, dict):
            raise FinetuneError("config is not an object.", "Send names and values.")
        return self.run_status(store, service.start_run(store, RunConfig(**config)).id)

    def stop_run(self, store: RunStore, run_id: str, discard: bool = False) -> dict:
        """Stop a run and keep its best model, or take it out of the queue.

        Args:
            discard: throw the model away instead.
        """
        service.stop_run(store, store.get(run_id), discard=discard)
        return self.run_status(store, run_id)

    def resume_run(self, store: RunStore, run_id: str, agreed: bool = False) -> dict:
        """Resume a run that ended early, from its last checkpoint.

        Args:
            agreed: true if a person has agreed to the price of a new job on a billed engine. If
                false, the answer is that price.
        """
        service.resume_run(store, store.get(run_id), agreed=agreed)
        return self.run_status(store, run_id)


def as_endpoint(verb: Verb) -> Callable[..., Any]:
    """Return what answers a program that asks for a verb: it sends ids of its own runs, and values;
    no path, and nothing else that is not its own."""
    parameters = verb.parameters()
    taken = [each for each in parameters if Run in each.kinds or each.kinds <= _SENT]
    assert not any(each.several for each in taken), f"{verb.command} takes lists"
    assert all(each in taken or not each.required for each in parameters), verb.command

    def action(store: RunStore, *values: Any) -> Any:
        given: dict[str, Any] = dict(zip((each.name for each in taken), values, strict=False))
        given |= {each.name: store.get(given[each.name]) for each in taken if Run in each.kinds}
        given |= {each.name: store for each in parameters if RunStore in each.kinds}
        return verb.values(verb.function(**given))

    first, _ = inspect.signature(action).parameters.values()
    own = inspect.signature(verb.function).parameters
    taken_by = [first, *(own[each.name] for each in taken)]
    run, returns = "the id of a run of yours", " ".join(verb.told("Returns").split())
    about = [f"    {each.name}: {run if Run in each.kinds else each.about}." for each in taken]
    # Gradio tells an agent nothing of the section on what is returned.
    action.__doc__ = "\n".join([f"{verb.told()}\n\nReturns {returns}\n\nArgs:", *about])
    action.__name__ = verb.endpoint
    action.__signature__ = inspect.Signature(taken_by, return_annotation=Any)  # type: ignore[attr-defined]
    kinds = {each.name: str if Run in each.kinds else next(iter(each.kinds)) for each in taken}
    action.__annotations__ = {"store": RunStore, **kinds, "return": Any}
    return action


def _row(row: run_table.RunRow) -> dict:
    """A row without what runs are grouped by, which says nothing to a client."""
    inner = ("data_keys", "owner", "trial")
    return {name: value for name, value in asdict(row).items() if name not in inner}
