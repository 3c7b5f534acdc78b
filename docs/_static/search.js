// The search page: sections that hold all words of the query, with an excerpt. Works from files: no request.

const LIKE_A_FAILURE =
  /error|time.?out|hang|stuck|port|exit|kill|watchdog|refused|\bnan\b|memory|abort|signal|fail|deadlock|assert|duplicate|mismatch|worse|wrong|drift|repeat/i;
const SHOWN = 30;
const OF_ONE_PAGE = 3;
const LONG = 6; // words: no section has all words of a sentence
const LONG_HEADING = 60; // characters: a row's symptom
const AROUND = 110; // characters on each side of a word that is found

const wordsOf = (query) => query.toLowerCase().split(/[^\p{L}\p{N}_.−-]+/u).filter((word) => word);
const times = (text, word) => text.split(word).length - 1;
const isWordOf = (word, text) => new RegExp(`(^|[^\\p{L}])${word.replace(/[.*+?^${}()|[\]\\]/g, "\\$&")}`, "u").test(text);

// A word that few sections have says more: "rank" is everywhere on this site.
function weightOf(word) {
  const holders = SECTIONS.filter(({ heading, text }) => `${heading} ${text}`.toLowerCase().includes(word)).length;
  return Math.log(1 + SECTIONS.length / (1 + holders)) ** 2 / 4;
}

function scoreOf(section, words, weights, query) {
  const heading = section.heading.toLowerCase();
  const page = `${section.title} ${section.page.replaceAll(/[_/]/g, " ")}`.toLowerCase();
  const text = section.text.toLowerCase();
  let score = 0;
  let found = 0;
  for (const [number, word] of words.entries()) {
    const here = times(text, word);
    const inHeading = isWordOf(word, heading);
    const inPage = isWordOf(word, page);
    found += Number(here > 0 || inHeading || inPage);
    score += weights[number] * ((heading.length < LONG_HEADING ? 8 : 2) * inHeading + 12 * inPage + Math.min(here, 4));
  }
  if (found === 0) return null;
  if (text.includes(query.toLowerCase())) score += 6;
  if (section.page.endsWith("/failures") && LIKE_A_FAILURE.test(query)) score += 40;
  if (section.page.endsWith("/glossary")) score += 20 * (times(text, query.toLowerCase()) > 0);
  return { section, score, all: found === words.length };
}

function search(query) {
  const words = wordsOf(query);
  const weights = words.map(weightOf);
  const scored = SECTIONS.map((section) => scoreOf(section, words, weights, query)).filter((one) => one);
  const complete = scored.filter((one) => one.all);
  const perPage = {};
  return (complete.length && words.length < LONG ? complete : scored)
    .sort((a, b) => b.score - a.score)
    .filter(({ section }) => (perPage[section.page] = (perPage[section.page] ?? 0) + 1) <= OF_ONE_PAGE)
    .slice(0, SHOWN);
}

// Where most of the words stand near each other; where that is a tie, the first word of the query decides.
function middleOf(text, words) {
  let middle = 0;
  let most = 0;
  for (const word of words) {
    for (let place = text.indexOf(word); place >= 0; place = text.indexOf(word, place + 1)) {
      const near = text.slice(Math.max(0, place - AROUND), place + AROUND);
      const held = words.filter((one) => near.includes(one)).length;
      if (held > most) [middle, most] = [place, held];
    }
  }
  return middle;
}

function excerptOf(text, words) {
  const middle = middleOf(text.toLowerCase(), words);
  const begin = Math.max(0, middle - AROUND);
  const end = Math.min(text.length, middle + AROUND);
  const paragraph = document.createElement("p");
  paragraph.className = "context";
  paragraph.textContent = `${begin ? "… " : ""}${text.slice(begin, end)}${end < text.length ? " …" : ""}`;
  return paragraph;
}

function show(query) {
  const found = search(query);
  const list = document.createElement("ul");
  list.className = "search";
  for (const { section } of found) {
    const item = document.createElement("li");
    const link = document.createElement("a");
    link.href = `${section.page}.html#${section.anchor}`;
    link.textContent = section.heading === section.title ? section.title : `${section.title} › ${section.heading}`;
    item.append(link, excerptOf(section.text, wordsOf(query)));
    list.append(item);
  }
  const line = document.createElement("p");
  line.textContent = found.length ? `Sections with “${query}”:` : `No section has “${query}”.`;
  document.getElementById("search-results").replaceChildren(line, list);
}

Search.performSearch = show; // Sphinx's own would fetch each page for its excerpt, which browsers refuse for files
