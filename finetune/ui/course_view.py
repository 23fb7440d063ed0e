"""What is happening now, as the Hugging Face course explains it, and the first batch drawn.

Texts and HTML only; all that comes from a run is escaped. What the batch is, `peek` told.
"""

from __future__ import annotations

import html
from collections.abc import Sequence
from dataclasses import dataclass

from finetune.runs.events import FirstBatch
from finetune.runs.summary import RunSummary
from finetune.ui.i18n import gettext

COURSE = "https://huggingface.co/learn/llm-course/"


@dataclass(frozen=True)
class Lesson:
    """What is said of a moment.

    Args:
        text: what happens, in two sentences; a key of the catalogues.
        chapter: of the course, after its address.
        title: that chapter's or section's name there, in English.
        stage: where on the road it is; -1 before it, and its length at the end.
    """

    text: str
    chapter: str
    title: str
    stage: int = -1


STAGES = ("Load", "Tokenise", "Train", "Evaluate", "Save")
LESSONS: dict[str, Lesson] = {
    "nothing": Lesson(
        "Nothing is training yet. When you press Train, a pretrained model learns from labelled "
        "pairs what it was never told: when two sentences mean the same.",
        "chapter3/1",
        "Fine-tuning a pretrained model",
    ),
    "waiting": Lesson(
        "The run waits in the queue, since one run at a time has the device. It begins by itself "
        "when those before it have ended.",
        "chapter3/1",
        "Fine-tuning a pretrained model",
    ),
    "start": Lesson(
        "A process of its own loads PyTorch and finds the device. Closing this page does not end "
        "it.",
        "chapter3/4#supercharge-your-training-loop-with-accelerate",
        "Accelerate",
        0,
    ),
    "fit": Lesson(
        "The largest batch that fits the memory is looked for with the longest pair. The pairs a "
        "step stay the same: smaller batches are summed.",
        "chapter3/4#the-training-loop",
        "The training loop",
        1,
    ),
    "data": Lesson(
        "The pairs are read and split: train to learn from, validation to score on, test to keep "
        "sealed. Each row has two sentences, or one, and a class.",
        "chapter3/2#loading-a-dataset-from-the-hub",
        "Loading a dataset",
        0,
    ),
    "checkpoint": Lesson(
        "The pretrained weights and their tokenizer are loaded. A new classification head with "
        "random weights is put on top, and training will teach it.",
        "chapter2/3#loading-and-saving",
        "Loading and saving models",
        0,
    ),
    "tokenise": Lesson(
        "The tokenizer turns each pair into token ids, one row for both sentences. Rows are cut "
        "at max_length, and padded later, batch by batch.",
        "chapter3/2#preprocessing-a-dataset",
        "Preprocessing a dataset",
        1,
    ),
    "train": Lesson(
        "Each step sends a batch forward through the model, takes the loss, goes backward for the "
        "gradients, and lets the optimizer change the weights. Then the scheduler sets the next "
        "learning rate, and the gradients are emptied.",
        "chapter3/4#the-training-loop",
        "The training loop",
        2,
    ),
    "evaluate": Lesson(
        "The model answers the validation pairs, from which it does not learn. Accuracy and F1 "
        "say how well it does on pairs it has not trained on.",
        "chapter3/4#the-evaluation-loop",
        "The evaluation loop",
        3,
    ),
    "baselines": Lesson(
        "The same pairs are answered by simple means: the commonest class, word counts, the "
        "checkpoint without training. The dashed lines are what the model has to beat.",
        "chapter3/5#interpreting-learning-curve-patterns",
        "Reading learning curves",
        3,
    ),
    "orders": Lesson(
        "The validation pairs are asked once more with the sentences swapped. Where order means "
        "nothing, the answers should stay the same.",
        "chapter3/4#the-evaluation-loop",
        "The evaluation loop",
        3,
    ),
    "save": Lesson(
        "This evaluation was the best so far, so weights, configuration and tokenizer are written "
        "to the run's folder. They load again with from_pretrained.",
        "chapter2/3#loading-and-saving",
        "Loading and saving models",
        4,
    ),
    "unscored": Lesson(
        "A stop was asked for before the first evaluation, so the model is written as it is. How "
        "well it does is not known.",
        "chapter2/3#loading-and-saving",
        "Loading and saving models",
        4,
    ),
    "keep": Lesson(
        "A checkpoint is written: weights, optimizer, scheduler and random state. From it the run "
        "can be resumed as if it had never ended.",
        "chapter3/4#supercharge-your-training-loop-with-accelerate",
        "Accelerate",
        4,
    ),
    "finished": Lesson(
        "All steps are taken, and the model of the best evaluation is kept. Read the curves: a "
        "loss that falls while the scores fall too means it has learned by heart.",
        "chapter3/5#interpreting-learning-curve-patterns",
        "Reading learning curves",
        len(STAGES),
    ),
    "stopped": Lesson(
        "The run was ended before its last step, as asked. Resume goes on with the same batches "
        "and weights.",
        "chapter3/4#supercharge-your-training-loop-with-accelerate",
        "Accelerate",
    ),
    "failed": Lesson(
        "The run ended by an error; what to do is said above, and the log has the details. Most "
        "errors of a training loop come from the data, the batch size or the learning rate.",
        "chapter8/4",
        "Debugging the training pipeline",
    ),
    "interrupted": Lesson(
        "The process ended without a word, mostly because the machine was restarted or its memory "
        "was full. Nothing that was saved is lost.",
        "chapter8/4",
        "Debugging the training pipeline",
    ),
}
# The course's words for a step, in order.
STEP = (
    "outputs = model(**batch)",
    "loss = outputs.loss",
    "accelerator.backward(loss)",
    "optimizer.step()",
    "lr_scheduler.step()",
    "optimizer.zero_grad()",
)
WHAT = {
    "input_ids": "the number of each token in the checkpoint's vocabulary",
    "token_type_ids": "0 for the first sentence, 1 for the second",
    "attention_mask": "1 for a token, 0 for padding, which the model does not look at",
    "labels": "the class of each example",
}


