# A demo made by Finetune: it reads which model it shows, and how, from finetune.json.
import json
import math
from pathlib import Path

import gradio as gr
import torch
from transformers import AutoModelForSequenceClassification, AutoTokenizer

config = json.loads(Path(__file__).with_name("finetune.json").read_text(encoding="utf-8"))
name = config["model"]
tokenizer = AutoTokenizer.from_pretrained(name)
model = AutoModelForSequenceClassification.from_pretrained(name).eval()


kind = model.config.problem_type
notes = getattr(model.config, "finetune", None) or {}
sure = notes.get("sure")  # from which probability on an answer is given


def classify(*sentences: str) -> object:
    """The probability of every class or label, or the score; and the answer if it is sure."""
    inputs = tokenizer(*sentences, truncation=True, return_tensors="pt")
    with torch.no_grad():
        logits = model(**inputs).logits[0]
    if kind == "regression":
        return logits.item()
    several = kind == "multi_label_classification"
    values = logits.sigmoid() if several else logits.softmax(dim=-1)
    shares = {label: values[index].item() for index, label in model.config.id2label.items()}
    if not sure:
        return shares
    answer, confidence, above = (several_labels if several else one_class)(shares)
    return shares, answer if confidence > above else f"unsure (it would say {answer})"


def one_class(shares: dict[str, float]) -> tuple[str, float, float]:
    """The answer, its probability, and the one above which it is given."""
    answer, positive = max(shares, key=shares.__getitem__), notes.get("positive")
    if notes.get("threshold") and positive in shares and len(shares) == 2:
        other = next(label for label in shares if label != positive)
        answer = positive if shares[positive] >= notes["threshold"] else other
    return answer, shares[answer], sure.get("classes", {}).get(answer, sure["above"])


def several_labels(shares: dict[str, float]) -> tuple[str, float, float]:
    """The labels, the probability that all are right, and the one above which they are given."""
    levels = notes.get("thresholds", {})
    given = [label for label, share in shares.items() if share >= levels.get(label, 0.5)]
    all_right = math.prod(share if name in given else 1 - share for name, share in shares.items())
    return ", ".join(given) or "none", all_right, sure["above"]


outputs = [gr.Number(label="score") if kind == "regression" else gr.Label(label="probabilities")]
if sure:
    outputs.append(gr.Textbox(label="answer"))
demo = gr.Interface(
    classify,
    [gr.Textbox(label=label, lines=2) for label in config["sentences"]],
    outputs,
    examples=config["examples"],
    cache_examples=False,
    title=f"{name.split('/')[-1]} demo",
    description=f"The model is [`{name}`](https://huggingface.co/{name}).",
    flagging_mode="never",
    api_name="classify",
)

demo.launch()
