"""Text files as tables: their character encoding, with the possible readings if it is in doubt, and
their lines."""

import codecs
import io
import re
import unicodedata
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from itertools import chain
from pathlib import Path
from typing import BinaryIO

from finetune.data import table
from finetune.data.table import MAX_FIELD, OnBadRow, ReadOptions, Table, remark
from finetune.errors import DataError
from finetune.findings import Remedy
from finetune.messages import message as _

_MARKS = {
    codecs.BOM_UTF8: "utf-8-sig", codecs.BOM_UTF32_LE: "utf-32", codecs.BOM_UTF32_BE: "utf-32",
    codecs.BOM_LE: "utf-16", codecs.BOM_BE: "utf-16",
}  # fmt: skip
_CONTROL = bytes((*range(9), *range(14, 27)))
_SAMPLE_BYTES = 2**16  # of lines beyond ASCII, from which an encoding is guessed
_SHOWN = 60  # characters of a sample
_CANDIDATES = 5  # readings to choose from
_MARGIN = 0.06  # readings whose scores differ by less are both possible

# Letters of the languages that use an encoding: of an alphabet those beyond ASCII, of another
# script the most frequent. Commoner encodings come first.
_WESTERN = (
    "àâæçéèêëîïôœùûüÿ", "äöüß", "áéíñóúü", "àáâãçéêíóôõú", "àèéìíîòóùú", "àçèéíïòóúü",
    "åæøéèêóô", "åäöé", "áéëïíóöü",
)  # fmt: skip
_CENTRAL = (
    "ąćęłńóśźż", "áčďéěíňóřšťúůýž", "áäčďéíĺľňóôŕšťúýž", "áéíóöőúüű", "čćđšž", "ăâîşţ", "ëçâ",
)  # fmt: skip
_CYRILLIC = ("оеаинтсрвлкмдпуягзыбьчйхжш", "оаинвретсклмудпяізьбгйчїхцжє")
_GREEK = ("αοιετσνηυρπκμλςωάίόέήύώδγχθφβ",)
_CHINESE = (
    "的一是不了在人有我他这个们中来上大为和国地到以说时要就出会可也你对生能而子那得于着下自"
    "之年过发后作里用道行所然家种事成方多经么去法学如都同现当没动面起看定天分还进好小部其些"
    "主样理心她本前开但因只从想实很门晚店员态度非常菜真吃再买"
)
_TAIWANESE = (
    "的一是不了在人有我他這個們中來上大為和國地到以說時要就出會可也你對生能而子那得於著下自"
    "之年過發後作裡用道行所然家種事成方多經麼去法學如都同現當沒動面起看定天分還進好小部其些"
    "主樣理心她本前開但因只從想實很門晚店員態度非常菜真吃再買"
)
_KANA = "".join(map(chr, range(0x3041, 0x30FF)))
_HANGUL = (
    "이다는에가을의고하지를한기사로은도서나리아대인자시어정있수해그들보게만라부일전스제습니과"
    "와상장원주것안없면여으더기구까요때우성화무신조모연오말경중동생거위국비소문저세내마공물물"
    "입음았었했겠"
)
_LANGUAGES: dict[str, tuple[str, ...]] = {
    "cp1252": (*_WESTERN, "áæðéíóöúýþ"),
    "cp1250": _CENTRAL,
    "cp1254": ("çğıöşüâîûi̇",),
    "cp1257": ("ąčęėįšųūž", "āčēģīķļņšūž", "äõöüšž"),
    "cp1251": _CYRILLIC,
    "cp1253": _GREEK,
    "mac_roman": _WESTERN,
    "iso8859_15": _WESTERN,
    "iso8859_2": _CENTRAL,
    "koi8_r": _CYRILLIC[:1],
    "koi8_u": _CYRILLIC[1:],
    "cp866": _CYRILLIC[:1],
    "cp850": _WESTERN,
    "cp852": _CENTRAL,
    "mac_latin2": _CENTRAL,
    "mac_turkish": ("çğıöşüâîûi̇",),
    "iso8859_7": _GREEK,
    "cp1255": ("אבגדהוזחטיכלמנסעפצקרשתםןךףץ",),
    "cp1256": ("ابتثجحخدذرزسشصضطظعغفقكلمنهويةىءأإآؤئ",),
    "iso8859_6": ("ابتثجحخدذرزسشصضطظعغفقكلمنهويةىءأإآؤئ",),
    "cp874": ("".join(map(chr, range(0x0E01, 0x0E5B))),),
    "cp949": (_HANGUL,),
    "gb18030": (_CHINESE,),
    "big5": (_TAIWANESE,),
    "cp932": (_KANA,),
    "euc_jp": (_KANA,),
}
_IDEOGRAPHIC = ("cp949", "gb18030", "big5", "cp932", "euc_jp")
_FREQUENT = ("cp1251", "koi8_r", "koi8_u", "cp866")
# Shares of such letters from which a reading is likely.
_LIKELY, _LIKELY_FREQUENT, _LIKELY_IDEOGRAPHIC = 0.85, 0.75, 0.3
_MIXED = 0.95  # of the score of one language, for texts in several
_MAJOR = 0.13  # bonus of the languages of Western Europe, whose encoding is the commonest
# An apostrophe within a word: it's, l'ami, aujourd'hui.
_APOSTROPHE = re.compile(r"\w\u2019(s|t|re|ll|ve|m|d)\b|[cdjlmnstu]\u2019[aeiouyhàâéèêîôœ]", re.I)


