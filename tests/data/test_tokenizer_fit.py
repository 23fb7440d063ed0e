"""A checkpoint of another language is found by how it cuts words; code is not accused."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Regex, Tokenizer, models, pre_tokenizers
from transformers import AutoTokenizer, PreTrainedTokenizerFast

import finetune
from finetune.data import checkpoints
from finetune.data.catalog import BUNDLED_PAIRS
from finetune.data.token_lengths import measure_fit

TEXTS = {
    "German": "Die Krankenschwester bedankte sich beim Fahrer, weil der Wagen schnell kam.",
    "Polish": "Pielęgniarka podziękowała kierowcy, ponieważ karetka szybko dotarła do szpitala.",
    "Italian": "L'infermiera ha ringraziato l'autista perché l'ambulanza è arrivata presto.",
    "Dutch": "De verpleegkundige bedankte de chauffeur omdat de ambulance snel aankwam.",
    "Turkish": "Hemşire, ambulans hastaneye çabuk geldiği için şoföre teşekkür etti.",
    "Vietnamese": "Y tá cảm ơn tài xế vì xe cứu thương đến bệnh viện rất nhanh vào hôm qua.",
    "Russian": "Медсестра поблагодарила водителя, потому что скорая быстро приехала.",
    "Greek": "Η νοσοκόμα ευχαρίστησε τον οδηγό επειδή το ασθενοφόρο έφτασε γρήγορα χθες.",
    "Arabic": "شكرت الممرضة السائق لأن سيارة الإسعاف وصلت بسرعة إلى المستشفى مساء أمس الأول.",
    "Hindi": "नर्स ने ड्राइवर को धन्यवाद दिया क्योंकि एम्बुलेंस जल्दी अस्पताल पहुँची थी।",
    "Korean": "간호사는 구급차가 병원에 빨리 와서 운전사에게 감사했다. 어제 양측이 서명했습니다.",
    "Chinese": "护士感谢司机，因为救护车很快就到了医院。合同昨天由双方签署，下个月开始生效。",
    "Japanese": "看護師は救急車が早く病院に着いたので運転手に感謝した。契約は昨日署名されました。",
    "Thai": "พยาบาลขอบคุณคนขับเพราะรถพยาบาลมาถึงโรงพยาบาลอย่างรวดเร็ว",
}
PLAIN = {
    "English": "The nurse thanked the driver because the ambulance came quickly to the hospital.",
    "medical English": "Patients with hypertrophic cardiomyopathy received metoprolol, and the "
    "hepatotoxicity of methotrexate was attenuated by acetylcysteine in rats.",
    "Python": "def get_user_by_id(userId: int) -> Optional[User]: return factory.query(userId)",
    "JavaScript": "for (let i = 0; i < rows.length; i += 1) { totals[rows[i].customerId] += 1; }",
    "a log": "2024-03-01T12:00:03Z ERROR kernel: oom-killer pid=4242 GET /api/v2/users?limit=5",
    "a quotation": "The sign said 出口, which is Japanese for exit, and everybody laughed.",
    "numbers": "12345 67890 3.14159 2024-01-01",
}


@pytest.fixture(scope="module")
def bundled() -> Any:
    return AutoTokenizer.from_pretrained(checkpoints.bundled_folder())


@pytest.mark.parametrize("language", TEXTS)
def test_an_english_checkpoint_does_not_know_other_languages(language: str, bundled: Any) -> None:
    fit = measure_fit(bundled, [TEXTS[language]] * 2)
    assert fit is not None
    assert fit.is_poor


@pytest.mark.parametrize("kind", PLAIN)
def test_what_an_english_checkpoint_can_read_is_not_accused(kind: str, bundled: Any) -> None:
    fit = measure_fit(bundled, [PLAIN[kind]] * 2)
    assert fit is None or not fit.is_poor


def test_the_bundled_pairs_and_the_sources_of_this_project_are_not_accused(bundled: Any) -> None:
    lines = (BUNDLED_PAIRS / "train.csv").read_text(encoding="utf-8").splitlines()[:500]
    for path in sorted(Path(finetune.__file__).parent.glob("*.py")):
        lines += path.read_text(encoding="utf-8").splitlines()[:100]
    fit = measure_fit(bundled, lines)
    assert fit is not None
    assert fit.per_word < 1.3


@pytest.mark.parametrize(
    ("language", "pieces"),
    [("Chinese", "."), ("Japanese", "."), ("Korean", r"\w"), ("Korean", r"\w+"), ("Thai", "..?.?")],
)
def test_a_tokenizer_that_knows_a_language_by_characters_or_words_is_not_accused(
    language: str, pieces: str
) -> None:
    """Those made for Chinese have a piece for each character, others longer ones."""
    words = re.findall(r"[^\W\d]+", TEXTS[language])
    found = [piece for word in words for piece in re.findall(pieces, word)]
    vocabulary = {piece: at for at, piece in enumerate({"[UNK]", *found})}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Whitespace(), pre_tokenizers.Split(Regex(pieces), "isolated")
    ])  # fmt: skip
    known = PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="[UNK]")
    fit = measure_fit(known, [" ".join(words)] * 2)
    assert fit is not None
    assert not fit.is_poor
