"""A review of pages by rule: each sentence states one measurement."""

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from urllib.parse import urlsplit

from perdure.testkit.rehearsal.page import DemoPage, count_words, quote_text, reading_ease, split_sentences

_VAGUE = {"click here", "see here", "here", "this", "this page", "link", "more", "read more", "learn more", "details"}
_MONTH = r"(Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec)[a-z]*\.?"
_DATE = re.compile(rf"\b(\d{{4}}-\d\d-\d\d|\d{{1,2}} {_MONTH},? \d{{4}}|{_MONTH} \d{{1,2}}(st|nd|rd|th)?,? \d{{4}})\b")
_AUTHOR = re.compile(r"\b([Bb]y|[Aa]uthor:?|[Ww]ritten by|[Pp]osted by) [A-Z][\w’'.-]+ [A-Z][\w’'-]+")
_CONTACT = re.compile(r"mailto:|tel:|\b[\w.+-]{1,64}@[\w-]{1,64}\.\w|\bcontact\b|\bget in touch\b", re.IGNORECASE)
_NEXT_STEP = re.compile(
    r"\b(in short|in conclusion|to sum up|conclusion|summary|contact|visit|sign up|subscribe|try"
    r"|find out|get in touch|write to|learn more|read (?!more)|come)\b",
    re.IGNORECASE,
)
NUMBERS = ("no", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve")
_SIZES = ((150, "short"), (450, "of medium length"), (1500, "a full-length article"), (10**9, "a long read"))
_BANDS = (
    (80, "it is very easy to read"),
    (60, "it reads as plain English"),
    (50, "it asks for a little patience"),
    (30, "it is hard going"),
    (-(10**9), "it is very hard to read"),
)
_SIGNED = "*Written by the rehearsal model, by rule and from what it measured; no language model had a part in it.*"


@dataclass(frozen=True)
class Remark:
    """One observation: a sentence without its full stop. With a `weight` above 0 it is a weak point, and `advice`
    completes "it would help to …".
    """

    text: str
    advice: str = ""
    weight: int = 0


Topic = list[Remark]


def review_page(page: DemoPage) -> list[Topic]:
    """Return the remarks on a page in four topics: structure, reading, links and images, missing parts."""
    links, missing = list(_review_links(page)), list(_review_completeness(page))
    if page.words:
        return [_review_structure(page), list(_review_reading(page)), links, missing]
    empty = Remark(f"{page.name} holds no text to be read", "say in words what the page is for", 9)
    return [[empty], links, missing]


def weak_points(pages: Sequence[DemoPage]) -> list[Remark]:
    """Return the weak points of the pages, the worst first."""
    weak = [remark for page in pages for topic in review_page(page) for remark in topic if remark.weight]
    return sorted(weak, key=lambda remark: -remark.weight)


def _report_page(page: DemoPage) -> list[Topic]:
    """Return the content of a page: the first sentence under each heading, and its figures."""
    size, links = _review_structure(page)[:1], list(_review_links(page))
    if not page.sentences:
        return [size, links]
    quotes = [
        Remark(f"Under {quote_text(section.title)} it says: {quote_text(split_sentences(opening)[0], 40)}")
        for section in page.headings
        for opening in [text for text in section.paragraphs if not _AUTHOR.match(text)][:1]
    ]
    lead = [] if quotes else [Remark(f"It opens: {quote_text(page.sentences[0], 40)}")]
    return [[*size, *lead], quotes[:4], quotes[4:], list(_review_reading(page)), links]


def _review_structure(page: DemoPage) -> Topic:
    size = next(name for limit, name in _SIZES if page.words < limit)
    names = [quote_text(section.title) for section in page.headings]
    under = f", under {count_nouns(len(names), 'heading')}" if names else ""
    measured = f"{page.words:,} words in {count_nouns(len(page.sentences), 'sentence')}{under}"
    if not names:
        advice = "put a heading over each change of subject"
        outline = Remark("A reader who skims finds no heading to hold on to", advice, 8)
    elif len(names) > 3:
        way = f"from {names[1]} by way of {names[len(names) // 2]} to {names[-1]}"
        outline = Remark(f"The headings alone tell its story, {way}")
    else:
        outline = Remark(f"The outline is plain: {join_words(names)}")
    return [Remark(f"{page.name} is {size}: {measured}"), outline]


def _review_reading(page: DemoPage) -> Iterator[Remark]:
    ease = reading_ease(page)
    if ease is None:
        yield Remark("It is too short, or too little like English, for a figure of reading ease")
    else:
        mean = round(page.words / len(page.sentences))
        figures = f"With {count_nouns(mean, 'word')} to the average sentence and a Flesch reading ease of {ease}"
        band = next(text for floor, text in _BANDS if ease >= floor)
        yield Remark(f"{figures}, {band}", "shorten the sentences and choose plainer words", 0 if ease >= 50 else 6)
    longest = max(page.sentences, key=count_words)
    begins, words = f"ongest sentence, which begins {quote_text(longest, 8)}", count_words(longest)
    if words > 35:
        yield Remark(f"The l{begins}, takes {words} words", "split the longest sentence in two or three", 6)
    else:
        yield Remark(f"Its l{begins}, stops after {count_nouns(words, 'word')}")


def _review_links(page: DemoPage) -> Iterator[Remark]:
    """Yield the remarks on links and images."""
    site, total = urlsplit(page.url).netloc, len(page.links)
    outside = sum(urlsplit(target).netloc not in (site, "") for _, target in page.links)
    where = f": {number_word(total - outside)} within the site, {number_word(outside)} to other sites"
    if total:
        yield Remark(f"It has {count_nouns(total, 'link')}{where if outside else ', and none leads to another site'}")
    else:
        yield Remark("It links to nothing", "link to a next page and to a source", 4)
    vague = Counter(text for text, _ in page.links if text.lower().strip(" .!»>→") in _VAGUE)
    if vague:
        times = {1: "", 2: " (twice)"}
        names = [quote_text(text) + times.get(uses, f" ({number_word(uses)} times)") for text, uses in vague.items()]
        verb = "does" if len(names) == 1 else "do"
        yield Remark(f"{join_words(names)} {verb} not say where the link goes", "name the destination in each link", 7)
    elif total > 2 and (label := max((text for text, _ in page.links), key=len)):
        yield Remark(f"None of them hides behind a “click here”; {quote_text(label, 8)} shows how it is done")
    images, mute = len(page.images), sum(not alt for alt in page.images)
    if mute:
        all_of_them = "Its one image has no" if images == 1 else f"None of its {number_word(images)} images has a"
        which = all_of_them if mute == images else f"Not all of its {images} images have a"
        yield Remark(f"{which} text alternative", "describe each image in words", 6)


def _review_completeness(page: DemoPage) -> Iterator[Remark]:
    if not page.has_title:
        text = f"Its title is {quote_text(page.title)}, which names nothing" if page.title else "It has no title"
        yield Remark(text, "give the page a title that could stand in a list of search results", 7)
    author, date = _AUTHOR.search(page.source), _DATE.search(page.source)
    if author and date:
        yield Remark("It says who wrote it, and when")
    elif author or date:
        yield Remark(f"It names no {'date' if author else 'author'}", "add a name and a date", 2)
    else:
        yield Remark("Nothing on it says who wrote it, or when", "add a name and a date", 4)
    if not _CONTACT.search(page.source):
        yield Remark("It offers no way to reach anybody", "add an address for questions", 3)
    if page.paragraphs and not _NEXT_STEP.search(" ".join(page.paragraphs[-2:])):
        text = f"It stops at {quote_text(page.sentences[-1], 10)}, without a conclusion or a next step"
        yield Remark(text, "close with what the reader should do next", 3)
    elif page.paragraphs:
        yield Remark("It closes with a next step for its reader")


def count_nouns(number: int, noun: str) -> str:
    """Return a number with its noun: one link, nine links, 28 links."""
    return f"{number_word(number)} {noun}{'' if number == 1 else 's'}"


def number_word(number: int) -> str:
    return NUMBERS[number] if number < len(NUMBERS) else f"{number:,}"


def join_words(parts: Sequence[str]) -> str:
    """Join as in prose: a, b and c."""
    return " and ".join([", ".join(parts[:-1]), parts[-1]] if len(parts) > 1 else parts)


def write_review(
    pages: Sequence[DemoPage], kind: str, paragraphs: int | None, lost: Sequence[str], *, constructive: bool
) -> str:
    """Return the critique or report (`kind`) as Markdown: a title, so many paragraphs, and a signature.

    `lost` are sentences on pages that could not be fetched. The default is three paragraphs, or one a page.
    """
    is_critique = kind == "critique"
    topics = [review_page(page) if is_critique else _report_page(page) for page in pages]
    groups = [[_format_topic(topic, advise=constructive and is_critique) for topic in page if topic] for page in topics]
    closing = _sum_up(pages, sum(len(topic) for page in topics for topic in page)) if is_critique else []
    groups[-1].append([*closing, *(f"{text}, so nothing is said of it." for text in lost)])
    title = f"# A {kind} {'of' if is_critique else 'on'} {join_words([_lower_article(page.name) for page in pages])}"
    return "\n\n".join([title, *_split_paragraphs(groups, paragraphs or max(3, len(pages))), f"---\n{_SIGNED}"]) + "\n"


def _format_topic(topic: Topic, *, advise: bool) -> list[str]:
    texts = (f"{it.text}; it would help to {it.advice}" if advise and it.weight else it.text for it in topic)
    return [text if re.search(r"[.!?…]”$", text) else f"{text}." for text in texts]


def _sum_up(pages: Sequence[DemoPage], checked: int) -> list[str]:
    weak = weak_points(pages)
    if not weak:
        return ["Nothing that was checked asks for a change: a sign of care, though not yet of good writing."]
    number = f"{number_word(len(weak))} {'asks' if len(weak) == 1 else 'ask'}"
    verdict = [f"Of {count_nouns(checked, 'point')} looked at, {number} for a change; first of all, {weak[0].advice}."]
    if len(pages) > 1:
        ranked = sorted(pages, key=lambda page: sum(remark.weight for remark in weak_points([page])))
        verdict.append(f"{ranked[0].name} leaves the least to mend, {_lower_article(ranked[-1].name)} the most.")
    return verdict


def _lower_article(name: str) -> str:
    return re.sub(r"\AThe page ", "the page ", name)


def _split_paragraphs(groups: list[list[list[str]]], number: int) -> list[str]:
    """Join or split groups of topics of sentences into so many paragraphs, or fewer if there are too few sentences."""

    def length(group: list[list[str]]) -> int:
        return sum(len(sentence) for topic in group for sentence in topic)

    while len(groups) > number:
        groups = [*groups[:-2], groups[-2] + groups[-1]]
    while len(groups) < number:
        longest = max((group for group in groups if sum(map(len, group)) > 1), key=length, default=None)
        if longest is None:
            break
        parts = longest if len(longest) > 1 else [[sentence] for sentence in longest[0]]
        end = min(range(1, len(parts)), key=lambda end: abs(length(parts[:end]) - length(parts[end:])))
        at = next(at for at, group in enumerate(groups) if group is longest)
        groups[at : at + 1] = [parts[:end], parts[end:]]
    return [" ".join(sentence for topic in group for sentence in topic) for group in groups]