def moment(summary: RunSummary, dataset: str = "") -> str:
    """Which lesson a run is at.

    Args:
        dataset: the name its configuration has for the pairs: they are loaded before a checkpoint.
    """
    if summary.status in {"waiting", "finished", "stopped", "failed", "interrupted"}:
        return summary.status
    match summary.phase, summary.detail:
        case "start", "finding the largest batch that fits":
            return "fit"
        case "download", detail:
            return "data" if detail == dataset else "checkpoint"
        case "evaluate", "the baselines":
            return "baselines"
        case "evaluate", "both orders of the sentences":
            return "orders"
        case "save", "a checkpoint":
            return "keep"
        case "save", "the model as it is":
            return "unscored"
        case phase, _ if phase in LESSONS:
            return phase
    return "start"


def now(name: str) -> str:
    """The box that explains a moment, with the chapter that explains it whole."""
    lesson = LESSONS[name]
    code = "".join(f"<li><code>{html.escape(line)}</code></li>" for line in STEP)
    label = html.escape(gettext("One step"))
    step = f'<ol class="ft-step" aria-label="{label}">{code}</ol>' if name == "train" else ""
    title = html.escape(gettext("What is happening now"))
    return (
        f'<section class="ft-lesson" aria-label="{title}">'
        f'<h2 class="ft-h">{title}</h2>{_road(lesson.stage)}'
        f"<p>{html.escape(gettext(lesson.text))}</p>{step}"
        f"{_course(lesson.chapter, lesson.title)}</section>"
    )


def _road(stage: int) -> str:
    """The stages of a run; where it is is marked, written and told, not only coloured."""
    parts = []
    for place, name in enumerate(STAGES):
        # Training, evaluating and saving follow each other again and again: none is over.
        over = place < min(stage, 2) or stage == len(STAGES)
        mark = "\u2713 " if over else "\u25b6 " if place == stage else ""
        told = ' aria-current="step"' if place == stage else ""
        kind = "ft-over" if over else "ft-here" if place == stage else "ft-ahead"
        parts.append(
            f'<li class="{kind}"{told}><span aria-hidden="true">{mark}</span>'
            f"{html.escape(gettext(name))}{_hidden(gettext(', done')) if over else ''}</li>"
        )
    return f'<ol class="ft-road">{"".join(parts)}</ol>'


def _course(chapter: str, title: str) -> str:
    text = html.escape(gettext("The course: {title}", title=title))
    return (
        f'<a class="ft-course" href="{COURSE}{chapter}" target="_blank" rel="noopener">{text}'
        f"{_hidden(gettext(', opens in a new tab'))}</a>"
    )


def _hidden(text: str) -> str:
    """Words for those who do not see the page."""
    return f'<span class="sr-only">{html.escape(text)}</span>'


def first_batch(peeked: FirstBatch | None) -> str:
    """The first batch as the course's text shows one: form, shapes, lengths, tokens; empty for a
    run that has not told it."""
    if peeked is None or not peeked.ids or not peeked.shapes.get("input_ids"):
        return ""
    size, width = (*peeked.shapes["input_ids"], 0)[:2]
    form = f"<code>{html.escape(peeked.form)}</code>" if peeked.form else ""
    rows = "".join(_example(peeked, place, opened=place == 0) for place in range(len(peeked.ids)))
    label = html.escape(gettext("The first batch"))
    title = html.escape(gettext("The first batch, as the model reads it"))
    text = gettext(
        "{n} examples, each put together as {form} and padded to {width} tokens.",
        n=size,
        form=form or html.escape(gettext("tokens")),
        width=width,
    )
    return (
        f'<section class="ft-first" aria-label="{label}"><h2 class="ft-h">{title}</h2>'
        f'<p class="ft-note">{text}</p>'
        f"{_shapes(peeked)}{_lengths(peeked, width)}{rows}"
        f"{_course('chapter3/2#dynamic-padding', 'Dynamic padding')}</section>"
    )


