/* From a text of cuDNN's to its entry: in the search box of every page, and on the page of reasons. Works offline. */
(() => {
  "use strict";
  const here = document.currentScript.src;
  const root = new URL("../", here);
  let loaded = null;

  /** Load the table of reasons once; as a script, since files from disk cannot be fetched. */
  function load() {
    loaded ??= new Promise((done, failed) => {
      const script = document.createElement("script");
      script.src = new URL("assets/reasons-data.js", root).href;
      script.onload = () => done(prepare(window.cudnnReasons));
      script.onerror = failed;
      document.head.append(script);
    });
    return loaded;
  }

  /** What is the same in two reasons that differ in numbers, spaces and punctuation: tools/website/reasons.py, key_of. */
  function keyOf(text) {
    return (text.toLowerCase().match(/[a-z_]+|\d+/g) ?? []).map((word) => (/\d/.test(word) ? "0" : word)).join(" ");
  }

  function prepare(table) {
    const whole = new Map();
    const statement = new Map();
    const common = new Map();
    for (const row of table.reasons) {
      if (!whole.has(row[0])) whole.set(row[0], row);
      if (!statement.has(row[1])) statement.set(row[1], row);
      for (const word of new Set(row[0].split(" "))) common.set(word, (common.get(word) ?? 0) + 1);
    }
    const words = table.reasons.map((row) => new Set(row[0].split(" ")));
    const patterns = table.patterns.map(([pattern, ...rest]) => [new RegExp(pattern), ...rest]);
    const compiled = (rows) => rows.map(([pattern, ...rest]) => [new RegExp(pattern, "i"), ...rest]);
    const messages = compiled(table.messages);
    const messageStatuses = compiled(table.message_statuses);
    const rewrites = table.rewrites.map(([pattern, text]) => [new RegExp(pattern, "g"), text]);
    return { ...table, rewrites, whole, statement, common, words, patterns, messages, messageStatuses };
  }

  /** The reasons in a text: its lines, without the marks that logs and exceptions put around them. */
  function linesOf(text) {
    return text.split(/\n(?!at: )/).map((line) => {
      const status = (line.match(/CUDNN_STATUS_\w+/) ?? [""])[0];
      const said = line.replace(/^\s*(?:Warning|Error|[iwe]!)\s*:?\s*/, "").replace(/^.*?CUDNN_STATUS_\w+\s*[:;]\s*/, "")
        .replace(/^Reason:\s*/, "").trim();
      return { status, said };
    }).filter((one) => one.said || one.status);
  }

  /** Return the condition of a reason in plain English, or "": describe_condition of diagnose/causes/conditions.py. */
  function describe(table, said) {
    const condition = said.replace(/^[^]*?\sat: /, "").replace(/\s+/g, " ").trim();
    if (!new RegExp(table.condition).test(condition) || new RegExp(table.call).test(`: ${condition}`)) return "";
    return table.rewrites.reduce((text, [pattern, words]) => text.replace(pattern, words), condition);
  }

  /** How much of the rarer words of a text an entry has, and the text of the entry's: 0 to 1. */
  function likeness(table, wanted, words) {
    const weight = (word) => 1 / (1 + (table.common.get(word) ?? 0));
    let shared = 0;
    let all = 0;
    for (const word of new Set([...wanted, ...words])) {
      all += weight(word);
      if (wanted.has(word) && words.has(word)) shared += weight(word);
    }
    return all ? shared / all : 0;
  }

  /** Return the entry of a message that a program prints, from the rows [pattern, anchor, title, program]; else null. */
  function findMessage(rows, text) {
    const flat = text.replace(/\s+/g, " ");
    const row = rows.find(([pattern]) => pattern.test(flat));
    return row ? { anchor: row[1], title: row[2], rule: row[3], how: "its message" } : null;
  }

  /** Return { anchor, title, rule, how, words } of the best entry of a text. */
  function findReason(table, text) {
    const lines = linesOf(text);
    const words = lines.map(({ said }) => describe(table, said)).find(Boolean) ?? "";
    return { ...findEntry(table, text, lines, words), words };
  }

  function findEntry(table, text, lines, words) {
    let rule = null;
    for (const { said } of lines) {
      const key = keyOf(said);
      const statement = keyOf(said.split(/\sat: /)[0]);
      const exact = table.whole.get(key) ?? table.statement.get(statement) ?? table.statement.get(key);
      if (exact) return { anchor: exact[2], title: exact[3], rule: exact[4], how: "its entry" };
    }
    const message = findMessage(table.messages, text);
    if (message) return message;
    if (!/CUDNN_STATUS_\w+(?:; Reason)?: /.test(text)) {
      const status = findMessage(table.messageStatuses, text);
      if (status) return status;
    }
    for (const { status, said } of lines) {
      const wanted = new Set(keyOf(said).split(" "));
      if (wanted.size > 2) {
        let best = [0, null];
        table.words.forEach((words, place) => {
          const found = likeness(table, wanted, words);
          if (found > best[0]) best = [found, table.reasons[place]];
        });
        if (best[0] > (words ? 0.85 : 0.6)) return { anchor: best[1][2], title: best[1][3], rule: best[1][4], how: "the nearest entry" };
      }
      const byStatus = table.statuses.find((row) => row[0] === status);
      const byWords = table.patterns.find((row) => row[0].test(`${status}: ${said}`));
      const found = byStatus ?? byWords;
      if (!rule && found) rule = { anchor: found[1], title: found[2], rule: "", how: "the rule that reads it" };
    }
    return rule ?? { anchor: table.none[0], title: table.none[1], rule: "", how: words ? "its condition" : "no entry" };
  }

  /** Whether a text is more likely cuDNN's than a search for words. */
  function isReason(text) {
    return /CUDNN_STATUS_|Reason:|\sat: |[=!<>&|(]{2}|\w\(.*\)|->|::|\w\.\w+\(/.test(text) || text.trim().split(/\s+/).length > 4;
  }

  function mark(found) {
    const link = document.createElement("a");
    link.className = "reason-entry";
    link.href = new URL(`tables/reasons.html#${found.anchor}`, root).href;
    link.dataset.how = found.how;
    const title = document.createElement("b");
    title.textContent = found.title;
    link.append(title, `messages and reasons: ${found.how}${found.rule ? ` · ${found.rule}` : ""}`);
    if (found.words) link.append(document.createElement("br"), `It refuses where ${found.words}`);
    return link;
  }

  async function show(text, box, always) {
    if (!text.trim()) return box.replaceChildren();
    const table = await load();
    const message = findMessage(table.messages, text);
    if (!(always || message || isReason(text))) return box.replaceChildren();
    const found = findReason(table, text);
    const worth = found.how.startsWith("its") || found.how === "the nearest entry" || always || /CUDNN_STATUS_/.test(text);
    const more = message && message.anchor !== found.anchor ? [mark(message)] : [];
    box.replaceChildren(...(worth ? [mark(found), ...more] : more));
  }

  function start() {
    const search = document.querySelector(".md-search__input");
    const results = document.querySelector(".md-search-result");
    if (search && results) {
      const box = document.createElement("div");
      box.id = "reason-result";
      results.before(box);
      search.addEventListener("focus", load, { once: true });
      search.addEventListener("input", () => show(search.value, box, false));
    }
    const area = document.getElementById("reason");
    if (area) {
      area.closest("form").addEventListener("submit", (event) => event.preventDefault());
      area.addEventListener("input", () => show(area.value, document.getElementById("reason-found"), true));
    }
  }

  window.findCudnnReason = async (text) => findReason(await load(), text);
  if (document.readyState === "loading") document.addEventListener("DOMContentLoaded", start);
  else start();
})();
