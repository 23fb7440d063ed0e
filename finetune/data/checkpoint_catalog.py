"""The checkpoints that are offered, one a line.

Each repository holds its weights as safetensors and needs no code of its own. If that is not known
for certain (`known` is False), the page says so, and a checkpoint without safetensors is refused
before any weights are fetched. Microsoft's DeBERTa-v3 and multilingual MiniLM are missing because
their repositories hold pickles; models of others that were trained from them are offered instead.

Source of the facts: the model cards, https://huggingface.co/NAME.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from finetune.config import BUNDLED_CHECKPOINT
from finetune.messages import message as _

Size = Literal["small", "base", "large"]  # of the layers, which decide how fast it is

_ENGLISH = _("English")
_CHINESE = _("Chinese and English")
_MANY, _FIFTY = _("about 100 languages"), _("about 50 languages")
_ALL = _("more than 1,800 languages")
# Scripts of the about 50 languages, and those of the about 100 in which XLM-RoBERTa has learned.
_SCRIPTS = {
    "LATIN", "ARABIC", "ARMENIAN", "CJK", "CYRILLIC", "DEVANAGARI", "GEORGIAN", "GREEK", "GUJARATI",
    "HANGUL", "HEBREW", "HIRAGANA", "KATAKANA", "MYANMAR", "THAI",
}  # fmt: skip
_MORE_SCRIPTS = {
    "BENGALI", "ETHIOPIC", "GURMUKHI", "KANNADA", "KHMER", "LAO", "MALAYALAM", "ORIYA", "SINHALA",
    "TAMIL", "TELUGU",
}  # fmt: skip

_BUNDLED = _("Comes with the app and trains in minutes on a processor; made to compare sentences.")
_COURSE = _("The course's own choice, with the most published results to compare with.")
_HALF = _("BERT with half the layers: faster and a little less accurate.")
_ROBERTA = _("A dependable choice for English texts.")
_MODERN = _("Reads long texts and is fast on a GPU.")
_SIZES = _("Made as ModernBERT, in six sizes: take the largest that trains in the time you have.")
_MULTILINGUAL = _("For texts in any of its languages, or in several.")
_LONG_MULTILINGUAL = _("For texts in any of its languages, long ones too; made as ModernBERT.")
_VECTORS = _("Made to compare sentences in any of its languages: a good start for pairs.")
_SIMILARITY = _("Has learned to score how similar two sentences are: a start for scores of pairs.")
_DUPLICATES = _("Has learned to find duplicate questions: a start for paraphrases and duplicates.")
_INFERENCE = _("Has learned what follows from what (NLI): a good start where pairs are few.")
_RANKING = _("Has learned to rank texts for a question: a start for relevance.")


@dataclass(frozen=True)
class Entry:
    """A checkpoint of the catalogue."""

    name: str  # in a configuration
    title: str  # on the page
    size: Size
    millions: float  # of parameters, word embeddings included
    purpose: str
    tokens: int = 512  # the longest input
    licence: str = "apache-2.0"  # as the Hub spells it
    languages: str = _ENGLISH
    home: str = ""  # its Hub repository, if that has another name
    known: bool = False  # True if its weights are known to be safetensors

    @property
    def repo(self) -> str:
        """Its Hub repository."""
        return self.home or self.name

    @property
    def label(self) -> str:
        """The title with the number of parameters."""
        return f"{self.title} \u00b7 {self.millions:,.0f}M"

    def reads(self, script: str) -> bool:
        """True if its vocabulary has the letters of a script, called as Unicode calls it."""
        known = {_FIFTY: _SCRIPTS, _MANY: _SCRIPTS | _MORE_SCRIPTS, _CHINESE: {"LATIN", "CJK"}}
        return self.languages == _ALL or script in known.get(self.languages, {"LATIN"})

    @property
    def weight_bytes(self) -> int:
        """The most that its weights take to download, in bytes: four for each parameter."""
        return round(self.millions * 4e6)


# fmt: off
CHECKPOINTS: tuple[Entry, ...] = (
    Entry(BUNDLED_CHECKPOINT, "all-MiniLM-L6-v2", "small", 23, _BUNDLED,
          home="sentence-transformers/all-MiniLM-L6-v2", known=True),
    Entry("bert-base-uncased", "BERT base", "base", 110, _COURSE,
          home="google-bert/bert-base-uncased", known=True),
    Entry("distilbert-base-uncased", "DistilBERT", "small", 67, _HALF,
          home="distilbert/distilbert-base-uncased", known=True),
    Entry("roberta-base", "RoBERTa base", "base", 125, _ROBERTA, 512, "mit",
          home="FacebookAI/roberta-base", known=True),
    Entry("FacebookAI/roberta-large", "RoBERTa large", "large", 355, _ROBERTA, 512, "mit",
          known=True),
    Entry("answerdotai/ModernBERT-base", "ModernBERT base", "base", 150, _MODERN, 8192, known=True),
    Entry("answerdotai/ModernBERT-large", "ModernBERT large", "large", 396, _MODERN, 8192,
          known=True),
    Entry("jhu-clsp/ettin-encoder-17m", "Ettin", "small", 17, _SIZES, 8192, "mit"),
    Entry("jhu-clsp/ettin-encoder-32m", "Ettin", "small", 32, _SIZES, 8192, "mit"),
    Entry("jhu-clsp/ettin-encoder-68m", "Ettin", "small", 68, _SIZES, 8192, "mit"),
    Entry("jhu-clsp/ettin-encoder-150m", "Ettin", "base", 150, _SIZES, 8192, "mit"),
    Entry("jhu-clsp/ettin-encoder-400m", "Ettin", "large", 396, _SIZES, 8192, "mit"),
    Entry("jhu-clsp/ettin-encoder-1b", "Ettin", "large", 1028, _SIZES, 8192, "mit"),
    Entry("sentence-transformers/paraphrase-multilingual-MiniLM-L12-v2", "Multilingual MiniLM",
          "small", 118, _VECTORS, languages=_FIFTY, known=True),
    Entry("intfloat/multilingual-e5-small", "Multilingual E5 small", "small", 118, _VECTORS, 512,
          "mit", languages=_MANY, known=True),
    Entry("intfloat/multilingual-e5-base", "Multilingual E5 base", "base", 278, _VECTORS, 512,
          "mit", languages=_MANY, known=True),
    Entry("jhu-clsp/mmBERT-small", "mmBERT small", "small", 140, _LONG_MULTILINGUAL, 8192, "mit",
          languages=_ALL),
    Entry("jhu-clsp/mmBERT-base", "mmBERT base", "base", 307, _LONG_MULTILINGUAL, 8192, "mit",
          languages=_ALL),
    Entry("FacebookAI/xlm-roberta-base", "XLM-RoBERTa base", "base", 278, _MULTILINGUAL, 512,
          "mit", languages=_MANY, known=True),
    Entry("FacebookAI/xlm-roberta-large", "XLM-RoBERTa large", "large", 560, _MULTILINGUAL, 512,
          "mit", languages=_MANY, known=True),
    Entry("cross-encoder/stsb-distilroberta-base", "DistilRoBERTa after STS-B", "small", 82,
          _SIMILARITY),
    Entry("cross-encoder/stsb-roberta-base", "RoBERTa base after STS-B", "base", 125, _SIMILARITY),
    Entry("cross-encoder/stsb-roberta-large", "RoBERTa large after STS-B", "large", 355,
          _SIMILARITY),
    Entry("cross-encoder/quora-distilroberta-base", "DistilRoBERTa after Quora", "small", 82,
          _DUPLICATES),
    Entry("cross-encoder/quora-roberta-base", "RoBERTa base after Quora", "base", 125, _DUPLICATES),
    Entry("cross-encoder/quora-roberta-large", "RoBERTa large after Quora", "large", 355,
          _DUPLICATES),
    Entry("cross-encoder/nli-deberta-v3-small", "DeBERTa-v3 small after NLI", "small", 142,
          _INFERENCE),
    Entry("cross-encoder/nli-deberta-v3-base", "DeBERTa-v3 base after NLI", "base", 184,
          _INFERENCE),
    Entry("cross-encoder/nli-deberta-v3-large", "DeBERTa-v3 large after NLI", "large", 435,
          _INFERENCE),
    Entry("tasksource/ModernBERT-base-nli", "ModernBERT base after NLI", "base", 150, _INFERENCE,
          8192),
    Entry("tasksource/ModernBERT-large-nli", "ModernBERT large after NLI", "large", 396,
          _INFERENCE, 8192),
    Entry("MoritzLaurer/mDeBERTa-v3-base-xnli-multilingual-nli-2mil7",
          "mDeBERTa-v3 base after NLI", "base", 279, _INFERENCE, 512, "mit", languages=_MANY),
    Entry("cross-encoder/ms-marco-MiniLM-L6-v2", "MiniLM reranker, 6 layers", "small", 23,
          _RANKING),
    Entry("cross-encoder/ms-marco-MiniLM-L12-v2", "MiniLM reranker, 12 layers", "small", 33,
          _RANKING),
    Entry("Alibaba-NLP/gte-reranker-modernbert-base", "GTE reranker, ModernBERT base", "base", 150,
          _RANKING, 8192),
    Entry("BAAI/bge-reranker-base", "BGE reranker base", "base", 278, _RANKING, 512, "mit",
          languages=_CHINESE),
    Entry("BAAI/bge-reranker-large", "BGE reranker large", "large", 560, _RANKING, 512, "mit",
          languages=_CHINESE),
    Entry("BAAI/bge-reranker-v2-m3", "BGE reranker v2-m3", "large", 568, _RANKING, 8192,
          languages=_MANY),
)
# fmt: on


def find_checkpoint(name: str) -> Entry | None:
    """The offered checkpoint of that name, or None."""
    return next((entry for entry in CHECKPOINTS if entry.name == name), None)


def matching(size: str = "", languages: str = "") -> Iterator[Entry]:
    """Yield the checkpoints of a size, and those for English only (`english`) or for other
    languages (`other`); all by default."""
    for entry in CHECKPOINTS:
        of_languages = not languages or (entry.languages != _ENGLISH) == (languages == "other")
        if of_languages and size in ("", entry.size):
            yield entry
