"""Plain text for recipes/smollm2-flexidepth.yaml: a Wikipedia XML dump cleaned of markup, and WikiText without gaps.

    python scripts/prepare_text.py DATA OUTPUT

DATA holds text/enwiki2016_xml.xml and eval/wikitext2_tokens_valid.txt. Writes wiki.txt (plain), wiki_spaced.txt (the
same, with the spacing of WikiText) and wikitext_valid.txt (unknown words left out).
"""

from __future__ import annotations

import html
import re
import sys
from pathlib import Path

SHORT, FIRST_OF_LIST = 60, "*#:;|!{}"
END = re.compile(r"=+\s*(See also|References|External links|Notes|Further reading|Bibliography|Sources)", re.I)
HEADING = re.compile(r"^(=+)\s*(.*?)\s*=+$")


def main(data: Path, output: Path) -> None:
    output.mkdir(parents=True, exist_ok=True)
    dump = (data / "text" / "enwiki2016_xml.xml").read_text(encoding="utf-8")
    articles = [(title, body) for title, body in pages(dump) if len(body) > 500]
    (output / "wiki.txt").write_text("\n".join(body for _, body in articles), encoding="utf-8")
    spaced = "".join(wikitext_spacing(f"= {title} =\n{body}") for title, body in articles)
    (output / "wiki_spaced.txt").write_text(spaced, encoding="utf-8")
    valid = (data / "eval" / "wikitext2_tokens_valid.txt").read_text(encoding="utf-8")
    (output / "wikitext_valid.txt").write_text(valid.replace("<unk> ", ""), encoding="utf-8")


def pages(dump: str):
    for title, body in re.findall(r"<title>(.*?)</title>.*?<text[^>]*>(.*?)</text>", dump, re.S):
        if not body.startswith("#REDIRECT"):
            yield html.unescape(title), plain(html.unescape(body))


def plain(markup: str) -> str:
    """Paragraphs and headings of an article, without tables, lists, references and templates."""
    kept = []
    for line in unwrapped(markup).split("\n"):
        line = line.strip()
        if END.match(line):
            break
        if HEADING.match(line) or (len(line) >= SHORT and line[0] not in FIRST_OF_LIST):
            kept.append(line)
    return "\n".join(kept)


def unwrapped(text: str) -> str:
    text = re.sub(r"<!--.*?-->|<ref[^>]*/>|<ref.*?</ref>", "", text, flags=re.S)
    text = re.sub(r"<(math|gallery|table|timeline|source|code|nowiki)[^>]*>.*?</\1>", "", text, flags=re.S | re.I)
    for _ in range(6):  # templates nest
        text = re.sub(r"\{\{[^{}]*\}\}", "", text)
    text = re.sub(r"\{\|.*?\|\}", "", text, flags=re.S)
    for _ in range(3):
        text = re.sub(r"\[\[(?:File|Image|Category)[^\[\]]*(?:\[\[[^\[\]]*\]\][^\[\]]*)*\]\]", "", text)
    text = re.sub(r"\[\[[a-z\-]{2,12}:[^\]]*\]\]", "", text)
    text = re.sub(r"\[\[(?:[^|\]]*\|)?([^\]|]*)\]\]", r"\1", text)
    text = re.sub(r"\[https?:\S+\s*([^\]]*)\]", r"\1", text)
    text = re.sub(r"'{2,}|<[^>]+>", "", text)
    return html.unescape(text.replace("&nbsp;", " "))


def wikitext_spacing(text: str) -> str:
    return "".join(f" {spaced(line)} \n" for line in text.split("\n"))


def spaced(line: str) -> str:
    heading = HEADING.match(line)
    if heading:
        marks = " ".join(heading[1])
        return f"{marks} {heading[2]} {marks}"
    line = re.sub(r"(\w)-(?=\w)", r"\1 @-@ ", line)
    line = re.sub(r"(?<=\d)([,.])(?=\d)", r" @\1@ ", line)
    line = re.sub(r'([()\[\];:!?"%$–]|(?<!@),(?!@))', r" \1 ", line)
    line = re.sub(r"(\w)('s\b)", r"\1 \2", line)
    line = re.sub(r'\.(?=\s+[A-Z"(]|\s*$)', " .", line)
    return re.sub(r" +", " ", line).strip()


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
