# A demo made by Finetune: it reads which model it shows, and how, from finetune.json.
import json
from pathlib import Path

import gradio as gr
import torch
from transformers import AutoModelForSequenceClassification, AutoTokenizer

config = json.loads(Path(__file__).with_name("finetune.json").read_text(encoding="utf-8"))
name = config["model"]
tokenizer = AutoTokenizer.from_pretrained(name)
model = AutoModelForSequenceClassification.from_pretrained(name).eval()


kind = model.config.problem_type


def classify(*sentences: str) -> dict[str, float] | float:
    """The probability of every class or label, or the score."""
    inputs = tokenizer(*sentences, truncation=True, return_tensors="pt")
    with torch.no_grad():
        logits = model(**inputs).logits[0]
    if kind == "regression":
        return logits.item()
    several = kind == "multi_label_classification"
    probabilities = logits.sigmoid() if several else logits.softmax(dim=-1)
    return {label: probabilities[index].item() for index, label in model.config.id2label.items()}


demo = gr.Interface(
    classify,
    [gr.Textbox(label=label, lines=2) for label in config["sentences"]],
    gr.Number(label="score") if kind == "regression" else gr.Label(label="probabilities"),
    examples=config["examples"],
    cache_examples=False,
    title=f"{name.split('/')[-1]} demo",
    description=f"The model is [`{name}`](https://huggingface.co/{name}).",
    flagging_mode="never",
    api_name="classify",
)

demo.launch()
