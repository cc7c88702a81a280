"""What can be said of a page by rule: each sentence says one thing that was measured."""

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from urllib.parse import urlsplit

from activities.demo.page import Page, Section, count_words, quote, reading_ease, split_sentences

_VAGUE = {"click here", "see here", "here", "this", "this page", "link", "more", "read more", "learn more", "details"}
_PRAISE = re.compile(
    r"\b(world[- ]class|unique|unforgettable|cutting[- ]edge|innovative|passionate|truly|leading|revolutionary"
    r"|seamless|exciting|unparalleled|state[- ]of[- ]the[- ]art|best[- ]in[- ]class|robust|powerful)\b",
    re.IGNORECASE,
)
_PLACEHOLDER = re.compile(r"\b(coming soon|under construction|lorem ipsum|TODO|TBD)\b", re.IGNORECASE)
_MONTH = r"(Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec)[a-z]*\.?"
_DATE = re.compile(rf"\b(\d{{4}}-\d\d-\d\d|\d{{1,2}} {_MONTH},? \d{{4}}|{_MONTH} \d{{1,2}}(st|nd|rd|th)?,? \d{{4}})\b")
_AUTHOR = re.compile(r"\b([Bb]y|[Aa]uthor:?|[Ww]ritten by|[Pp]osted by) [A-Z][\w’'.-]+ [A-Z][\w’'-]+")
_CONTACT = re.compile(r"mailto:|tel:|\b[\w.+-]{1,64}@[\w-]{1,64}\.\w|\bcontact\b|\bget in touch\b", re.IGNORECASE)
_NEXT_STEP = re.compile(
    r"\b(in short|in conclusion|to sum up|conclusion|summary|contact|visit|sign up|subscribe|try"
    r"|find out|get in touch|write to|learn more|read (?!more)|come)\b",
    re.IGNORECASE,
)
_NUMBERS = ("no", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve")


@dataclass(frozen=True)
class Remark:
    """One thing found. `says` is a sentence without its full stop. `weight` above 0 makes it a weak point, and
    `advice` then completes "it would help to …".
    """

    says: str
    advice: str = ""
    weight: int = 0


Topic = list[Remark]


def critique(page: Page) -> list[Topic]:
    """What can be said of a page, in four topics: structure, reading, links and pictures, what is missing."""
    if not page.words:
        nothing = Remark(f"{page.name} holds no text to be read", "say in words what the page is for", 9)
        return [[nothing, *_titles(page)], list(_links(page)), list(_missing(page))]
    return [list(_structure(page)), list(_reading(page)), [*_links(page), *_images(page)], list(_missing(page))]


def weak_points(pages: Sequence[Page]) -> list[Remark]:
    """What could be better, the gravest first."""
    found = [remark for page in pages for topic in critique(page) for remark in topic if remark.weight]
    return sorted(found, key=lambda remark: -remark.weight)


def report(page: Page) -> list[Topic]:
    """What a page says, in its own words: the first sentence under each heading, and its figures."""
    if not page.sentences:
        return [[next(_structure(page))], [*_links(page), *_images(page)]]
    says = [
        Remark(f"Under {quote(section.title)} it says: {quote(split_sentences(opening)[0], 40)}")
        for section in page.headings
        for opening in [text for text in section.paragraphs if not _AUTHOR.match(text)][:1]
    ]
    lead = [Remark(f"It opens: {quote(page.sentences[0], 40)}")] if page.sentences and not says else []
    return [[next(_structure(page)), *lead], says[:4], says[4:], [*_reading(page)][:2], [*_links(page), *_images(page)]]


def _structure(page: Page) -> Iterator[Remark]:
    size = next(name for limit, name in _SIZES if page.words < limit)
    heads = page.headings
    under = f", under {count(len(heads), 'heading')}" if heads else ""
    yield Remark(f"{page.name} is {size}: {page.words:,} words in {count(len(page.sentences), 'sentence')}{under}")
    yield from _outline(heads, page.words)
    longest = max(page.sections, key=lambda section: section.words)
    if longest.words > 250 and longest.title:
        yield Remark(f"The part {quote(longest.title)} alone runs to {longest.words} words", "divide that part", 4)
    elif len(heads) > 3 and longest.title:
        yield Remark(f"No part is too long to take in: the largest, {quote(longest.title)}, has {longest.words} words")
    paragraph = max(page.paragraphs, key=len)
    if (words := count_words(paragraph)) > 100 and len(split_sentences(paragraph)) > 1:
        text = f"The paragraph that begins {quote(paragraph, 6)} runs to {words} words"
        yield Remark(text, "break the longest paragraph in two", 3)


_SIZES = ((150, "short"), (450, "of medium length"), (1500, "a full-length article"), (10**9, "a long read"))


def _outline(heads: Sequence[Section], words: int) -> Iterator[Remark]:
    names = [quote(section.title) for section in heads]
    skips = [(above, below) for above, below in pairwise(heads) if below.level > above.level + 1]
    if not heads:
        text = "A reader who skims finds no heading to hold on to"
        yield Remark(text, "put a heading over each change of subject", 8)
    elif heads[0].level > 2:
        text = f"The first heading, {names[0]}, stands at level {heads[0].level} with nothing above it"
        yield Remark(text, "begin the outline at the top, with a main heading", 6)
    elif skips:
        above, below = skips[0]
        text = f"The outline skips from level {above.level} ({quote(above.title)}) to level {below.level}"
        yield Remark(f"{text} ({quote(below.title)})", "let the levels follow one another", 4)
    elif len(heads) == 1 and words > 150:
        yield Remark(
            f"Its one heading, {names[0]}, has to carry all of it", "add a heading where the subject changes", 5
        )
    elif len(heads) > 3:
        way = f"from {names[1]} by way of {names[len(names) // 2]} to {names[-1]}"
        yield Remark(f"The headings alone tell its story, {way}")
    else:
        yield Remark(f"The outline is plain: {listed(names)}")


def _reading(page: Page) -> Iterator[Remark]:
    ease = reading_ease(page)
    mean = round(page.words / max(1, len(page.sentences)))
    if ease is None:
        yield Remark("It is too short, or too little like English, for a figure of reading ease")
    else:
        figures = f"With {count(mean, 'word')} to the average sentence and a Flesch reading ease of {ease}"
        band = next(text for floor, text in _BANDS if ease >= floor)
        yield Remark(f"{figures}, {band}", "shorten the sentences and choose plainer words", 0 if ease >= 50 else 6)
    longest = max(page.sentences, key=count_words)
    if (words := count_words(longest)) > 35:
        text = f"The longest sentence, which begins {quote(longest, 8)}, takes {words} words"
        yield Remark(text, "split the longest sentence in two or three", 6)
    else:
        yield Remark(f"Its longest sentence, which begins {quote(longest, 8)}, stops after {count(words, 'word')}")
    if len(praise := sorted({word.lower() for word in _PRAISE.findall(page.source)})) > 1:
        text = f"Words such as {listed([quote(word) for word in praise[:3]])} claim much and show nothing"
        yield Remark(text, "put a fact in the place of the praise", 5)
    if (marks := page.source.count("!")) > 2:
        yield Remark(f"It raises its voice with {count(marks, 'exclamation mark')}", "let the facts do the shouting", 3)


_BANDS = (
    (80, "it is very easy to read"),
    (60, "it reads as plain English"),
    (50, "it asks for a little patience"),
    (30, "it is hard going"),
    (-(10**9), "it is very hard to read"),
)


def _links(page: Page) -> Iterator[Remark]:
    if not page.links:
        yield Remark("It links to nothing", "link to a next page and to a source", 4)
        return
    host = urlsplit(page.url).netloc
    kinds = Counter(urlsplit(target).netloc in (host, "") for _, target in page.links)
    total = count(len(page.links), "link")
    if not kinds[False]:
        yield Remark(f"It has {total}, and none leads to another site")
    else:
        yield Remark(f"It has {total}: {_number(kinds[True])} within the site, {_number(kinds[False])} to other sites")
    vague = Counter(text for text, _ in page.links if text.lower().strip(" .!»>→") in _VAGUE)
    if vague:
        shown = [
            quote(text) + (" (twice)" if times == 2 else f" ({_number(times)} times)" if times > 2 else "")
            for text, times in vague.items()
        ]
        verb = "does" if len(shown) == 1 else "do"
        yield Remark(f"{listed(shown)} {verb} not say where the link goes", "name the destination in each link", 7)
    elif len(page.links) > 2 and (label := max((text for text, _ in page.links), key=len)):
        yield Remark(f"None of them hides behind a “click here”; {quote(label, 8)} shows how it is done")


def _images(page: Page) -> Iterator[Remark]:
    total, mute = len(page.images), sum(not alt for alt in page.images)
    if mute == total == 1:
        yield Remark("Its one image has no text alternative", "describe the image in words", 6)
    elif mute:
        which = (
            f"None of its {_number(total)} images has"
            if mute == total
            else f"{_number(mute)} of its {_number(total)} images lack{'s' * (mute == 1)}"
        )
        yield Remark(f"{which[0].upper()}{which[1:]} a text alternative", "describe each image in words", 6)
    elif total:
        come = "comes" if total == 1 else "come"
        yield Remark(f"{count(total, 'image').capitalize()} {come} with a text alternative")


def _titles(page: Page) -> Iterator[Remark]:
    if not page.has_title:
        text = f"Its title is {quote(page.title)}, which names nothing" if page.title else "It has no title"
        yield Remark(text, "give the page a title that could stand in a list of search results", 7)


def _missing(page: Page) -> Iterator[Remark]:
    yield from _titles(page)
    match bool(_AUTHOR.search(page.source)), bool(_DATE.search(page.source)):
        case True, True:
            yield Remark("It says who wrote it, and when")
        case True, False:
            yield Remark("It names an author but bears no date", "add the date of the last change", 2)
        case False, True:
            yield Remark("It bears a date but names no author", "add the name of its author", 2)
        case _:
            yield Remark("Nothing on it says who wrote it, or when", "add a name and a date", 4)
    if not _CONTACT.search(page.source):
        yield Remark("It offers no way to reach anybody", "add an address for questions", 3)
    if holder := _PLACEHOLDER.search(page.source):
        yield Remark(f"{quote(holder[0])} is a promise, not content", "leave out what is not there yet", 5)
    if page.paragraphs and not _NEXT_STEP.search(" ".join(page.paragraphs[-2:])):
        text = f"It stops at {quote(page.sentences[-1], 10)}, without a conclusion or a next step"
        yield Remark(text, "close with what the reader should do next", 3)
    elif page.paragraphs:
        yield Remark("It closes with a next step for its reader")


def count(number: int, noun: str) -> str:
    """A number and its noun: one link, nine links, 28 links."""
    return f"{_number(number)} {noun}{'' if number == 1 else 's'}"


def _number(number: int) -> str:
    return _NUMBERS[number] if number < len(_NUMBERS) else f"{number:,}"


def listed(parts: Sequence[str]) -> str:
    """Joined as in prose: a, b and c."""
    return " and ".join([", ".join(parts[:-1]), parts[-1]] if len(parts) > 1 else parts)


_ADVISING = ("it would help to", "a next version could", "one remedy is to", "an easy gain would be to")
_SIGNED = "*Written by the rehearsal model, by rule and from what it measured; no language model had a part in it.*"


def write_up(
    pages: Sequence[Page], kind: str, paragraphs: int | None, lost: Sequence[str], *, constructive: bool
) -> str:
    """The critique or report (`kind`) as Markdown: a title, so many paragraphs, and who wrote it.

    `lost` are sentences on pages that did not come. Without a number there are three paragraphs, or one a page.
    """
    advise = constructive and kind == "critique"
    found = [critique(page) if kind == "critique" else report(page) for page in pages]
    groups = [[_spoken(topic, advise=advise) for topic in topics if topic] for topics in found]
    closing = _verdict(pages, sum(len(topic) for topics in found for topic in topics)) if kind == "critique" else []
    closing += [f"{text}, so nothing is said of it." for text in lost]
    if closing:
        groups[-1].append(closing)
    title = f"# A {kind} {'of' if kind == 'critique' else 'on'} {listed([_inside(page.name) for page in pages])}"
    return "\n\n".join([title, *_paragraphs(groups, paragraphs or max(3, len(pages))), f"---\n{_SIGNED}"]) + "\n"


def _spoken(topic: Topic, *, advise: bool) -> list[str]:
    spoken, advised = [], 0
    for remark in topic:
        if advise and remark.weight:
            spoken.append(f"{remark.says}; {_ADVISING[advised % len(_ADVISING)]} {remark.advice}.")
            advised += 1
        else:
            spoken.append(remark.says if re.search(r"[.!?…]”$", remark.says) else f"{remark.says}.")
    return spoken


def _verdict(pages: Sequence[Page], checked: int) -> list[str]:
    weak = weak_points(pages)
    if not weak:
        return ["Nothing that was checked asks for a change: a sign of care, though not yet of good writing."]
    number = f"{_number(len(weak))} {'asks' if len(weak) == 1 else 'ask'}"
    verdict = [f"Of {count(checked, 'point')} looked at, {number} for a change; first of all, {weak[0].advice}."]
    if len(pages) > 1:
        ranked = sorted(pages, key=lambda page: sum(remark.weight for remark in weak_points([page])))
        verdict.append(f"{ranked[0].name} leaves the least to mend, {_inside(ranked[-1].name)} the most.")
    return verdict


def _inside(name: str) -> str:
    return name.replace("The page ", "the page ", 1) if name.startswith("The page ") else name


def _paragraphs(groups: list[list[list[str]]], wanted: int) -> list[str]:
    """Sentences by topic by page as so many paragraphs: pages are joined, or the longest one parted, until it fits.

    There are fewer where there are not enough sentences.
    """
    while len(groups) > wanted:
        groups = [*groups[:-2], groups[-2] + groups[-1]]
    while len(groups) < wanted:
        at = max(range(len(groups)), key=lambda at: (_divisible(groups[at]), _length(groups[at])))
        if not _divisible(groups[at]):
            break
        group = groups[at] if len(groups[at]) > 1 else [[sentence] for sentence in groups[at][0]]
        cut = min(range(1, len(group)), key=lambda cut: abs(_length(group[:cut]) - _length(group[cut:])))
        groups[at : at + 1] = [group[:cut], group[cut:]]
    return [" ".join(sentence for topic in group for sentence in topic) for group in groups]


def _divisible(group: list[list[str]]) -> bool:
    return sum(map(len, group)) > 1


def _length(group: list[list[str]]) -> int:
    return sum(len(sentence) for topic in group for sentence in topic)