@dataclass(frozen=True)
class Encoding:
    """The conversion of a file's bytes to characters."""

    name: str  # of Python's codec
    broken: int = 0  # places that could not be decoded, each read as U+FFFD
    guessed: bool = False  # True if nothing in the file states the encoding
    # If in doubt, the encodings to choose from and a sample of each, the best first.
    readings: tuple[tuple[str, str], ...] = ()


class TextTable(Table):
    """A table in a text file, which may be gzipped."""

    def __init__(self, path: Path, name: str, options: ReadOptions) -> None:
        super().__init__(path, name)
        self._encoding = detect(path, name, options.encoding)
        # The encoding is reported unless it is plainly UTF-8, and asked for if it is in doubt.
        encoding = self._encoding
        if encoding.readings:
            choices = ", ".join(f"{name} ({sample})" for name, sample in encoding.readings)
            title = _("{name} is not UTF-8, and its encoding is in doubt.", name=self.name)
            action = _("Choose the encoding in which it reads well: {choices}", choices=choices)
            answers = [
                Remedy("encoding", codec, f"{codec}: {sample}")
                for codec, sample in encoding.readings
            ]
            asked = remark("encoding", title, action, answers=answers, severity="blocks")
            self.remarks.append(asked)
        elif encoding.guessed:
            text = _(
                "{name} is not UTF-8; it was read as {encoding}. Where letters are wrong, choose "
                "another encoding.",
                name=self.name,
                encoding=encoding.name,
            )
            self.notes.append(text)
        elif options.encoding:
            text = _("{name} is read as {encoding}.", name=self.name, encoding=encoding.name)
            self.notes.append(text)
        elif encoding.name.startswith(("utf-16", "utf-32")):
            label = encoding.name[:6].upper()
            self.notes.append(_("{name} is {encoding}.", name=self.name, encoding=label))
        if encoding.broken:
            text = _(
                "{name} is {encoding} with {n:,} broken places, read as \ufffd.",
                name=self.name,
                encoding="UTF-8" if encoding.name == "utf-8" else encoding.name,
                n=encoding.broken,
            )
            self.notes.append(text)

    def _open(self) -> io.TextIOWrapper:
        file = table.open_bytes(self.path, self.name)
        return io.TextIOWrapper(file, encoding=self._encoding.name, errors="replace", newline="")

    def _lines(self, on_bad_row: OnBadRow = lambda line, reason: None) -> Iterator[tuple[int, str]]:
        """Yield lines without NULs, numbered from 1; too long ones are reported and skipped."""
        number = 0
        with self._open() as text:
            while line := text.readline(MAX_FIELD):
                number += 1
                if len(line) < MAX_FIELD or line.endswith(("\n", "\r")):
                    yield number, line.replace("\0", "") if "\0" in line else line
                    continue
                reason = _("is longer than {max_field:,} characters", max_field=MAX_FIELD)
                on_bad_row(number, reason)
                while line and not line.endswith(("\n", "\r")):
                    line = text.readline(MAX_FIELD)