def _shapes(peeked: FirstBatch) -> str:
    rows = "".join(
        f'<tr><th scope="row"><code>{html.escape(name)}</code></th><td class="ft-num">'
        f"{_TIMES.join(str(size) for size in sizes)}</td>"
        f"<td>{html.escape(gettext(WHAT.get(name, '')))}</td></tr>"
        for name, sizes in sorted(peeked.shapes.items(), key=lambda one: _place(one[0]))
    )
    heads = "".join(
        f'<th scope="col">{html.escape(name)}</th>'
        for name in (gettext("tensor"), gettext("shape"), gettext("what it holds"))
    )
    return (
        f'<div class="ft-rows ft-shapes"><table><thead><tr>{heads}</tr></thead><tbody>{rows}'
        "</tbody></table></div>"
    )


def _place(name: str) -> int:
    """Where a tensor stands in the table: as the course names them, others at the end."""
    return list(WHAT).index(name) if name in WHAT and name != "labels" else len(WHAT)


_TIMES = " \u00d7 "


def _lengths(peeked: FirstBatch, width: int) -> str:
    """Each example as a bar: its tokens, and hatched the padding up to the longest."""
    told = ", ".join(str(length) for length in peeked.lengths)
    size = peeked.shapes["input_ids"][0]
    if size > len(peeked.lengths):
        told = gettext("{lengths} and {n} more", lengths=told, n=size - len(peeked.lengths))
    bars = "".join(
        f'<i title="{_of(length, width)}"><b style="height:'
        f'{100 * length / max(width, 1):.1f}%"></b></i>'
        for length in peeked.lengths
    )
    text = gettext(
        "Lengths in tokens before padding: {lengths}. After: {width} each. {share:.0%} of the "
        "batch is padding.",
        lengths=told,
        width=width,
        share=peeked.padded,
    )
    return (
        f'<p class="ft-facts">{html.escape(text)}</p>'
        f'<div class="ft-lens" aria-hidden="true">{bars}</div>'
    )


def _of(length: int, width: int) -> str:
    text = gettext("{n} tokens, {padding} padding", n=length, padding=width - length)
    return html.escape(text)


def _example(peeked: FirstBatch, place: int, opened: bool) -> str:
    """One example: a column a token, a row a tensor."""
    mask, tokens = peeked.attention_mask[place], peeked.tokens[place]
    length = peeked.lengths[place]
    width = peeked.shapes["input_ids"][1]
    kinds = peeked.token_type_ids[place] if peeked.token_type_ids else []
    marks = [
        "ft-pad" if not real else "ft-special" if token in peeked.special
        else f"ft-sentence{kinds[n] if kinds else 0}"
        for n, (token, real) in enumerate(zip(tokens, mask, strict=True))
    ]  # fmt: skip
    named: list[tuple[str, Sequence[object]]] = [("input_ids", peeked.ids[place])]
    if kinds:
        named.append(("token_type_ids", kinds))
    named.append(("attention_mask", mask))
    gap = next((n for n, at in enumerate(peeked.positions) if at != n), -1)
    left = peeked.positions[gap] - gap if gap > 0 else 0
    head = "".join(
        _gap(left, "th") * (n == gap) + f'<th scope="col" class="{mark}"><bdi>{_shown(token)}'
        f"</bdi></th>"
        for n, (token, mark) in enumerate(zip(tokens, marks, strict=True))
    )
    body = "".join(
        f'<tr><th scope="row"><code>{name}</code></th>'
        + "".join(
            _gap(0, "td") * (n == gap) + f'<td class="{marks[n]}">{value}</td>'
            for n, value in enumerate(values)
        )
        + "</tr>"
        for name, values in named
    )
    label = peeked.labels[place] if place < len(peeked.labels) else ""
    title = html.escape(gettext("Example {n}", n=place + 1))
    summary = gettext(
        "Example {n}: {label}, {length} tokens and {padding} of padding",
        n=place + 1,
        label=f"<bdi>{html.escape(label)}</bdi>",
        length=length,
        padding=width - length,
    )
    return (
        f'<details class="ft-more"{" open" * opened}><summary>{summary}</summary>'
        f'<div class="ft-rows ft-tokens" tabindex="0" role="region" aria-label="{title}"><table>'
        f'<thead><tr><th scope="row">{html.escape(gettext("tokens"))}</th>{head}</tr></thead>'
        f"<tbody>{body}</tbody></table></div></details>"
    )


def _gap(left: int, cell: str) -> str:
    text = html.escape(gettext("{n} tokens are not shown", n=left))
    told = f' title="{text}"' if left else ""
    return f'<{cell} class="ft-gap"{told}>\u2026</{cell}>'


def _shown(token: str) -> str:
    """A token in HTML: a space at its beginning is drawn, what cannot be printed replaced."""
    text = "\u2423" + token[1:] if token.startswith(" ") else token
    joiner = "\u200d"
    return html.escape("".join(c if c.isprintable() or c == joiner else "\ufffd" for c in text))
