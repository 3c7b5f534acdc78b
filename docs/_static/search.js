// The search page: sections that hold the words of the query, with an excerpt. Works from files: no request.

const LIKE_A_FAILURE =
  /error|time.?out|hang|stuck|port|exit|kill|watchdog|refused|\bnan\b|memory|abort|signal|fail|deadlock|assert|duplicate|mismatch|worse|wrong|drift|repeat/i;
const SHOWN = 30;
const OF_ONE_PAGE = 3;
const AROUND = 110; // characters on each side of a word that is found

const wordsOf = (query) => query.toLowerCase().split(/[^\p{L}\p{N}_.−-]+/u).filter((word) => word);
const times = (text, word) => text.toLowerCase().split(word).length - 1;
const begins = (text, word) =>
  new RegExp(`(?<!\\p{L})${word.replace(/[.*+?^${}()|[\]\\]/g, "\\$&")}`, "iu").test(text);

// A word that few sections have says more: "rank" is everywhere on this site.
function weightOf(word) {
  const holders = SECTIONS.filter(({ text }) => times(text, word)).length;
  return Math.log(1 + SECTIONS.length / (1 + holders)) ** 2 / 4;
}

function scoreOf({ page, title, heading, text }, weights, query) {
  const name = `${title} ${page.replaceAll(/[_/]/g, " ")}`;
  let score = 0;
  for (const [word, weight] of weights) {
    score += weight * (Math.min(times(text, word), 4) + 5 * begins(heading, word) + 12 * begins(name, word));
  }
  if (score === 0) return 0;
  const whole = times(text, query.toLowerCase()) > 0;
  const failure = page.endsWith("/failures") && LIKE_A_FAILURE.test(query);
  return score + 6 * whole + 40 * failure + 20 * (whole && page.endsWith("/glossary"));
}

function search(query, weights) {
  const scored = SECTIONS.map((section) => ({ ...section, score: scoreOf(section, weights, query) }));
  const found = scored.filter(({ score }) => score > 0);
  const complete = found.filter((one) =>
    weights.every(([word]) => times(`${one.page} ${one.title} ${one.heading} ${one.text}`, word)),
  );
  const perPage = {};
  return (complete.length ? complete : found)
    .sort((a, b) => b.score - a.score)
    .filter(({ page }) => (perPage[page] = (perPage[page] ?? 0) + 1) <= OF_ONE_PAGE)
    .slice(0, SHOWN);
}

function excerptOf(text, words) {
  const rarest = words.find((word) => times(text, word));
  const middle = Math.max(0, text.toLowerCase().indexOf(rarest));
  const begin = Math.max(0, middle - AROUND);
  const end = Math.min(text.length, middle + AROUND);
  const paragraph = document.createElement("p");
  paragraph.className = "context";
  paragraph.textContent = `${begin ? "… " : ""}${text.slice(begin, end)}${end < text.length ? " …" : ""}`;
  return paragraph;
}

function show(query) {
  const weights = wordsOf(query).map((word) => [word, weightOf(word)]);
  weights.sort((a, b) => b[1] - a[1]);
  const found = search(query, weights);
  const list = document.createElement("ul");
  list.className = "search";
  for (const { page, title, anchor, heading, text } of found) {
    const item = document.createElement("li");
    const link = document.createElement("a");
    link.href = `${page}.html#${anchor}`;
    link.textContent = heading === title ? title : `${title} › ${heading}`;
    item.append(link, excerptOf(text, weights.map(([word]) => word)));
    list.append(item);
  }
  const line = document.createElement("p");
  line.textContent = found.length ? `Sections with “${query}”:` : `No section has “${query}”.`;
  document.getElementById("search-results").replaceChildren(line, list);
}

Search.performSearch = show; // Sphinx's own finds pages, not rows, and has no excerpts where the site is opened as files