def detect(path: Path, name: str, requested: str = "") -> Encoding:
    """Detect the encoding of a file: the requested one, or by its byte order mark, or UTF-8, or a
    guess. DataError if the file is not text or Python does not know the requested encoding."""
    with table.open_bytes(path, name) as file:
        start = file.read(4096)
        if requested:
            try:
                codec = codecs.lookup(requested).name
                "".encode(requested)  # fails for codecs such as `base64`
            except (LookupError, ValueError) as error:
                raise DataError(
                    "There is no encoding {encoding!r}.",
                    "Give one that Python knows as encoding, such as utf-8, cp1252, euc_jp or "
                    "mac_roman.",
                    encoding=requested,
                ) from error
            # The signature of UTF-8 must not become a part of the first name.
            codec = "utf-8-sig" if codec == "utf-8" else codec
            return Encoding(codec, _count_broken(chain([start], _blocks(file)), codec)[0])
        for mark, encoding in _MARKS.items():
            if start.startswith(mark):
                return Encoding(encoding)
        pairs = len(start) // 2  # of UTF-16 without a mark, every other byte is mostly zero
        for offset, encoding in ((1, "utf-16-le"), (0, "utf-16-be")):
            zeros, others = start[offset::2].count(0), start[1 - offset :: 2].count(0)
            if pairs >= 2 and zeros > pairs // 2 and not others:
                return Encoding(encoding, guessed=True)
        if len(start) - len(start.translate(None, _CONTROL)) > max(8, len(start) // 20):
            raise DataError(
                "{name} is not text.", "Save it as CSV, TSV, JSONL or Parquet.", name=name
            )
        # Read the whole file: only its end may have bytes that are not UTF-8.
        broken, valid = _count_broken(chain([start], _blocks(file)), "utf-8")
    if not broken or valid > broken:
        return Encoding("utf-8", broken)
    with table.open_bytes(path, name) as file:
        sample = b""  # the first lines with bytes beyond ASCII
        while len(sample) < _SAMPLE_BYTES and (line := file.readline(_SAMPLE_BYTES)):
            sample += b"" if line.isascii() else line
    encoding, readings = _guess(sample)
    with table.open_bytes(path, name) as file:
        return Encoding(encoding, _count_broken(_blocks(file), encoding)[0], True, readings)


def _blocks(file: BinaryIO) -> Iterator[bytes]:
    return iter(partial(file.read, 2**20), b"")


def _count_broken(blocks: Iterator[bytes], encoding: str) -> tuple[int, int]:
    """Count the places that cannot be decoded, and the other characters beyond ASCII."""
    broken = valid = 0
    for text in codecs.iterdecode(blocks, encoding, "replace"):
        if not text.isascii():
            replaced = text.count("\ufffd")
            broken += replaced
            valid += len(text) - len(text.encode("ascii", "ignore")) - replaced
    return broken, valid


def _guess(sample: bytes) -> tuple[str, tuple[tuple[str, str], ...]]:
    """Return the likeliest encoding, and the readings to choose from if others are likely too."""
    scores: list[tuple[float, str, str]] = []
    seen = set()
    for encoding in _LANGUAGES:
        try:
            text = codecs.getincrementaldecoder(encoding)().decode(sample)
        except UnicodeDecodeError:
            continue
        if text not in seen:  # the commonest encoding of equal readings
            seen.add(text)
            scores.append((_score(text, encoding), encoding, text))
    if not scores:
        return "cp1252", ()
    scores.sort(key=lambda score: -score[0])
    best = scores[0][0]
    rivals = [score for score in scores if score[0] > best - _MARGIN]
    if best >= 1 and len(rivals) == 1:
        return scores[0][1], ()
    likely = [score for score in scores if score[0] > best / 2][:_CANDIDATES]
    readings = []
    for _share, encoding, text in likely:  # each with its words around a character beyond ASCII
        match = re.search(r"[^\x00-\x7f]", text)
        start = max(0, match.start() - _SHOWN // 3) if match else 0
        words = " ".join(text[start : start + _SHOWN].split())
        readings.append((encoding, "".join(c if c.isprintable() else "\ufffd" for c in words)))
    return scores[0][1], tuple(readings)


def _score(text: str, encoding: str) -> float:
    """Score a reading: 1 and more if its letters are those of a language that uses the encoding, 2
    if it has only well-placed marks beyond ASCII."""
    letters: Counter[str] = Counter()
    wrong = marks = 0
    for match in re.finditer(r"[^\x00-\x7f]", text):
        index = match.start()
        char = match[0]
        before, after = text[index - 1 : index], text[index + 1 : index + 2]
        category = unicodedata.category(char)
        # A capital after a small letter, or a letter of another script beside a Latin one.
        beside_latin = any(c.isascii() and c.isalpha() for c in (before, after))
        is_foreign = beside_latin and "LATIN" not in unicodedata.name(char, "")
        if category[0] in "LM" and not is_foreign and not (char.isupper() and before.islower()):
            # In Portuguese before an e only; elsewhere it is the Hungarian \u0151 read wrongly.
            is_hungarian = char in "\u00d5\u00f5" and after not in "eE"
            letters["\u00f5-" if is_hungarian else char.lower()] += 1
        elif _is_mark_in_place(char, category, text, index):
            marks += 1
        else:
            wrong += 1
    total = sum(letters.values()) + wrong
    if not total:
        return 2.0

    def share(language: str) -> float:
        return sum(letters[char] for char in set(language)) / total

    best = max(map(share, _LANGUAGES[encoding]))
    if _LANGUAGES[encoding][: len(_WESTERN)] == _WESTERN:
        best = max(best, _MIXED * share("".join(_WESTERN)))
    if encoding in _IDEOGRAPHIC:
        return best / _LIKELY_IDEOGRAPHIC
    likely = _LIKELY_FREQUENT if encoding in _FREQUENT else _LIKELY
    western = encoding == "cp1252" and best >= likely and best == max(map(share, _WESTERN))
    return best / likely + _MAJOR * western


def _is_mark_in_place(char: str, category: str, text: str, index: int) -> bool:
    """True for punctuation outside of words, and for an apostrophe or hyphen within one."""
    if category[0] == "L" or category in ("Cc", "Cn", "Co", "Cs") or char in "\ufffd¤¦¬":
        return False
    start, end = index, index + 1
    while unicodedata.category(text[start - 1 : start] or " ")[0] == "S":  # "gr÷▀er" is one word
        start -= 1
    while unicodedata.category(text[end : end + 1] or " ")[0] == "S":
        end += 1
    before, after = text[start - 1 : start], text[end : end + 1]
    if category in ("No", "Sk", "So") and after.isalpha() and not before.isdigit():  # "³ber"
        return False
    if not (before.isalpha() and after.isalpha()):
        return category[0] in "PZS" or category in ("No", "Cf")
    if char == "\u2019":
        return bool(_APOSTROPHE.match(text, index - 1))
    return char in "\u2013\u2014\u00b7\u2026\u00a0\u00ad" or ord(char) > 0x3000
